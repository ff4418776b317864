"""A program for a process of its own, however the process starts."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

KILL = int(getattr(signal, "SIGKILL", signal.SIGTERM))
"""The signal that ends a process at once."""


@dataclass(frozen=True)
class ChildProgram:
    """A function that runs in a process of its own.

    program: `module:function`; the function runs in the child, and returns its exit status.
    arguments: `sys.argv[1:]` of the child.
    stdin, output: file descriptors; output is for both standard output and standard error.
    handles: further file descriptors; for each of them, `OLD=NEW`, the numbers here and in the
        child, follows the arguments.
    environment: variables that replace those of `os.environ` or are added to them.
    cores: cores on which the child may run; default those of this process.
    dies_by: the signal that the child gets if this process ends before it.
    """

    program: str
    arguments: Sequence[str]
    stdin: int
    output: int
    handles: Collection[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Collection[int] = ()
    dies_by: int = KILL
