"""Compiled matrix products, networks, random numbers and atomics."""
