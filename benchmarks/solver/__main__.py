"""The solver against what is known:
`python -m benchmarks.solver [--quick] [--data DIR] [--json FILE] [PART …]`."""

import sys

from benchmarks.run import main

PARTS = {
    "oracle": "against exhaustive search", "limits": "what limits cost",
    "sdf": "periods of synchronous dataflow graphs",
    "placement": "RL loops of language models on groups of GPUs",
    "certificates": "proofs that a second program checks",
    "hosts": "a plan for 64 hosts of eight devices",
    "jobshop": "makespans of flexible job shops",
    "speed": "small problems to proof",
    "clock": "the time limit",
    "cycles": "rings, nested loops and small graphs with cycles",
}  # fmt: skip
"""Part → its subject."""

if __name__ == "__main__":
    sys.exit(main("solver", PARTS))
