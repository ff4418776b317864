"""Advice: `python -m benchmarks.advice [--quick] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "reliability": "how often verdicts between two measured plans are right",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("advice", PARTS))
