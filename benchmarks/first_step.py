"""The command line, watched for its first gradient step: `python -P first_step.py FILE train …`.

FILE gets wall (since 1970) and CPU seconds of the process and its ended children when the first
call that left `learner.step` above 0 has returned, and whether torch was imported by then.
`benchmarks.start` runs it; it imports nothing that the command line does not.

`first_step.py --firing CORES FILE train …` watches for the first firing of several lanes, whichever
process it is of, on this host seen with so many cores. The CPU-seconds are then those of living
children too, and FILE gets how many processes of lanes there were (`workers`).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

LEARNING = ("update.", "learn.", "iteration.")
"""Kinds of kernels that take gradient steps."""


def note(file: Path, **more: Any) -> None:
    """Write what this process has spent by now."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {
        "at_s": time.time(),
        "cpu_s": sum(u.ru_utime + u.ru_stime for u in used) + more.pop("below_s", 0.0),
        "torch": "torch" in sys.modules,
    }
    file.write_text(json.dumps(found | more))


def watch_firings(file: Path) -> None:
    """Note when the first count of firings, which all lanes share, exceeds that of the start."""
    from benchmarks.processes import below, cpu_s
    from pearl.runtime import processes
    from pearl.runtime.protocol.control_block import ControlBlock

    plain = ControlBlock.reset

    def reset(control: Any, fired: Any, begin: int, *, limit: int) -> None:
        plain(control, fired, begin, limit=limit)
        cells = {control.count_cell(task): count for task, count in fired.items()}

        def look() -> None:
            while not any(control.read(cell) > count for cell, count in cells.items()):
                time.sleep(0.0005)
            here = below(os.getpid())
            workers = len(processes.running_pids())
            note(file, below_s=cpu_s(here, waited=True), workers=workers)

        if not file.exists():
            threading.Thread(target=look, daemon=True).start()

    ControlBlock.reset = reset  # type: ignore[method-assign, assignment]


def watch_steps(file: Path) -> None:
    """Note when the first call that takes a gradient step has returned."""
    from pearl_devices import cpu

    plain: Any = cpu.bind

    def bind(kernel: Any, variant: str, buffers: Any) -> Any:
        call = plain(kernel, variant, buffers)
        if not kernel.kind.startswith(LEARNING):
            return call

        def watched() -> None:
            call()
            if buffers["learner.step"][0] > 0 and not file.exists():
                note(file)

        return watched

    cpu.bind = bind


def main(arguments: list[str]) -> None:
    from pearl.cli import main as pearl

    if arguments[0] == "--firing":
        from pearl_devices.system import host_system

        cores, arguments = int(arguments[1]), arguments[2:]
        host_system.usable_cpus = lambda: list(range(cores))  # type: ignore[method-assign]
        watch_firings(Path(arguments[0]))
    else:
        watch_steps(Path(arguments[0]))
    sys.argv = ["pearl", *arguments[1:]]
    pearl()


if __name__ == "__main__":
    main(sys.argv[1:])
