"""Runs on the nodes of a Ray cluster: each is `pearl train` in a process of its node.

An actor a node begins the processes and sends home what is in their folders: at the end of a run,
and whenever it has a new checkpoint. No file system is shared. A node that is lost takes its
processes along; their stretches go on elsewhere from the checkpoints that are home.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.cluster import Node, answer_s, connect, nodes, on_node
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.planning.runs import CHECKPOINT
from pearl.population.driver import StageEnd
from pearl.population.local_executor import GRACE_S, ended, start_process
from pearl.population.packing import RunPlace
from pearl.population.run_files import Files
from pearl.population.schedulers import RunStage
from pearl.runtime.fork_server import ForkedProcess

LOOK_S = 0.02
"""Between two looks at the processes of a node."""
QUIET_S = 1.0
"""A node that has nothing to say says so after this time."""
STALE_S = 60.0
"""A folder of runs is not removed within this time, in which its actor begins (assumed)."""
PREFIX, HELD = "pearl-runs-", ".held"
ON = ("ray",)
"""Where a population can run but here."""

Tree = dict[str, bytes]
"""Path below a folder → content of the file."""


def joined(on: str | None) -> tuple[Node, ...]:
    """The nodes of the cluster that runs are to be on; none for this machine.

    Raises:
        SpecError: there is no such cluster, or a node cannot be used.
    """
    if on is None:
        return ()
    if on not in ON:
        raise SpecError(f"on is {on!r}; {', '.join(ON)} is needed, or nothing for this machine")
    return nodes()


def places(found: Sequence[Node]) -> tuple[RunPlace, ...]:
    """The nodes as places for runs."""
    return tuple(
        RunPlace(n.name, tuple(range(n.cores)), n.memory_bytes or None, n.gpus > 0) for n in found
    )


@dataclass
class _RunThere:
    run: str
    process: ForkedProcess
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    told: int = 0
    checkpoint: tuple[int, int] | None = None


class NodeAgent:
    """The processes of runs on a node, for the actor there. Its methods are called by threads.

    folder: for all files, until the end.
    """

    def __init__(self, cores_per_run: int, working_folder: str) -> None:
        with suppress(OSError):  # no file system is shared
            os.chdir(working_folder)
        usable = sorted(os.sched_getaffinity(0))
        self._usable, self._cores = usable, cores_per_run
        remove_stale()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._held = (self._folder / HELD).open("wb")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._running: dict[int, _RunThere] = {}
        self._refused: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def folder(self) -> str:
        """Where the folder of the population is on this node."""
        return str(self._folder)

    def start(self, slot: int, run: str, arguments: list[str], tree: Tree) -> None:
        """Begin a run in a slot of this node. tree: files that are not here or not as at home."""
        first = slot * self._cores
        held = {self._usable[(first + i) % len(self._usable)] for i in range(self._cores)}
        log = self._folder / "logs" / f"{run}.log"
        try:
            write(self._folder, tree)
            log.parent.mkdir(exist_ok=True)
            log.unlink(missing_ok=True)
            running = _RunThere(run, start_process(arguments, sorted(held), log))
        except OSError as error:
            why = f"{error.filename or self._folder}: {error.strerror}\n".encode()
            refused = {"slot": slot, "run": run, "tree": {}, "log": why, "code": 1}
            with self._lock:
                self._refused.append(refused)
            return
        running.sent = {name: stamp(self._folder / name) for name in tree}
        running.checkpoint = running.sent.get(f"{run}/{CHECKPOINT}")
        with self._lock:
            self._running[slot] = running

    def heard(self, within_s: float) -> list[dict[str, Any]]:
        """What there is to say: {slot, run, tree, log, code} of every run that has ended, and of
        every one with a new checkpoint, whose code is None. Waits so long for something."""
        end_s = time.monotonic() + within_s
        while True:
            with self._lock:
                news, self._refused = self._refused, []
                news += [said for slot in list(self._running) if (said := self._news(slot))]
            if news or time.monotonic() > end_s:
                return news
            time.sleep(LOOK_S)

    def _news(self, slot: int) -> dict[str, Any] | None:
        running = self._running[slot]
        code = running.process.poll()
        kept = self._folder / running.run / CHECKPOINT
        found = stamp(kept) if kept.exists() else None
        if code is None and found == running.checkpoint:
            return None
        running.checkpoint = found
        if code is not None:
            del self._running[slot]
        tree = {}
        files = [path for path in (self._folder / running.run).rglob("*") if path.is_file()]
        for path in sorted(
            files, key=lambda path: path.name != CHECKPOINT
        ):  # never newer: the rest
            name = str(path.relative_to(self._folder))
            with suppress(FileNotFoundError):
                if running.sent.get(name) != (at := stamp(path)):
                    tree[name], running.sent[name] = path.read_bytes(), at
        words = (self._folder / "logs" / f"{running.run}.log").read_bytes()
        log, running.told = words[running.told :], len(words)
        return {"slot": slot, "run": running.run, "tree": tree, "log": log, "code": code}

    def stop(self) -> list[dict[str, Any]]:
        """End all runs, each with its checkpoint, and say the last of them."""
        with self._lock:
            processes = [r.process for r in self._running.values()]
            for process in processes:
                with suppress(ProcessLookupError):
                    process.terminate()
            end_s = time.monotonic() + GRACE_S
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(end_s - time.monotonic(), 0.0))
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait(GRACE_S)
            said = [self._news(slot) for slot in list(self._running)]
        shutil.rmtree(self._folder, ignore_errors=True)
        return [news for news in said if news]


def remove_stale() -> None:
    """Remove the folders of actors that were killed before they ended: nobody holds these."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            at = folder.stat()
            if at.st_uid != os.getuid() or time.time() - at.st_mtime < STALE_S:
                continue
            with (folder / HELD).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


