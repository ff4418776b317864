"""Systems of the literature: `python -m benchmarks.literature [--quick] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "pim": "tabular learning in memory: SwiftRL",
    "lists": "list schedulers: NumS, Ramiel",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("literature", PARTS))
