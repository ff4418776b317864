"""Machine code before the fan-out, so that no two runs compile the same kernels at once."""

from __future__ import annotations

import hashlib
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pearl.population.processes import GRACE_S, begun, how, last_lines
from pearl.training.compiled import Compiled
from pearl_devices import UnsupportedError
from pearl_devices.primitives import code_cache

LIMIT_S = 1800.0
"""A preparing run may take so long (assumed: kernels compile in minutes)."""
LOOK_S = 0.05


def mark(made: Compiled) -> Path | None:
    """The file that says that these kernels have been compiled; None where no code is kept.

    It lies with the machine code, whose folder is of the sources, the compiler and the processor.
    """
    folder = code_cache.folder()
    if folder is None:
        return None
    kernels = sorted(f"{j.kernel.kind} {dict(j.kernel.dims)} {j.variant}" for j in made.calls)
    return folder / f"trained-{hashlib.sha256(repr(kernels).encode()).hexdigest()[:24]}"


def steps(made: Compiled) -> int:
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
    process = begun(arguments, cores, log)
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
