"""Processes that start with the project imported: what they get, how they end, who ends them."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from benchmarks.processes import below
from pearl.runtime import fork_server
from pearl.runtime.child_program import ChildProgram
from pearl.runtime.processes import start_process
from pearl_devices.system import host_system
from tests.needs import needs_linux

LONG_S = 120.0
"""Nothing takes that long; it bounds a hang."""


@contextmanager
def forked(program, *arguments, **options):
    """A process, and the file with its output."""
    reads, writes = os.pipe()
    with open(os.devnull, "rb") as nothing, open(reads, "rb") as output:
        try:
            program = f"tests.runtime.forked:{program}"
            given = nothing.fileno(), writes
            process = start_process(ChildProgram(program, arguments, *given, **options))
        finally:
            os.close(writes)
        try:
            yield process, output
        finally:
            process.kill()
            process.wait(LONG_S)


def test_a_process_has_the_arguments_environment_folder_and_cores_it_was_given(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PEARL_TEST_WORD", "set after the server was started")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    usable = host_system.usable_cpus()
    core = max(usable)
    drawn = []
    for name in ("one", "other"):
        with forked("tell", str(tmp_path / name), cores=[core]) as (process, output):
            assert process.wait(LONG_S) == 3
            assert output.read() == b"said\n"
        found = json.loads((tmp_path / name).read_text())
        drawn += found["drawn"]
        assert found["arguments"] == [str(tmp_path / name)]
        assert found["variable"] == os.environ["PEARL_TEST_WORD"]
        assert found["folder"] == str(tmp_path)
        assert found["cores"] == ([core] if host_system.PINS else usable)
        assert found["path"] == sys.path
        assert found["group"], "a signal to the group of the parent would reach the child"
        if host_system.FORKS:
            assert found["threads"] == 1, "a fork would copy the locks of other threads"
        assert process.cpu_s > 0.0
    assert len(set(drawn)) == 4, "two processes draw the same random numbers"


def test_file_descriptors_arrive_under_their_new_numbers():
    reads, writes = os.pipe()
    os.write(writes, b"through a pipe")
    with forked("copy", handles=[reads]) as (process, output):
        os.close(reads)
        assert output.read() == b"through a pipe"
        assert process.wait(LONG_S) == 0
    os.close(writes)


SERVER = needs_linux("a server that forks")


@SERVER
def test_more_file_descriptors_than_the_kernel_takes_are_refused():
    with (
        pytest.raises(OSError, match="251 file descriptors; 250 are the most"),
        forked("copy", handles=[0] * 251),
    ):
        pass


def test_how_a_process_ends_is_its_return_code():
    with forked("fail") as (process, output):
        assert process.wait(LONG_S) == 1
        assert b"RuntimeError: on purpose" in output.read()
    with forked("sleep") as (process, output):
        assert output.readline() == b"asleep\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.0)
        process.terminate()
        assert process.wait(LONG_S) == -signal.SIGTERM
        process.kill()  # one that has ended is left alone
    with forked("not_there") as (process, output):
        assert process.wait(LONG_S) == 1
        assert b"not_there" in output.read()


@SERVER
def test_one_server_serves_all_until_libraries_would_read_another_environment(monkeypatch):
    pids = []
    for threads in ("1", "1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        with forked("sleep") as (process, output):
            assert output.readline() == b"asleep\n"
            pids.append(fork_server._servers[-1].process.pid)
            assert psutil.Process(process.pid).ppid() == pids[-1]
    assert pids[0] == pids[1] != pids[2]


@SERVER
def test_a_server_that_was_killed_takes_its_children_along_and_has_a_successor():
    with forked("sleep") as (process, output):
        assert output.readline() == b"asleep\n"
        for server in fork_server._servers:
            server.process.kill()
        assert process.wait(LONG_S) == -signal.SIGKILL
        assert output.read() == b"", "the child lives on"
    with forked("sleep") as (process, output):
        assert output.readline() == b"asleep\n"


SCRIPT = """
import os, sys
from pearl.runtime.child_program import ChildProgram
from pearl.runtime.processes import start_process
from pearl_devices.system import host_system
from tests.needs import needs_linux
print("the script runs", flush=True)
with open(os.devnull, "rb") as nothing:
    process = start_process(ChildProgram(
        "tests.runtime.forked:sleep", [], nothing.fileno(), 1, dies_by={dies_by}))
process.wait()
"""


@pytest.mark.parametrize(
    "system", sorted({"portable", host_system.NAME.lower()} - {"macos", "unix"})
)
@pytest.mark.parametrize("dies_by", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_the_parent_that_was_killed_and_not_by_signals_to_its_group(
    dies_by, system
):
    """The script has no `if __name__ == "__main__"`: a process that ran it again would say so."""
    script = [sys.executable, "-c", SCRIPT.format(dies_by=int(dies_by))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PEARL_SYSTEM": system}
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, env=environment, process_group=0
    ) as parent:
        assert parent.stdout.readline() == b"the script runs\n"
        assert parent.stdout.readline() == b"asleep\n"
        begun = below(parent.pid)  # the server, where there is one, and the child
        assert len(begun) == 1 + (system == "linux")
        assert len({parent.pid, *map(os.getpgid, begun)}) == 1 + len(begun)
        parent.kill()
        assert parent.stdout.read() == b"", "the child holds the pipe, or the script ran twice"


def test_a_server_that_is_closed_is_waited_for():
    ours, its = socket.socketpair()
    server = fork_server._Server.__new__(fork_server._Server)
    server.requests = ours
    with its:
        server.process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=its)
        server.close()
    assert server.process.returncode is not None
