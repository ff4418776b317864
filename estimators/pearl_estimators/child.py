"""A task of `measuring` in a process of its own, so that the caller imports no torch."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from pearl_estimators.calibration import CalibrationError

_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB")


def in_child(task: str, seconds: float, *, timeout_s: float, given: object = None) -> Any:
    """Run `main` of `measuring` in a process of its own, on one thread, and return its JSON.

    The child ends when this process does: it watches its standard input, which the death of the
    parent closes.
    """
    import subprocess

    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environment.update({f"{library}_NUM_THREADS": "1" for library in _THREADS})
    command = [sys.executable, "-m", "pearl_estimators.measuring", task, repr(seconds)]
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment
        ) as child,
    ):
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(given).encode() + b"\n")
            child.stdin.flush()
            status = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise CalibrationError(
                f"measuring this host took more than {timeout_s:.0f} s and was ended; run "
                "`pearl calibrate` on a quieter machine, or plan with `devices` limited to others"
            ) from None
        except BrokenPipeError:
            status = child.wait(timeout=timeout_s)
        finally:
            child.kill()
        out.seek(0)
        err.seek(0)
        text, trouble = out.read().decode(), err.read().decode(errors="replace").strip()
        if status != 0:
            last = trouble.splitlines()[-1] if trouble else f"status {status}"
            raise CalibrationError(f"measuring this host failed: {last}")
        return json.loads(text.splitlines()[-1])
