"""Words and mathematics of a fleet: pure, deterministic, without I/O, clock or randomness of its own."""

from compiled.load import prefer

prefer(__name__, __path__)
