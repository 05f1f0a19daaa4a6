"""Words and mathematics of a fleet: pure, deterministic, without I/O, clock or randomness of its own."""
