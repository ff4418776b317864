"""Calibration of this host: kernels timed, features counted, a linear model fitted."""
