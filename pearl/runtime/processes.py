"""Processes of lanes, evaluations and runs: forked where the system allows it, else new ones."""

from __future__ import annotations

from collections.abc import Callable

from pearl.runtime import fork_server, new_program
from pearl.runtime.fork_server import ForkedProcess
from pearl.runtime.new_program import NewProgram
from pearl_devices.system import host_system

Process = ForkedProcess | NewProgram

start_process: Callable[..., Process] = ForkedProcess if host_system.FORKS else NewProgram
"""Start a process; its arguments are those of `ForkedProcess`."""


def cpu_s() -> float:
    """Return CPU-seconds that are not yet counted as those of children of this process."""
    return fork_server.cpu_s()


def running_pids() -> list[int]:
    """Return the numbers of the running processes."""
    return [*fork_server.running_pids(), *new_program.running_pids()]
