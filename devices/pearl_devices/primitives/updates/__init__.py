"""Gradient steps and whole iterations, one file per algorithm."""
