"""Verdicts of advice beside measurements."""
