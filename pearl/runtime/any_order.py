"""Actors of uneven speed: the lane that learns takes the transitions of whichever copy is ready.

Every copy of the actors has a thread of its own and one place for its next transitions: it acts
with the newest parameters, steps, and waits until they are stored. An iteration stores as many rows
and does as many gradient steps as in order, so that the replay ratio is exact; whose rows they are
depends on timing, and a run is not reproducible. What is stored was acted with parameters at most
`policy_lag` param_syncs old: where a copy comes to that bound, the lane waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

from pearl.graph import TaskGraph
from pearl.replicas import resized
from pearl.runtime import messages
from pearl.runtime.firings import Protocol
from pearl.runtime.lane import Job, LaneError, program_order
from pearl_devices import Buffers, Call, backend

READY = "any_order.ready"
"""Array (copies): 1 where transitions of a copy wait to be stored. Part of a checkpoint."""

PATIENCE_S = 120.0
"""A run in which no copy gets anywhere for so long stops (assumed)."""

SAMPLED = 64
"""One in so many steps of a copy is timed."""


class AnyOrder:
    """The lanes of an any-order plan, driven as `pearl.training.Lanes`. Close it at the end.

    graph: the algorithm's, nothing split. warm: iterations before learning. lags: how many
    param_syncs old the parameters were that the rows stored had been acted with.
    """

    def __init__(
        self,
        protocol: Protocol,
        graph: TaskGraph,
        jobs: Mapping[str, Job],
        arrays: Buffers,
        learning: Sequence[str],
        warm: int,
        iteration: int,
    ) -> None:
        self.protocol, self.arrays, self.warm, self.iteration = protocol, arrays, warm, iteration
        self.times_ns: dict[str, list[int]] = {}
        self._seen: dict[int, int] = {}
        self._bound = max(
            c.slack for c in protocol.plan.edges if (c.src, c.dst) == ("param_sync", "inference#0")
        )
        self._jobs, self._learning = jobs, set(learning)
        self._slots = protocol.slots["param_sync"]
        self._base = max(iteration, warm) * graph.repetition["param_sync"]
        self._newest = 0
        self._order = tuple(t for t in program_order(graph) if t not in ("inference", "env_step"))
        self._change = threading.Condition()
        self._paused, self._stop = True, False
        self._error: BaseException | None = None
        self._copies = range(len(protocol.split.shares))
        self._acted: list[int | None] = [0 if r else None for r in arrays[READY]]
        self._reading: list[int | None] = [None for _ in self._copies]
        self._busy = [False for _ in self._copies]
        self._version = [0 for _ in self._copies]
        self.calls: dict[str, Call] = {}
        self._acting = [
            [self._call(f"inference#{i}", slot) for slot in range(self._slots)]
            for i in self._copies
        ]
        self._stepping = [self._call(f"env_step#{i}", 0) for i in self._copies]
        self._storing = [self._store(graph, i) for i in self._copies]
        self._copying = [self._call("param_sync", slot) for slot in range(self._slots)]
        self._others = {
            t: self._call(t, 0) for t in self._order if t not in ("replay_insert", "param_sync")
        }
        self._threads = [
            threading.Thread(target=self._act, args=(i,), daemon=True, name=f"actor {i}")
            for i in self._copies
        ]
        for thread in self._threads:
            thread.start()

    @property
    def lags(self) -> dict[str, dict[int, int]]:
        return {"policy_lag": dict(self._seen)}

    def _call(self, task: str, slot: int) -> Call:
        job = self._jobs[task]
        slots = {"param_sync": slot}
        seen = messages.view(self.protocol, self.arrays, job.kernel, task, slots)
        call = backend(job.device_kind).bind(job.kernel, job.variant, seen)
        self.calls.setdefault(task, call)
        return call

    def _store(self, graph: TaskGraph, copy: int) -> Call:
        """replay_insert of the rows of one copy."""
        shares, job = self.protocol.split.shares, self._jobs["replay_insert"]
        kernel = resized(graph.task("replay_insert").kernel, shares[copy], sum(shares))
        first = sum(shares[:copy])
        rows = {
            n: a[first : first + shares[copy]] if n.startswith("step.") else a
            for n, a in self.arrays.items()
        }
        return backend(job.device_kind).bind(kernel, job.variant, rows)

    def _slot(self, version: int) -> int:
        return (self._base + version - 1) % self._slots

    def _act(self, copy: int) -> None:
        """What the thread of a copy does."""
        steps = 0
        try:
            while True:
                with self._change:
                    self._change.wait_for(
                        lambda: self._stop or (self._acted[copy] is None and not self._paused)
                    )
                    if self._stop:
                        return
                    version = self._newest
                    self._version[copy], self._busy[copy] = version, True
                    self._reading[copy] = version
                begin = perf_counter_ns()
                self._acting[copy][self._slot(version)]()
                between = perf_counter_ns()
                with self._change:
                    self._reading[copy] = None
                    self._change.notify_all()
                self._stepping[copy]()
                if steps % SAMPLED == 0:
                    end = perf_counter_ns()
                    self._time(f"inference#{copy}", between - begin)
                    self._time(f"env_step#{copy}", end - between)
                steps += 1
                with self._change:
                    self._acted[copy], self._busy[copy] = version, False
                    self.arrays[READY][copy] = 1
                    self._change.notify_all()
        except Exception as error:  # told by the thread that waits for this one
            with self._change:
                self._error, self._busy[copy] = error, False
                self._change.notify_all()

    def _time(self, name: str, spent_ns: int) -> None:
        self.times_ns.setdefault(name, []).append(spent_ns)

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Iterations up to `end`; at `stop` no copy is amid a step."""
        with self._change:
            self._paused = False
            self._change.notify_all()
        while self.iteration < end:
            self._iterate(timed=timed and self.iteration == end - 1)
            self.iteration += 1
        if end == stop:
            self.halt()
        return end

    def halt(self) -> int:
        """Lets every copy end the step that it is at, and begin no other."""
        with self._change:
            self._paused = True
            self._until(lambda: not any(self._busy))
        return self.iteration

    def cpu_s(self) -> float:
        return time.process_time()

    def close(self) -> None:
        with self._change:
            self._stop = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join(timeout=10.0)

    def _iterate(self, *, timed: bool) -> None:
        for place, task in enumerate(self._order):
            begin = perf_counter_ns()
            if task == "replay_insert":
                later = self._order[place + 1 :] + self._order
                stores = later[: later.index("param_sync")].count("replay_insert")
                for left in range(len(self._copies), 0, -1):
                    self._take(left + stores * len(self._copies))
            elif self.iteration < self.warm and task in self._learning:
                continue
            elif task == "param_sync":
                self._copy()
            else:
                self._others[task]()
            if timed:
                self._time(task, perf_counter_ns() - begin)

    def _take(self, left: int) -> None:
        """Stores the rows of one copy. left: stores before the parameters change, this one
        included; as soon as so many copies are at the bound, one of these must be next."""
        with self._change:
            self._until(lambda: self._choice(left) is not None)
            copy = self._choice(left)
            assert copy is not None
            acted = self._acted[copy]
            assert acted is not None
        self._storing[copy]()
        age = self._newest - acted
        self._seen[age] = self._seen.get(age, 0) + 1
        with self._change:
            self._acted[copy] = None
            self.arrays[READY][copy] = 0
            self._change.notify_all()

    def _choice(self, left: int) -> int | None:
        """Whose rows to store now: of the copies that are ready the one that acted first, unless
        others must not wait any longer."""
        under_way = {
            i: self._acted[i] if self._acted[i] is not None else self._began(i)
            for i in self._copies
        }
        old = [
            i
            for i, version in under_way.items()
            if version is not None and self._newest - version >= self._bound
        ]
        allowed = old if len(old) >= left else self._copies
        ready = [(self._acted[i], i) for i in allowed if self._acted[i] is not None]
        return min(ready)[1] if ready else None

    def _began(self, copy: int) -> int | None:
        return self._version[copy] if self._busy[copy] else None

    def _copy(self) -> None:
        """New parameters, into a slot that nobody reads."""
        slot = self._slot(self._newest + 1)
        with self._change:
            self._until(lambda: all(v is None or self._slot(v) != slot for v in self._reading))
        self._copying[slot]()
        with self._change:
            self._newest += 1

    def _until(self, true: Callable[[], bool]) -> None:
        """Waits for the actors, the change held; a LaneError if one fails or nothing changes."""
        reached = self._change.wait_for(lambda: self._error or true(), timeout=PATIENCE_S)
        if self._error:
            raise LaneError(f"an actor failed: {self._error}") from self._error
        if not reached:
            busy = ", ".join(f"actor {i}" for i in self._copies if self._busy[i])
            raise LaneError(f"no transitions for {PATIENCE_S:.0f} s; at work: {busy or 'none'}")
