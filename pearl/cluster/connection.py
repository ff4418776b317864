"""Connect to a running Ray cluster, list its nodes, and pin an actor or a task to a node.

PEARL never starts a head: Ray runs the code of everyone who reaches its ports, so the user decides
to start a cluster (`docs/trust.md`). Workers search for modules on the paths of this process. PEARL
refuses a node with other sources of pearl, because its results would differ.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.waits import naming
from pearl_devices.extras import install_hint

REACH_S = 5.0
"""Time limit of a connection to the port of the head (assumed)."""
ANSWER_S = 60.0
"""Default time limit of the answer of a node, including the start of its first worker process
(assumed; 2 to 6 s were measured)."""
ANSWER = "PEARL_ANSWER_S"
"""Environment variable with the time limit of the answer of a node, in seconds."""

ADDRESS, AUTHENTICATION = "RAY_ADDRESS", "RAY_AUTH_MODE"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Unless this variable is 0, Ray 2.60 replaces 127.0.0.1 by the address of the host, and listens on
every address."""
TRIES = ("RAY_NUM_REDIS_GET_RETRIES", "2")
"""Number of tries at a port that takes connections but is not a head: 40 s each, by default 20."""
START = (
    f"{LOOPBACK}=0 {AUTHENTICATION}=token ray start --head --node-ip-address=127.0.0.1 "
    "--node-name=here --include-dashboard=false"
)
"""The command that starts a cluster of one node which other machines cannot reach."""
PACKAGES = ("pearl", "pearl_devices", "pearl_estimators")
"""The packages whose sources must be equal on all nodes."""


@dataclass(frozen=True)
class Node:
    """A node of the cluster: a raylet, usually one a computer.

    name: of `ray start --node-name`, else the address; unique.
    id: of Ray, hexadecimal.
    address: IP address at which the other nodes reach the node.
    cores: number of CPU cores that Ray may allocate.
    gpus: number of GPUs that Ray may allocate.
    memory_bytes: main memory that Ray may allocate.
    """

    name: str
    id: str
    address: str
    cores: int
    gpus: int
    memory_bytes: float


_checked: set[str] = set()
"""Ids of nodes that have the Python, Ray and sources of this process."""


def connect() -> Any:
    """Connect to the cluster of `RAY_ADDRESS`, else to the one that `ray start` started here.

    Returns the module `ray`. Never starts a cluster. Warns if other machines can reach the cluster.

    Raises:
        SpecError: Ray is not installed, no cluster runs, or the cluster cannot be reached.
    """
    address = os.environ.get(ADDRESS) or _read_local_address()
    host = _reach(address)
    if local := host in ("127.0.0.1", "localhost"):
        os.environ.setdefault(LOOPBACK, "0")
    os.environ.setdefault(*TRIES)
    ray = _import_ray()
    if ray.is_initialized():
        return ray
    if local and ray._private.ray_constants.ENABLE_RAY_CLUSTER:
        raise SpecError(
            f"Ray was imported before pearl could restrict it to {host}; set {LOOPBACK}=0 before "
            "Python starts, or connect before you import ray"
        )
    _checked.clear()
    ending = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": f"{_path()}{os.pathsep}${{PYTHONPATH}}"}},
        )
    except (Exception, SystemExit) as error:  # Ray raises many kinds
        ray.shutdown()
        raise SpecError(_refusal(address, error)) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ending)  # Ray installs its own handler
    if not local:
        token = os.environ.get(AUTHENTICATION, "").lower() == "token"
        warnings.warn(
            f"joined the Ray cluster at {address}: Ray listens on every address of its hosts, this "
            f"one too, and runs the code of everyone who reaches it"
            f"{' with its token' if token else ''}",
            stacklevel=2,
        )
    return ray


def nodes() -> tuple[Node, ...]:
    """List the live nodes of the cluster by name, and check that their sources equal ours.

    Raises:
        SpecError: there is no cluster, two nodes share a name, or a node differs or is silent.
    """
    ray = connect()
    alive = sorted((_node(entry) for entry in ray.nodes() if entry["Alive"]), key=lambda n: n.name)
    for name, count in Counter(n.name for n in alive).items():
        if count > 1:
            addresses = ", ".join(n.address for n in alive if n.name == name)
            raise SpecError(
                f"cluster: {count} nodes are named {name} (at {addresses}); start each with a "
                "unique name: ray start --node-name=NAME"
            )
    _compare(ray, [n for n in alive if n.id not in _checked])
    return tuple(alive)


