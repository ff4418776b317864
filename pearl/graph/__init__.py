"""Task graphs: tasks, edges and rates, limits on plans, and the exact period of a timed graph."""
