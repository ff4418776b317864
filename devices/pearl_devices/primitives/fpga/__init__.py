"""What the simulated FPGA computes, bit for bit: the twin of its register-transfer code."""
