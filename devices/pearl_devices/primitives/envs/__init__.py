"""Environments: native ones, gymnasium and envpool ones, normalisation."""
