"""Estimates against measurements:
`python -m benchmarks.estimators [--quick] [--data DIR] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "host": "kernels of this host that no fit has seen",
    "sheet": "kernels of this host as if it were unknown",
    "power": "published watts of GPUs",
    "published": "published times and rates of kernels, gradient steps and loops",
    "gpu": "published timings of GPU operators",
    "plans": "whole plans of this host",
    "learned": "shipped specs before and after a run of each",
    "actors": "one, two and four actors on this host",
    "waiting": "environments that wait, in turn and as planned",
    "own": "whole runs of networks and algorithms of users",
    "products": "products of dense layers by our tiles, OpenBLAS and torch",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("estimators", PARTS))
