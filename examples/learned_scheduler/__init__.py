"""A scheduler that PEARL trains: see `docs/literature/learned_scheduling.md`."""
