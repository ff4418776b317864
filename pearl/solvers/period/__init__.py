"""The period form: a mixed-integer program for the exact period of a plan."""
