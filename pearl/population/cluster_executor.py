"""Execute runs on the nodes of a Ray cluster: each is a process of `pearl train` on its node.

One actor a node starts the processes, and sends the files of a run back at its end and whenever it
has a new checkpoint. No file system is shared. If a node is lost, its processes are lost too. Their
stages then resume on other nodes from the checkpoints that were sent back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl import run_folder
from pearl.cluster import Node, answer_s, connect, on_node
from pearl.errors import SpecError
from pearl.planning.runs import CHECKPOINT
from pearl.population.driver import StageEnd
from pearl.population.local_executor import GRACE_S, ProcessExecutor, start_process, stop_processes
from pearl.population.packing import RunHost
from pearl.population.run_files import SweepFolder
from pearl.population.schedulers import RunStage
from pearl.runtime.processes import Process
from pearl_devices.system import host_system

POLL_INTERVAL_S = 0.02
"""Time between two checks of the processes of a node, and of the answers of nodes."""
HEARTBEAT_S = 1.0
"""A node without events answers after this time."""
STALE_S = 60.0
"""Below this age no folder is stale: its agent may not hold the lock yet (assumed)."""
PREFIX, LOCK_FILE = "pearl-runs-", ".held"

Tree = dict[str, bytes]
"""Path below a folder → content of the file."""


def run_hosts(nodes: Sequence[Node]) -> tuple[RunHost, ...]:
    """Describe the nodes as hosts of runs."""
    return tuple(
        RunHost(n.name, tuple(range(n.cores)), n.memory_bytes or None, n.gpus > 0) for n in nodes
    )


@dataclass
class _AgentRun:
    run: str
    process: Process
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    sent_log_bytes: int = 0
    checkpoint: tuple[int, int] | None = None


class NodeAgent:
    """The Ray actor of a node: it starts processes of runs and sends their files back.

    Threads call its methods.
    """

    def __init__(self, cores_per_run: int, working_folder: str) -> None:
        with suppress(OSError):  # no file system is shared
            os.chdir(working_folder)
        self._usable, self._cores = host_system.usable_cpus(), cores_per_run
        remove_stale()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock_file = (self._folder / LOCK_FILE).open("wb")
        host_system.lock(self._lock_file.fileno())
        self._running: dict[int, _AgentRun] = {}
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def folder(self) -> str:
        """The temporary folder of the sweep on this node."""
        return str(self._folder)

    def start(self, slot: int, run: str, arguments: list[str], tree: Tree) -> None:
        """Start a run in a slot of this node. tree: the files of the run on the local host."""
        first = slot * self._cores
        cores = {self._usable[(first + i) % len(self._usable)] for i in range(self._cores)}
        log = self._folder / "logs" / f"{run}.log"
        try:
            write(self._folder, tree)
            log.unlink(missing_ok=True)
            running = _AgentRun(run, start_process(arguments, sorted(cores), log))
        except (OSError, SpecError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"{error.filename or self._folder}: {error.strerror}"
            text = f"{reason}\n".encode()
            event = {"slot": slot, "run": run, "tree": {}, "log": text, "code": 1}
            with self._lock:
                self._events.append(event)
            return
        running.sent = {name: stamp(self._folder / name) for name in tree}
        running.checkpoint = running.sent.get(f"{run}/{CHECKPOINT}")
        with self._lock:
            self._running[slot] = running

    def poll_events(self, within_s: float) -> list[dict[str, Any]]:
        """Wait for events, at most this long: {slot, run, tree, log, code} of every ended run.

        A run with a new checkpoint is an event too; then code is None.
        """
        end_s = time.monotonic() + within_s
        while True:
            with self._lock:
                events, self._events = self._events + self._run_events(), []
            if events or time.monotonic() > end_s:
                return events
            time.sleep(POLL_INTERVAL_S)

    def _run_events(self) -> list[dict[str, Any]]:
        return [event for slot in list(self._running) if (event := self._run_event(slot))]

    def _run_event(self, slot: int) -> dict[str, Any] | None:
        running = self._running[slot]
        exit_code = running.process.poll()
        file = self._folder / running.run / CHECKPOINT
        checkpoint = stamp(file) if file.exists() else None
        if exit_code is None and checkpoint == running.checkpoint:
            return None
        running.checkpoint = checkpoint
        if exit_code is not None:
            del self._running[slot]
        tree = {}
        files = [path for path in (self._folder / running.run).rglob("*") if path.is_file()]
        # The process may write at the same time. The checkpoint is read first, so no other file is
        # older than the checkpoint.
        for path in sorted(files, key=lambda path: path.name != CHECKPOINT):
            name = str(path.relative_to(self._folder))
            with suppress(FileNotFoundError):
                if running.sent.get(name) != (file_stamp := stamp(path)):
                    tree[name], running.sent[name] = path.read_bytes(), file_stamp
        log = (self._folder / "logs" / f"{running.run}.log").read_bytes()
        new_log, running.sent_log_bytes = log[running.sent_log_bytes :], len(log)
        return {"slot": slot, "run": running.run, "tree": tree, "log": new_log, "code": exit_code}

    def stop(self) -> list[dict[str, Any]]:
        """End all runs with checkpoints, remove the folder and return the last events."""
        with self._lock:
            stop_processes([r.process for r in self._running.values()])
            events = self._run_events()
        shutil.rmtree(self._folder, ignore_errors=True)
        return events


def remove_stale() -> None:
    """Remove the folders of agents that were killed: no process holds their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.stat()
            if status.st_uid != host_system.find_user() or time.time() - status.st_mtime < STALE_S:
                continue
            with (folder / LOCK_FILE).open("rb") as lock_file:
                host_system.lock(lock_file.fileno())
                shutil.rmtree(folder)


