"""Which functions of a tree a process calls, written down at the first call of each.

Copied beside the traced tree as `sitecustomize.py`, so that processes which tests start tell too,
and those that are killed have told. Functions that numba compiled are not seen. It imports nothing
of the project.
"""

import os
import sys
import threading
from types import FrameType
from typing import Any

ROOT, HITS = "MUTATION_ROOT", "MUTATION_HITS"
"""Environment variables: the tree, with a slash at its end, and the file to write to."""

_seen: set[tuple[str, str]] = set()
_blind: list[Any] = []


def anew(hits: str) -> None:
    """From now on this process and those it starts write to the file `hits`."""
    os.environ[HITS] = hits
    _seen.clear()


def begin() -> None:
    threading.settrace(_called)
    sys.settrace(_called)


def _called(frame: FrameType, event: str, given: object) -> None:
    code = frame.f_code
    key = code.co_filename, code.co_qualname
    if key not in _seen:
        _seen.add(key)
        if key[0].endswith("numba/core/dispatcher.py") and not _blind:
            _look_away(frame.f_globals["Dispatcher"])
        root = os.environ.get(ROOT, "")
        if root and key[0].startswith(root) and HITS in os.environ:
            handle = os.open(os.environ[HITS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, f"{key[0].removeprefix(root)}\t{key[1]}\n".encode())
            os.close(handle)


def _look_away(dispatcher: Any) -> None:
    """From now on nothing is traced while numba compiles, which calls too much to watch."""
    compiled = dispatcher.compile

    def compile(self: Any, signature: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(None)
        try:
            return compiled(self, signature)
        finally:
            sys.settrace(before)

    dispatcher.compile = compile
    _blind.append(dispatcher)


if HITS in os.environ and __name__ == "sitecustomize":
    begin()
