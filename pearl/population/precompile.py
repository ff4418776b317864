"""Machine code before the fan-out, so that no two runs compile the same kernels at once."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pearl.files import write_atomically
from pearl.planner.plan_cache import digest_sources
from pearl.population.local_executor import GRACE_S, how, last_lines, start_process
from pearl.training.compiled import CompiledPlan
from pearl_devices import UnsupportedError
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.host.calibration import versions

LIMIT_S = 1800.0
"""A preparing run may take so long (assumed: kernels compile in minutes)."""
LOOK_S = 0.05


def _mark(made: CompiledPlan) -> Path:
    """The file that says where the machine code of these kernels is kept.

    Its name is of the kernels, the sources, the versions and the processor, so that none of it is
    looked up in numba, whose import takes longer than all else here.
    """
    about = [
        sorted(f"{j.kernel.kind} {dict(j.kernel.dims)} {j.variant}" for j in made.calls),
        sorted((key, value) for key, value in os.environ.items() if key.startswith("NUMBA_")),
        (
            digest_sources(),
            versions(),
            sys.version,
            [d.model for d in made.system.platform.devices],
        ),
    ]
    return cache_folder() / "compiled" / hashlib.sha256(repr(about).encode()).hexdigest()[:32]


def lacking(made: CompiledPlan) -> bool:
    """Whether a short run is to compile these kernels: none has, or their code is gone, and code is
    kept at all."""
    try:
        if Path(_mark(made).read_text(encoding="utf-8")).is_dir():
            return False
    except OSError:
        pass
    return _kept() is not None


def _kept() -> Path | None:
    from pearl_devices.primitives.code_cache import folder

    return folder()


def note(made: CompiledPlan) -> None:
    """Take down where the machine code of these kernels is."""
    with suppress(OSError):  # then the next sweep begins with a short run too
        write_atomically(_mark(made), str(_kept()).encode())


def steps(made: CompiledPlan) -> int:
    """Env steps of a run that calls every kernel of a plan."""
    per = made.graph.env_steps
    starts = getattr(made.system.algorithm, "learning_starts", 0)
    return (-(-starts // per) + 2) * per


def prepare(
    arguments: list[str], folder: Path, log: Path, cores: tuple[int, ...], asked: Callable[[], bool]
) -> bool:
    """Train a short run to its end, which compiles all it calls; False where that was interrupted.

    arguments: of `pearl`, which train into `folder`; that is removed.

    Raises:
        UnsupportedError: the run failed; with its last lines.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = start_process(arguments, cores, log)
    end_s = time.monotonic() + LIMIT_S
    try:
        while process.poll() is None:
            if asked():
                return False
            if time.monotonic() > end_s:
                raise UnsupportedError(
                    f"a short run before the others took longer than {LIMIT_S:g} s; {log}"
                )
            time.sleep(LOOK_S)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait(GRACE_S)
        shutil.rmtree(folder, ignore_errors=True)
    if process.returncode:
        why = f"{how(process.returncode)}; {last_lines(log)}"
        raise UnsupportedError(f"a short run before the others {why}")
    return True
