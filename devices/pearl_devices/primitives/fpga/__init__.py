"""The arithmetic of the simulated FPGA, bit for bit: the twin of its register-transfer code."""
