"""Hot modules as machine code: which they are, how they are built, and which way a process runs."""
