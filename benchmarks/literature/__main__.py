"""Systems of the literature: `python -m benchmarks.literature [--quick] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "windows": "time-indexed dependences: TimeRL",
    "pim": "tabular learning in memory: SwiftRL",
    "lists": "list schedulers: NumS, Ramiel",
    "learned": "a scheduler that is trained: RESPECT",
    "spiking": "spiking networks on tiles: snnTorch on IPUs",
}
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("literature", PARTS))
