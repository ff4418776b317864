"""Calibration of GPU operators from measured times."""
