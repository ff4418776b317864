"""The arithmetic of the simulated FPGA: a bit-exact model of its Verilog."""
