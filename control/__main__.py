"""`python -m control` is `rhodeck`."""

from control.cli import main

main()
