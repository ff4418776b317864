"""A scheduler that PEARL trains: see `docs/learned_scheduling.md`."""
