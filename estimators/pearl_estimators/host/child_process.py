"""A task of `calibrate_host` in a process of its own, so that the caller imports no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

from pearl_estimators.host.calibration import CalibrationError, MeasuringTimeoutError

_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB")


def in_child(task: str, seconds: float, *, timeout_s: float, given: object = None) -> Any:
    """Run `calibrate_host.main` in a process of its own, on one thread, and return its JSON.

    The child and all it starts end with this call, however it ends (Ctrl-C included), and with this
    process: the child watches its standard input, which the death of the parent closes.

    Raises:
        MeasuringTimeoutError: it took more than timeout_s seconds.
        CalibrationError: the child fails.
    """
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environment.update({f"{library}_NUM_THREADS": "1" for library in _THREADS})
    command = [sys.executable, "-m", "pearl_estimators.host.calibrate_host", task, repr(seconds)]
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            env=environment,
            bufsize=0,
            start_new_session=True,  # one group to end, which Ctrl-C in a terminal does not reach
        ) as child,
    ):
        giver = threading.Thread(target=_give, args=(child.stdin, given), daemon=True)
        giver.start()  # the child may be long in coming to read more than a pipe holds
        try:
            status = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise MeasuringTimeoutError(
                f"measuring this host took more than {timeout_s:.0f} s and was ended"
            ) from None
        finally:
            _end(child)
            giver.join()
        out.seek(0)
        err.seek(0)
        text, trouble = out.read().decode(), err.read().decode(errors="replace").strip()
        if status != 0:
            last = trouble.splitlines()[-1] if trouble else f"status {status}"
            raise CalibrationError(f"measuring this host failed: {last}")
        return json.loads(text.splitlines()[-1])


def _give(pipe: IO[bytes], given: object) -> None:
    """Writes a line of JSON, as far as the other side reads it."""
    line = json.dumps(given).encode() + b"\n"
    with suppress(OSError):
        while line:
            line = line[pipe.write(line) :]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kills a child that runs, with its group, so that no process it has started stays behind."""
    if child.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()
