"""One purpose a revision, numbered NNNN_what.py."""
