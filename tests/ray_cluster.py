"""Clusters of Ray on this machine for tests: raylets on the loopback or on hosts with a network
between them, in sessions and a folder of their own, of which nothing stays."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.networks import Host

START_S = 600.0
"""A raylet is there within this time, on the busiest machine."""
TOKEN = secrets.token_hex(32)
"""Ray keeps the first token that a process has shown: all clusters of a process have the same."""
OPTIONS = ("--disable-usage-stats", "--include-log-monitor=false")

HEAD = "from ray.scripts.scripts import main; main()"
FURTHER = f"""
from ray._private import ray_constants, services
services.resolve_ip_for_localhost = lambda host: host
ray_constants.ENABLE_RAY_CLUSTER = True
{HEAD}
"""
"""A second raylet of a loopback is for tests alone; the command line refuses it."""


@dataclass
class Cluster:
    """A cluster under way.

    address: of the head. nodes: name → process of `ray start --block`, its group's leader.
    folder: of all its files. hosts: node → its host, where they have networks of their own.
    settings: environment variables of a process that is to join it.
    """

    address: str
    folder: Path
    environment: dict[str, str]
    hosts: dict[str, Host]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, cores: int, *more: str) -> None:
        """Start a node."""
        port = self.address.rpartition(":")[2]
        program, role = HEAD, ["--head", f"--port={port}", "--include-dashboard=false"]
        host = self.hosts.get(name)
        if self.nodes:
            program, role = HEAD if host else FURTHER, [f"--address={self.address}"]
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-c", program, "start", *role, *OPTIONS, "--block"]
        address = host.address if host else "127.0.0.1"
        command += [f"--node-ip-address={address}", f"--node-name={name}"]
        command += [f"--num-cpus={cores}", f"--temp-dir={self.folder}", *more]
        command += ["--object-store-memory=80000000"]
        with log.open("wb") as words:
            process = subprocess.Popen(
                host.inside(*command) if host else command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self.nodes[name] = process
        end_s = time.monotonic() + START_S
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"{name} did not start: {log.read_text()}")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill a node, with all that runs on it."""
        process = self.nodes.pop(name)
        for pid in members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(START_S)


def members(leader: int) -> list[int]:
    """The processes of a session, whatever groups they made, and their children."""
    found, parents = [], {}
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            parents[process.pid] = process.ppid()
            if os.getsid(process.pid) == leader:
                found.append(process.pid)
    grown = True
    while grown:
        more = [pid for pid, parent in parents.items() if parent in found and pid not in found]
        found += more
        grown = bool(more)
    return found


def listening(pids: Sequence[int]) -> list[tuple[int, str]]:
    """The (process, address:port) pairs that these processes listen at, TCP, of all interfaces."""
    found = []
    for each in pids:
        with suppress(psutil.Error):
            for made in psutil.Process(each).net_connections("tcp"):
                if made.status == psutil.CONN_LISTEN:
                    host = made.laddr.ip.removeprefix("::ffff:")
                    found.append((each, f"{host}:{made.laddr.port}"))
    return sorted(found)


def free_port(address: str) -> int:
    with socket.socket() as made:
        made.bind((address, 0))
        return int(made.getsockname()[1])


@contextmanager
def raylets(
    cores: Sequence[int] = (1, 1), names: Sequence[str] = "ab", hosts: Sequence[Host] = ()
) -> Iterator[Cluster]:
    """A cluster with a node of so many cores each. hosts: of the nodes, else all are on the
    loopback of this machine."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short paths alone
    token = folder / "token"
    token.write_text(TOKEN)
    address = f"{hosts[0].address}:6379" if hosts else f"127.0.0.1:{free_port('127.0.0.1')}"
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1" if hosts else "0",
    }
    places = dict(zip(names, hosts, strict=False))
    cluster = Cluster(address, folder, {**os.environ, **own}, places)
    try:
        for name, count in zip(names, cores, strict=True):
            cluster.start(name, count)
        cluster.settings = {**own, "RAY_ADDRESS": address}
        yield cluster
    finally:
        for name in reversed(list(cluster.nodes)):
            cluster.kill(name)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def entered(cluster: Cluster) -> Iterator[Cluster]:
    """Meanwhile `RAY_ADDRESS` and its token are set here; afterwards this process has left it."""
    kept = {name: os.environ.get(name) for name in cluster.settings}
    os.environ |= cluster.settings
    try:
        yield cluster
    finally:
        if (ray := sys.modules.get("ray")) and ray.is_initialized():
            ray.shutdown()
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def ray_cluster(
    cores: Sequence[int] = (1, 1), names: Sequence[str] = "ab", hosts: Sequence[Host] = ()
) -> Iterator[Cluster]:
    """The same, entered: a cluster of its own for who kills its nodes."""
    with raylets(cores, names, hosts) as cluster, entered(cluster):
        yield cluster
