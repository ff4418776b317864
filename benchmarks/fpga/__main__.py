"""The simulated FPGA: `python -m benchmarks.fpga [--quick] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "steps": "gradient steps: our engines beside PEARL's released model, and the twin's speed",
    "crossovers": "where replay and learner belong at which doorbell, and what PEARL's rule says",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("fpga", PARTS))