def stamp(path: Path) -> tuple[int, int]:
    """Time of the last change in nanoseconds, and size in bytes."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def write(folder: Path, tree: Mapping[str, bytes]) -> None:
    """Write files below a folder.

    Checkpoints come last: a run can resume from a checkpoint only with the files that belong to it.
    """
    for name in sorted(tree, key=lambda name: Path(name).name == CHECKPOINT):
        run_folder.write(folder, name, tree[name])


@dataclass
class _Host:
    """A node as the local host sees it.

    folder: of the agent. free: slots of the node without a run.
    running: slot of the node → slot of the executor, and the stage.
    answer: the pending call of `poll_events`.
    """

    node: Node
    agent: Any
    folder: Path
    free: list[int]
    running: dict[int, tuple[int, RunStage]] = field(default_factory=dict)
    answer: Any = None

    @property
    def name(self) -> str:
        return f"node {self.node.name} ({self.node.address})"


class ClusterExecutor(ProcessExecutor):
    """Slots of the nodes of a cluster.

    node_slots: node → number of its slots.
    cores: number of cores of a run.
    gpus: whether runs may use the GPUs of their node.
    on_event: is called with a sentence when a node is lost.
    """

    def __init__(
        self,
        node_slots: Mapping[Node, int],
        cores: int,
        *,
        gpus: bool,
        files: SweepFolder,
        interrupted: Callable[[], bool],
        poll: Callable[[], None],
        on_event: Callable[[str], None],
    ) -> None:
        slots = sum(node_slots.values())
        super().__init__(slots, files=files, interrupted=interrupted, poll=poll)
        self._on_event = on_event
        self._ray = connect()
        self._queue: list[tuple[int, RunStage]] = []
        self._hosts: list[_Host] = []
        actor = self._ray.remote(NodeAgent)
        for node, count in node_slots.items():
            resources = {"num_cpus": count * cores, "num_gpus": node.gpus if gpus else 0}
            options = actor.options(**resources, **on_node(node), max_concurrency=3)
            agent = options.remote(cores, os.getcwd())
            self._hosts.append(_Host(node, agent, Path(), list(range(count))))
        try:
            for host in self._hosts:
                host.folder = Path(self._first_answer(host, host.agent.folder.remote()))
        except BaseException:
            self._kill()
            raise

    def _first_answer(self, host: _Host, answer: Any) -> Any:
        """Wait for the first answer of an agent. Raises SpecError if there is none."""
        try:
            return self._ray.get(answer, timeout=answer_s())
        except self._ray.exceptions.GetTimeoutError:
            raise SpecError(
                f"{host.name} provides no {len(host.free)} slots within {answer_s():g} s; "
                f"other programs use its {host.node.cores} cores (`ray status`): end them, or "
                "allow more time (PEARL_ANSWER_S)"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise SpecError(f"{host.name}: {_line(error)}") from None

    def start(self, slot: int, stage: RunStage) -> None:
        self._queue.append((slot, stage))
        self._dispatch()

    def _dispatch(self) -> None:
        """Start queued stages on the nodes with the most free slots."""
        while self._queue:
            host = max(self._hosts, key=lambda h: len(h.free), default=None)
            if host is None or not host.free:
                break
            slot, stage = self._queue.pop(0)
            if (arguments := self._build_command(slot, stage, host.folder)) is None:
                continue
            node_slot = host.free.pop(0)
            host.running[node_slot] = slot, stage
            host.agent.start.remote(node_slot, stage.run, arguments, self._tree(stage))
        if not self._hosts:
            message = "no node is left to run on"
            self._ends += [StageEnd(slot, s, "died", None, message) for slot, s in self._queue]
            self._queue.clear()

    def _tree(self, stage: RunStage) -> Tree:
        """Read all that a run needs on its node: its spec, its plan and its run folder."""
        folder = self._files.path
        stored = [path for path in (folder / stage.run).rglob("*") if path.is_file()]
        files = [*self._files.write_inputs(stage), *stored]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def _collect_ends(self) -> None:
        self._dispatch()
        for host in self._hosts:
            if host.answer is None:
                host.answer = host.agent.poll_events.remote(HEARTBEAT_S)
        answers = [host.answer for host in self._hosts]
        if answers:
            ready, _ = self._ray.wait(answers, num_returns=1, timeout=POLL_INTERVAL_S)
            for host in [h for h in self._hosts if h.answer in ready]:
                self._receive(host)

    def _receive(self, host: _Host) -> None:
        """Receive the events of a node."""
        answer, host.answer = host.answer, None
        try:
            events = self._ray.get(answer, timeout=answer_s())
        except self._ray.exceptions.RayError as error:
            self._drop_node(host, error)
            return
        for event in events:
            self._apply(host, event)

    def _apply(self, host: _Host, event: Mapping[str, Any]) -> None:
        slot, stage = host.running[event["slot"]]
        write(self._files.path, event["tree"])
        log = self._files.log(stage.run)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(event["log"])
        if event["code"] is not None:
            del host.running[event["slot"]]
            host.free.append(event["slot"])
            self._end_stage(slot, stage, event["code"])

    def _drop_node(self, host: _Host, error: Exception) -> None:
        """Remove a node that is lost, or whose agent is; the stages on it have died."""
        message = f"{host.name} is lost"
        self._hosts.remove(host)
        rest = ", ".join(h.node.name for h in self._hosts) or "no node"
        verb = "continues" if len(self._hosts) < 2 else "continue"
        self._on_event(f"{message}: {_line(error)}; {rest} {verb}")
        self._ends += [
            StageEnd(slot, stage, "died", None, message) for slot, stage in host.running.values()
        ]
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(host.agent)

    def stop(self) -> None:
        answers = [(host, host.agent.stop.remote()) for host in self._hosts]
        end_s = time.monotonic() + GRACE_S + answer_s()
        for host, answer in answers:
            try:
                if host.answer is not None:
                    self._receive(host)
                for event in self._ray.get(answer, timeout=max(end_s - time.monotonic(), 0.1)):
                    self._apply(host, event)
            except self._ray.exceptions.RayError as error:
                self._on_event(f"{host.name}: {_line(error)}")

    def _kill(self) -> None:
        for host in self._hosts:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(host.agent)
        self._hosts.clear()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