def answer_s() -> float:
    """The time limit of the answer of a node, in seconds: `ANSWER`, else `ANSWER_S`.

    Raises:
        SpecError: the variable is not a number of seconds from 1 to 86400.
    """
    text = os.environ.get(ANSWER) or str(ANSWER_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 86_400:
        raise SpecError(
            f"{ANSWER} is {text!r}; a number of seconds from 1 to 86400 is needed, the time limit "
            f"of the answer of a node; unset it for {ANSWER_S:g} s"
        )
    return seconds


def on_node(node: Node) -> dict[str, Any]:
    """Make the options for Ray's `options` that pin an actor or a task to a node.

    If the node dies, the actor or the task fails: Ray does not move it to another node.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}


def naming_nodes(asked: Sequence[Node]) -> AbstractContextManager[None]:
    """Within this context, say which nodes were asked if their answers take long."""
    names = ", ".join(f"{node.name} ({node.address})" for node in asked)
    return naming(f"one of the Ray nodes {names}", f"after {answer_s():g} s it is refused")


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SpecError(
            f"Ray cannot be imported here ({error}); on every node of the cluster: "
            f"{install_hint('ray')}"
        ) from None
    return ray


def _path() -> str:
    """The module paths of this process, with the working directory, for workers."""
    paths = dict.fromkeys(os.path.abspath(p) for p in (*sys.path, "") if not p.endswith(".zip"))
    return os.pathsep.join(paths)


def _read_local_address() -> str:
    """Read the address of the head that `ray start` started last on this machine."""
    file = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        return file.read_text().strip()
    except OSError:
        raise SpecError(
            f"no Ray cluster runs on this machine; start one ({START}), or set {ADDRESS} to "
            "HOST:PORT of the head of a cluster that this machine has joined"
        ) from None


def _reach(address: str) -> str:
    """Check that a port takes connections, and return its host.

    Without this check Ray would try for minutes, or end the process.

    Raises:
        SpecError: the address is wrong, or nothing takes a connection there.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SpecError(
            f"{ADDRESS} is {address!r}; HOST:PORT of the head of a cluster is needed that this "
            "machine has joined: ray start --address=HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise SpecError(
            f"the head of the Ray cluster at {address} does not answer ({error}); start it on "
            f"{host}, or set {ADDRESS} to HOST:PORT of another head"
        ) from None
    return host


def _refusal(address: str, error: BaseException) -> str:
    """Describe why Ray could not connect, and the remedy."""
    chain: list[BaseException] = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    text, short = " ".join(map(str, chain)), " ".join(str(error).split())[:400]
    where = f"at {address}"
    if "ersion mismatch" in text:
        return (
            f"the cluster {where} has another Ray or Python than this process: {short}; "
            "install the same on every node, or run pearl with the interpreter of the cluster"
        )
    if "uthenticat" in text or "token" in text:
        return (
            f"the cluster {where} requires a token that this process does not have; set "
            f"{AUTHENTICATION}=token and RAY_AUTH_TOKEN_PATH to the cluster's token file"
        )
    if "No node info" in text or "node to connect" in text:
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


def _make_inspect() -> Callable[[tuple[str, ...]], dict[str, str]]:
    """Make a function that returns the versions and the digests of sources of a process.

    Ray pickles a nested function by value, so a node without pearl can run it too.
    """

    def inspect(packages: tuple[str, ...]) -> dict[str, str]:
        import hashlib
        import importlib.util
        import os
        import platform

        versions = {"Python": platform.python_version()}
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
            versions[package] = digest.hexdigest() if roots else ""
        return versions

    return inspect


def _compare(ray: Any, new: list[Node]) -> None:
    """Raise SpecError if a node has another Python or other sources, or does not answer."""
    if not new:
        return
    inspect = _make_inspect()
    ours = inspect(PACKAGES)
    task = ray.remote(inspect).options
    answers = {n.id: task(num_cpus=0, max_retries=0, **on_node(n)).remote(PACKAGES) for n in new}
    with naming_nodes(new):
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=answer_s())
    problems = []
    for node in new:
        problem = _difference(ray, node, answers[node.id], ours)
        if problem is None:
            _checked.add(node.id)
        else:
            problems.append(problem)
    if problems:
        raise SpecError(*problems)


def _difference(ray: Any, node: Node, answer: Any, ours: Mapping[str, str]) -> str | None:
    """Describe how a node differs from this process, and the remedy; None if it does not."""
    where = f"node {node.name} ({node.address})"
    try:
        theirs = ray.get(answer, timeout=0.1)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(answer, force=True)
        return (
            f"{where} does not answer within {answer_s():g} s; check its load and whether this "
            f"machine reaches its ports, give it more time ({ANSWER}=300), or end Ray on it: "
            "ray stop"
        )
    except ray.exceptions.RayError as error:
        return f"{where} cannot run anything: {' '.join(str(error).split())[:300]}"
    for name, value in ours.items():
        if theirs[name] == value:
            continue
        if not theirs[name]:
            return (
                f"{where} has no package {name}; install the pearl-toolkit of this machine on it, "
                "or put its folder on the path under the same name"
            )
        if name in PACKAGES:
            return (
                f"{where} has other sources of {name} than this machine, so its results would "
                "differ; install the same version on both, then restart Ray on the node"
            )
        return f"{where} has {name} {theirs[name]}, this machine {value}; install the same on both"
    return None
