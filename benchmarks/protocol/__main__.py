"""The training protocol at work:
`python -m benchmarks.protocol [--quick] [--data DIR] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "slack": "each kind of slack on and off, predicted beside measured",
    "staleness": "return against policy lag and priority staleness",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("protocol", PARTS))
