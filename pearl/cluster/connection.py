"""A Ray cluster that runs already: connecting to it, its nodes, and a node to run something on.

Nothing here starts a head: Ray runs the code of whoever reaches its ports, so that a cluster is the
user's to start (`docs/trust.md`). Workers find modules where this process does, by path; a node
whose sources of pearl differ is refused by name, for it would not compute the same.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import SpecError

REACH_S = 5.0
"""Seconds within which the head's port takes a connection (assumed)."""
ANSWER_S = 60.0
"""Seconds within which a node answers, its first worker process started (assumed; 2 to 6 seen),
unless `ANSWER` says otherwise."""
ANSWER = "PEARL_ANSWER_S"
"""The variable with the seconds within which a node answers."""

ADDRESS, AUTHENTICATION = "RAY_ADDRESS", "RAY_AUTH_MODE"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray 2.60 puts the host's own address in the place of 127.0.0.1 unless this variable is 0, and
listens on every address then."""
TRIES = ("RAY_NUM_REDIS_GET_RETRIES", "2")
"""How often Ray asks a port that is no head's but takes connections: 40 s each, else 20 times."""
START = (
    f"{LOOPBACK}=0 {AUTHENTICATION}=token ray start --head --node-ip-address=127.0.0.1 "
    "--node-name=here --include-dashboard=false"
)
"""A cluster of one node that other machines cannot reach."""
PACKAGES = ("pearl", "pearl_devices", "pearl_estimators")
"""The packages whose sources are equal on all nodes."""


@dataclass(frozen=True)
class Node:
    """A node of the cluster: a raylet, mostly one a computer.

    name: as `ray start --node-name` has it, else its address; no two nodes share one.
    id: Ray's, hexadecimal. address: IP, as the other nodes reach it.
    cores, gpus: that Ray may hand out there. memory_bytes: likewise, of main memory.
    """

    name: str
    id: str
    address: str
    cores: int
    gpus: int
    memory_bytes: float


_alike: set[str] = set()
"""Ids of nodes whose Python, Ray and sources were found to be those of this process."""


def connect() -> Any:
    """The module `ray`, connected to the cluster of `RAY_ADDRESS`, else the one that `ray start`
    made on this machine. Never starts one. Warns where the cluster can be reached from elsewhere.

    Raises:
        SpecError: Ray is not installed, no cluster runs, or it cannot be reached; with the remedy.
    """
    address = os.environ.get(ADDRESS) or _started_here()
    host = _reach(address)
    if local := host in ("127.0.0.1", "localhost"):
        os.environ.setdefault(LOOPBACK, "0")
    os.environ.setdefault(*TRIES)
    ray = _installed()
    if ray.is_initialized():
        return ray
    if local and ray._private.ray_constants.ENABLE_RAY_CLUSTER:
        raise SpecError(
            f"Ray was imported before pearl could keep it on {host}; set {LOOPBACK}=0 before "
            "Python starts, or connect first"
        )
    _alike.clear()
    ending = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": f"{_path()}{os.pathsep}${{PYTHONPATH}}"}},
        )
    except (Exception, SystemExit) as error:  # whatever Ray ends with
        ray.shutdown()
        raise SpecError(_refusal(address, error)) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ending)  # Ray puts one of its own there
    if not local:
        token = os.environ.get(AUTHENTICATION, "").lower() == "token"
        warnings.warn(
            f"joined the Ray cluster at {address}: Ray listens on every address of its hosts, this "
            f"one too, and runs the code of whoever reaches it{' with its token' if token else ''}",
            stacklevel=2,
        )
    return ray


def nodes() -> tuple[Node, ...]:
    """The nodes of the cluster that are alive, by name. Each one's Python, Ray and sources of pearl
    are those of this process.

    Raises:
        SpecError: not connected, two nodes of one name, or a node that differs or does not answer.
    """
    ray = connect()
    found = sorted((_node(entry) for entry in ray.nodes() if entry["Alive"]), key=lambda n: n.name)
    for name, count in Counter(n.name for n in found).items():
        if count > 1:
            places = ", ".join(n.address for n in found if n.name == name)
            raise SpecError(
                f"cluster: {count} nodes are named {name} (at {places}); start each with a name of "
                "its own: ray start --node-name=NAME"
            )
    _compare(ray, [n for n in found if n.id not in _alike])
    return tuple(found)


def answer_s() -> float:
    """Seconds within which a node answers, begins a run or lends its cores: `ANSWER`, else
    `ANSWER_S`.

    Raises:
        SpecError: the variable is no number of seconds.
    """
    given = os.environ.get(ANSWER) or str(ANSWER_S)
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 86_400:
        raise SpecError(
            f"{ANSWER} is {given!r}; a number of seconds from 1 to 86400 is needed, within which "
            f"the nodes of the cluster answer; without it {ANSWER_S:g} s count"
        )
    return seconds


