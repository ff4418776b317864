"""Gradient steps and whole iterations, one file an algorithm."""
