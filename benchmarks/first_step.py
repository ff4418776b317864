"""The command line, watched for its first gradient step: `python -P first_step.py FILE train …`.

Of no tree: it imports `pearl` from wherever PYTHONPATH says, so that `benchmarks.start` runs an
older one beside this. FILE gets wall (since 1970) and CPU seconds of the process and its ended
children when the first call that left `learner.step` above 0 has returned, and whether torch was
imported by then.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

LEARNING = ("update.", "learn.", "iteration.")
"""Kinds of kernels that take gradient steps."""


def main(file: Path, arguments: list[str]) -> None:
    from pearl.cli import main as pearl
    from pearl_devices import cpu

    plain: Any = cpu.bind

    def bind(kernel: Any, variant: str, buffers: Any) -> Any:
        call = plain(kernel, variant, buffers)
        if not kernel.kind.startswith(LEARNING):
            return call

        def watched() -> None:
            call()
            if buffers["learner.step"][0] > 0 and not file.exists():
                used = [
                    resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
                ]
                found = {
                    "at_s": time.time(),
                    "cpu_s": sum(u.ru_utime + u.ru_stime for u in used),
                    "torch": "torch" in sys.modules,
                }
                file.write_text(json.dumps(found))

        return watched

    cpu.bind = bind
    sys.argv = ["pearl", *arguments]
    pearl()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