def stamp(path: Path) -> tuple[int, int]:
    at = path.stat()
    return at.st_mtime_ns, at.st_size


def write(folder: Path, tree: Mapping[str, bytes]) -> None:
    """Write files below a folder; checkpoints last: none is newer than what goes with it."""
    for name in sorted(tree, key=lambda name: Path(name).name == CHECKPOINT):
        write_atomically(folder / name, tree[name])


@dataclass
class _Host:
    """A node as home sees it. free: its slots without a run. running: slot there → slot at home and
    the stretch. listening: the answer that is waited for."""

    node: Node
    actor: Any
    at: Path
    free: list[int]
    running: dict[int, tuple[int, RunStage]] = field(default_factory=dict)
    listening: Any = None


class ClusterExecutor:
    """Slots of the nodes of a cluster. Leave it by `with`, so that no process stays.

    held: node → how many runs it has at once. cores: of a run.
    gpus: whether runs may use the GPUs of their node.
    folder, files: of the population.
    asked: whether all are to be ended. look: is called now and then. say: is told of lost nodes.
    """

    def __init__(
        self,
        held: Mapping[Node, int],
        cores: int,
        *,
        gpus: bool,
        folder: Path,
        files: Files,
        asked: Callable[[], bool],
        look: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.slots = sum(held.values())
        self._folder, self._files = folder, files
        self._asked, self._look, self._say = asked, look, say
        self._ray = connect()
        self._ended: list[StageEnd] = []
        self._queue: list[tuple[int, RunStage]] = []
        self._hosts: list[_Host] = []
        actor = self._ray.remote(NodeAgent)
        for node, count in held.items():
            lent = {"num_cpus": count * cores, "num_gpus": node.gpus if gpus else 0}
            made = actor.options(**lent, **on_node(node), max_concurrency=3).remote(
                cores, os.getcwd()
            )
            self._hosts.append(_Host(node, made, Path(), list(range(count))))
        try:
            for host in self._hosts:
                host.at = Path(self._answer(host, host.actor.folder.remote()))
        except BaseException:
            self._end()
            raise

    def _answer(self, host: _Host, asked: Any) -> Any:
        """An answer that the first of its actor waits for. Raises SpecError where none comes."""
        node = host.node
        try:
            return self._ray.get(asked, timeout=answer_s())
        except self._ray.exceptions.GetTimeoutError:
            raise SpecError(
                f"node {node.name} ({node.address}) lends no {len(host.free)} slots within "
                f"{answer_s():g} s; its {node.cores} cores are in other use (`ray status`): end "
                "that, or give it more time (PEARL_ANSWER_S)"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise SpecError(f"node {node.name} ({node.address}): {_line(error)}") from None

    def __enter__(self) -> ClusterExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not KeyboardInterrupt:  # the second one: now
            self.stop()
        self._end()

    def start(self, slot: int, stretch: RunStage) -> None:
        self._queue.append((slot, stretch))
        self._dispatch()

    def _dispatch(self) -> None:
        """Begin what waits, on the nodes with the most free slots."""
        while self._queue:
            host = max(self._hosts, key=lambda h: len(h.free), default=None)
            if host is None or not host.free:
                break
            slot, stretch = self._queue.pop(0)
            try:
                arguments = self._files.command(stretch, host.at)
            except SpecError as error:
                text = "; ".join(error.problems)
                self._ended.append(StageEnd(slot, stretch, "failed", None, text))
                continue
            there = host.free.pop(0)
            host.running[there] = slot, stretch
            host.actor.start.remote(there, stretch.run, arguments, self._tree(stretch))
        if not self._hosts:
            for slot, stretch in self._queue:
                self._ended.append(
                    StageEnd(slot, stretch, "died", None, "no node is left to run on")
                )
            self._queue.clear()

    def _tree(self, stretch: RunStage) -> Tree:
        """What a run needs on its node: its spec, its plan, and its folder as far as it is kept."""
        kept = [path for path in (self._folder / stretch.run).rglob("*") if path.is_file()]
        files = [*self._files.of(stretch), *kept]
        return {str(path.relative_to(self._folder)): path.read_bytes() for path in files}

    def wait(self) -> StageEnd | None:
        while not self._asked():
            if self._ended:
                return self._ended.pop(0)
            self._dispatch()
            for host in self._hosts:
                if host.listening is None:
                    host.listening = host.actor.heard.remote(QUIET_S)
            listening = [host.listening for host in self._hosts]
            if listening:
                done, _ = self._ray.wait(listening, num_returns=1, timeout=LOOK_S)
                for host in [h for h in self._hosts if h.listening in done]:
                    self._hear(host)
            self._look()
        return None

    def _hear(self, host: _Host) -> None:
        """Take in what a node says."""
        answer, host.listening = host.listening, None
        try:
            news = self._ray.get(answer, timeout=answer_s())
        except self._ray.exceptions.RayError as error:
            self._lose(host, error)
            return
        for said in news:
            self._take(host, said)

    def _take(self, host: _Host, said: Mapping[str, Any]) -> None:
        slot, stretch = host.running[said["slot"]]
        write(self._folder, said["tree"])
        log = self._folder / "logs" / f"{stretch.run}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as words:
            words.write(said["log"])
        if said["code"] is not None:
            del host.running[said["slot"]]
            host.free.append(said["slot"])
            end = ended(slot, stretch, said["code"], log, self._folder / stretch.run)
            self._ended.append(end)

    def _lose(self, host: _Host, error: Exception) -> None:
        """A node is gone, or its actor."""
        where = f"node {host.node.name} ({host.node.address}) is lost"
        self._hosts.remove(host)
        left = ", ".join(h.node.name for h in self._hosts) or "no node"
        self._say(f"{where}: {_line(error)}; {left} {'goes' if len(self._hosts) < 2 else 'go'} on")
        self._ended += [
            StageEnd(slot, stretch, "died", None, where) for slot, stretch in host.running.values()
        ]
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(host.actor)

    def stop(self) -> None:
        """End all runs, each with a checkpoint that comes home."""
        asked = [(host, host.actor.stop.remote()) for host in self._hosts]
        end_s = time.monotonic() + GRACE_S + answer_s()
        for host, answer in asked:
            try:
                if host.listening is not None:
                    self._hear(host)
                for said in self._ray.get(answer, timeout=max(end_s - time.monotonic(), 0.1)):
                    self._take(host, said)
            except self._ray.exceptions.RayError as error:
                self._say(f"node {host.node.name} ({host.node.address}): {_line(error)}")

    def _end(self) -> None:
        for host in self._hosts:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(host.actor)
        self._hosts.clear()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
