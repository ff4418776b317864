"""Verdicts beside answers by hand, beside what must hold of all, and beside measurements."""