def on_node(node: Node) -> dict[str, Any]:
    """Options of an actor or a task, for Ray's `options`, that pin it to a node.

    Where that node dies, the actor or the task fails; it goes nowhere else.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}


def _installed() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SpecError(
            f"Ray cannot be imported here ({error}); pip install 'pearl-toolkit[ray]' on every "
            "node of the cluster"
        ) from None
    return ray


def _path() -> str:
    """Where this process finds modules, the working directory among it, for workers."""
    found = dict.fromkeys(os.path.abspath(p) for p in (*sys.path, "") if not p.endswith(".zip"))
    return os.pathsep.join(found)


def _started_here() -> str:
    """The address of the head that `ray start` started last on this machine."""
    file = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        return file.read_text().strip()
    except OSError:
        raise SpecError(
            f"no Ray cluster runs on this machine; start one ({START}), or set {ADDRESS} to "
            "HOST:PORT of the head of one that this machine has joined"
        ) from None


def _reach(address: str) -> str:
    """The host of an address.

    Raises:
        SpecError: nothing takes a connection there. Ray would try for minutes, or end the process.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SpecError(
            f"{ADDRESS} is {address!r}; HOST:PORT of the head of a cluster is needed, which this "
            "machine has joined: ray start --address=HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise SpecError(
            f"the head of the Ray cluster at {address} does not answer ({error}); start it on "
            f"{host}, or set {ADDRESS} to HOST:PORT of another"
        ) from None
    return host


def _refusal(address: str, error: BaseException) -> str:
    """Why Ray could not connect, and the remedy."""
    chain: list[BaseException] = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    said, short = " ".join(map(str, chain)), " ".join(str(error).split())[:400]
    where = f"at {address}"
    if "ersion mismatch" in said:
        return (
            f"the cluster {where} has another Ray or Python than this process: {short}; "
            "install the same on every node, or run pearl with the interpreter of the cluster"
        )
    if "uthenticat" in said or "token" in said:
        return (
            f"the cluster {where} asks for a token that this process does not have; set "
            f"{AUTHENTICATION}=token and RAY_AUTH_TOKEN_PATH to the cluster's token file"
        )
    if "No node info" in said or "node to connect" in said:
        return (
            f"this machine is no node of the cluster {where}; join it first: "
            f"ray start --address={address} --node-name=NAME"
        )
    return f"the Ray cluster {where} cannot be joined: {type(error).__name__}: {short}"


def _node(entry: Mapping[str, Any]) -> Node:
    resources = entry["Resources"]
    return Node(
        name=entry["NodeName"] or entry["NodeManagerAddress"],
        id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        cores=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        memory_bytes=float(resources.get("memory", 0)),
    )


def _look() -> Callable[[tuple[str, ...]], dict[str, str]]:
    """A function that says what a process has. It is made anew, so that it travels by value: a node
    without pearl answers too."""

    def look(packages: tuple[str, ...]) -> dict[str, str]:
        import hashlib
        import importlib.util
        import os
        import platform

        found = {"Python": platform.python_version()}
        for package in packages:
            try:
                spec = importlib.util.find_spec(package)
            except Exception:
                spec = None
            roots = list(spec.submodule_search_locations or ()) if spec else []
            digest = hashlib.sha256()
            for root in roots:
                for folder, folders, files in os.walk(root):
                    folders.sort()
                    for file in sorted(f for f in files if f.endswith(".py")):
                        path = os.path.join(folder, file)
                        with open(path, "rb") as opened:
                            text = opened.read()
                        name = os.path.relpath(path, root)
                        digest.update(f"\0{name}\0{len(text)}\0".encode() + text)
            found[package] = digest.hexdigest() if roots else ""
        return found

    return look


def _compare(ray: Any, new: list[Node]) -> None:
    """Raises SpecError where one of these nodes has another Python or other sources, or is mute."""
    if not new:
        return
    look = _look()
    ours = look(PACKAGES)
    task = ray.remote(look).options
    asked = {n.id: task(num_cpus=0, max_retries=0, **on_node(n)).remote(PACKAGES) for n in new}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=answer_s())
    problems = []
    for node in new:
        problem = _difference(ray, node, asked[node.id], ours)
        if problem is None:
            _alike.add(node.id)
        else:
            problems.append(problem)
    if problems:
        raise SpecError(*problems)


def _difference(ray: Any, node: Node, answer: Any, ours: Mapping[str, str]) -> str | None:
    """How a node differs from this process, and the remedy; None where it does not."""
    where = f"node {node.name} ({node.address})"
    try:
        theirs = ray.get(answer, timeout=0.1)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(answer, force=True)
        return (
            f"{where} does not answer within {answer_s():g} s; look at its load and whether its "
            f"ports can be reached from here, give it more time ({ANSWER}=300), or end Ray there: "
            "ray stop"
        )
    except ray.exceptions.RayError as error:
        return f"{where} cannot run anything: {' '.join(str(error).split())[:300]}"
    for name, value in ours.items():
        if theirs[name] == value:
            continue
        if not theirs[name]:
            return (
                f"{where} has no package {name}; install pearl-toolkit there, the version of this "
                "machine, or put its folder on the path under the same name"
            )
        if name in PACKAGES:
            return (
                f"{where} has other sources of {name} than this machine, and would not compute the "
                "same; install the same version on both, then start Ray there anew"
            )
        return f"{where} has {name} {theirs[name]}, this machine {value}; install the same on both"
    return None
