"""Compile kernels before the runs start, so that no two runs compile the same kernels."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pearl.files import write_atomically
from pearl.planner.plan_cache import digest_sources
from pearl.population.local_executor import describe_exit, kill_processes, last_lines, start_process
from pearl.training.compiled import CompiledPlan
from pearl_devices import UnsupportedError
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.host.calibration import versions

LIMIT_S = 1800.0
"""Time limit of a compiling run (assumed: kernels compile in minutes)."""
POLL_INTERVAL_S = 0.05


def _mark(made: CompiledPlan) -> Path:
    """The file that records where the machine code of the kernels of a plan is stored.

    Its name is a digest of the kernels, the sources, the versions and the processor. So nothing is
    looked up in numba, whose import takes longer than everything else here.
    """
    content = [
        sorted(f"{j.kernel.kind} {dict(j.kernel.dims)} {j.variant}" for j in made.calls),
        sorted((key, value) for key, value in os.environ.items() if key.startswith("NUMBA_")),
        (
            digest_sources(),
            versions(),
            sys.version,
            [d.model for d in made.system.platform.devices],
        ),
    ]
    return cache_folder() / "compiled" / hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def needs_compiling(made: CompiledPlan) -> bool:
    """Whether a short run must compile the kernels of a plan: their machine code is not stored.

    False if numba stores no machine code at all: a short run would help no other run.
    """
    try:
        if Path(_mark(made).read_text(encoding="utf-8")).is_dir():
            return False
    except OSError:
        pass
    return _code_folder() is not None


def _code_folder() -> Path | None:
    from pearl_devices.primitives.code_cache import folder

    return folder()


def record_compiled(made: CompiledPlan) -> None:
    """Record where the machine code of the kernels of a plan is stored."""
    with suppress(OSError):  # the next sweep then starts with a short run again
        write_atomically(_mark(made), str(_code_folder()).encode())


def steps(made: CompiledPlan) -> int:
    """Env steps of a run that calls every kernel of a plan."""
    per = made.graph.env_steps
    starts = getattr(made.system.algorithm, "learning_starts", 0)
    return (-(-starts // per) + 2) * per


def compile_kernels(
    arguments: list[str],
    folder: Path,
    log: Path,
    cores: tuple[int, ...],
    interrupted: Callable[[], bool],
) -> bool:
    """Train a short run, which compiles all kernels that it calls; return False if interrupted.

    arguments: of `pearl`; they train into `folder`, which is removed.

    Raises:
        UnsupportedError: the run failed or took too long.
    """
    process = start_process(arguments, cores, log)
    end_s = time.monotonic() + LIMIT_S
    try:
        while process.poll() is None:
            if interrupted():
                return False
            if time.monotonic() > end_s:
                raise UnsupportedError(
                    f"the short run that compiles kernels took longer than {LIMIT_S:g} s; see {log}"
                )
            time.sleep(POLL_INTERVAL_S)
    finally:
        kill_processes([process])
        shutil.rmtree(folder, ignore_errors=True)
    if process.returncode:
        reason = f"{describe_exit(process.returncode)}; {last_lines(log)}"
        raise UnsupportedError(f"the short run that compiles kernels {reason}")
    return True
