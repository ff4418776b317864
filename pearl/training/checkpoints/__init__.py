"""Checkpoints: the file, the state in it, and the ways on: resuming, branching, warm start."""
