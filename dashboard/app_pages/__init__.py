"""One page a file; the module docstring is the question the page answers."""
