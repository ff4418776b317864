"""Run a task of `calibrate_host` in a child process, so that the caller imports no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

from pearl_devices.exit_status import describe_exit
from pearl_devices.system import host_system
from pearl_estimators.host.calibration import MeasuringDiedError, MeasuringTimeoutError
from pearl_estimators.sealed_files import CalibrationError

_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB")


def run_in_child(task: str, seconds: float, *, timeout_s: float, request: object = None) -> Any:
    """Run `calibrate_host.main` in a child process, on one thread, and return its JSON.

    However this call ends (Ctrl-C included), the child and all its children end too. They also end
    with this process: the child watches its standard input, which the death of the parent closes.

    Raises:
        MeasuringTimeoutError: the child took more than timeout_s seconds.
        MeasuringDiedError: a signal or the code that it timed ended the child.
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
            start_new_session=True,  # a process group, which Ctrl-C in a terminal does not reach
        ) as child,
    ):
        writer = threading.Thread(target=_write, args=(child.stdin, request), daemon=True)
        writer.start()  # a request may be larger than a pipe, and the child reads it late
        try:
            status = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise MeasuringTimeoutError(
                f"measuring this host took more than {timeout_s:.0f} s and was ended"
            ) from None
        finally:
            _end(child)
            writer.join()
        out.seek(0)
        err.seek(0)
        text, trouble = out.read().decode(), err.read().decode(errors="replace").strip()
        if status > 0 and trouble:
            raise CalibrationError(f"measuring this host failed: {trouble.splitlines()[-1]}")
        if status != 0 or not text.strip():
            raise MeasuringDiedError(
                f"the process that measures ended with {describe_exit(status)} "
                "before it had a result"
            )
        return json.loads(text.splitlines()[-1])


def _write(pipe: IO[bytes], request: object) -> None:
    """Write a line of JSON, until the other side closes the pipe."""
    line = json.dumps(request).encode() + b"\n"
    with suppress(OSError):
        while line:
            line = line[pipe.write(line) :]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a running child with its process group, so that no grandchild stays behind."""
    if child.poll() is not None:
        return
    host_system.kill_group(child.pid)
    child.wait()
