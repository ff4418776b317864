"""Estimates against measurements:
`python -m benchmarks.estimators [--quick] [--data DIR] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "host": "kernels of this host that no fit has seen",
    "sheet": "kernels of this host as if it were unknown",
    "power": "published watts of GPUs",
    "plans": "whole plans of this host",
    "actors": "one, two and four actors on this host",
    "own": "whole runs of networks and algorithms of users",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("estimators", PARTS))
