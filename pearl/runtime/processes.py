"""Processes of lanes, evaluations and runs: forked where the system allows it, else new ones."""

from __future__ import annotations

from pearl.runtime import fork_server, new_program
from pearl.runtime.child_program import ChildProgram
from pearl.runtime.fork_server import ForkedProcess
from pearl.runtime.new_program import NewProgram
from pearl_devices.system import host_system

Process = ForkedProcess | NewProgram


def start_process(child: ChildProgram) -> Process:
    """Start a process.

    Raises:
        OSError: it cannot be started, or it would get too many file descriptors.
    """
    return ForkedProcess(child) if host_system.FORKS else NewProgram(child)


def cpu_s() -> float:
    """Return CPU-seconds that are not yet counted as those of children of this process."""
    return fork_server.cpu_s()


def running_pids() -> list[int]:
    """Return the numbers of the running processes."""
    return [*fork_server.running_pids(), *new_program.running_pids()]
