"""Which functions of a tree a process calls, written to a file.

Copied beside the traced tree as `sitecustomize.py`, so that processes which tests start tell too,
each function at its first call: those that are killed have told. Functions that numba compiled are
not seen. It imports nothing of the project.
"""

import os
import sys
import threading
from cProfile import Profile
from types import CodeType, FrameType

ROOT, HITS = "MUTATION_ROOT", "MUTATION_HITS"
"""Environment variables: the tree, with a slash at its end, and the file to write to."""

_seen: set[CodeType] = set()
_profiles: list[Profile] = []


def anew(hits: str) -> None:
    """From now on this process and those it starts write to the file `hits`. Of this thread it is
    written when the next file begins: its profiler is quicker than a trace."""
    while _profiles:
        profile = _profiles.pop()
        profile.disable()
        for entry in profile.getstats():
            if isinstance(entry.code, CodeType):
                _note(entry.code)
    os.environ[HITS] = hits
    _seen.clear()
    threading.settrace(_called)
    _profiles.append(Profile(subcalls=False, builtins=False))
    _profiles[-1].enable()


def _note(code: CodeType) -> None:
    root = os.environ.get(ROOT, "")
    if root and code.co_filename.startswith(root) and HITS in os.environ:
        with open(os.environ[HITS], "a") as file:
            file.write(f"{code.co_filename.removeprefix(root)}\t{code.co_qualname}\n")


def _called(frame: FrameType, event: str, given: object) -> None:
    if frame.f_code not in _seen:
        _seen.add(frame.f_code)
        _note(frame.f_code)


if HITS in os.environ and __name__ == "sitecustomize":
    threading.settrace(_called)
    sys.settrace(_called)
