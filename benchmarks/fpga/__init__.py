"""Benchmarks of the simulated FPGA."""
