"""`RemoteWorker`: an island's lanes as the host that trains sees them, one of the engine's workers.

What was sent to the island since the last pause is kept, and so are its arrays as they were then.
An island that is lost is bound again, elsewhere where its host is gone, given both, and does its
firings again; what comes a second time is passed over.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pearl.cluster import carrier
from pearl.errors import SpecError
from pearl.runtime.child_process import ANSWER_S
from pearl.runtime.lanes.lane_runner import SLEEP_S
from pearl.runtime.lanes.run_context import RunContext
from pearl.runtime.lanes.workers import GRACE_S, LaneDied, Measured, Worker, error_text
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.single_lane import LaneError
from pearl.runtime.remote import async_mailbox
from pearl.runtime.remote.async_mailbox import GrantMailbox, StepMailbox
from pearl.runtime.remote.batching import Flows
from pearl.runtime.remote.lane_groups import LaneGroup
from pearl.runtime.remote.lane_server import LaneClient, LostError, controlled
from pearl.runtime.remote.mailbox import Mailbox, mailboxes
from pearl.runtime.remote.messages import CONTROL, FIRINGS, STATE, Message, packed, unpack, words
from pearl_devices.primitives.code_cache import sources

PULL_S = 1.0
"""Seconds that a call for messages waits at most."""

LOG_BYTES = 256 * 2**20
"""Bytes of messages kept for an island that is lost; with more the lanes pause (assumed)."""


@dataclass(frozen=True)
class RemoteGroup:
    """An island with its messages, as `RunContext` has it.

    post: makes what reaches it; `losses` says how often the island was lost.
    """

    island: LaneGroup
    flows: Flows
    post: Callable[..., LaneClient]

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.island.lanes

    @property
    def iterations(self) -> int:
        return self.flows.iterations

    def worker(self, work: RunContext, board: ControlBlock) -> Worker:
        return RemoteWorker(work, board, self.island, self.flows, self.post)


class RemoteWorker(Worker):
    """An island.

    full: the messages kept are `LOG_BYTES`; a pause makes room.
    """

    restartable = True

    def __init__(
        self,
        w: RunContext,
        board: ControlBlock,
        island: LaneGroup,
        flows: Flows,
        post: Callable[..., LaneClient],
    ) -> None:
        self._work, self._board, self.island, self.flows = w, board, island, flows
        mine = island.lanes[0] if w.about["any_order"] else board.lanes + island.number
        self._making, self._bell, self._sleeps = post, w.bells[mine], board.sleeps(mine)
        names = island.arrays(w.protocol, w.arrays)
        self._arrays = {n: w.arrays[n] for n in names}
        self._state = island.state(w.protocol, self._arrays)
        self._into: Mailbox | GrantMailbox
        self._out: Mailbox | StepMailbox
        if w.about["any_order"]:
            self._into, self._out = async_mailbox.mails(w.protocol, island, w.arrays, board)
        else:
            given = w.arrays, board, w.span, w.learning
            self._into, self._out = mailboxes(w.protocol, island, flows, *given)
        self._environments: dict[str, Any] = {"at": -1, "environments": {}}
        self._failures: deque[tuple[str, int]] = deque()
        self._heard: Counter[tuple[str, int]] = Counter()  # failures since the last pause
        self._repeated: Counter[tuple[str, int]] = Counter()  # of them those of firings done again
        self._outside = any(recovery.steps_outside(w.protocol, n, w.jobs) for n in island.lanes)
        self._lost, self._error, self._over, self._bound = "", "", False, False
        self._cpu_s = self._ended_cpu_s = 0.0
        self._log: list[Message] = []
        self._losses = 0
        self._told: tuple[int, ...] = ()  # the last words of control
        self._sending = threading.Lock()
        self._logged_bytes = 0
        self._threads: list[threading.Thread] = []
        self._carrier = carrier(w.about["spec"]["train"].get("carrier"))
        self._called = ", ".join(w.protocol.lanes[n].name for n in island.lanes)
        self._post = self._making(self.island)

    def traffic(self) -> list[dict[str, Any]]:
        found: dict[str, Any] = {"host": self.island.host, "tasks": list(self.island.tasks)}
        found["carrier"] = self._carrier
        for way, mail in (("to", self._into), ("from", self._out)):
            found |= {f"{name}_{way}": n for name, n in asdict(mail.traffic).items()}
        return [found]

    @property
    def full(self) -> bool:
        return self._logged_bytes > LOG_BYTES

    # ------------------------------------------------------------------ binding and starting

    def ready(self) -> None:
        reply = self._bind(packed([STATE], list(self._arrays.values())), self._work.restored)
        unpack(reply, self._state)

    def _bind(self, arrays: Message, restored: Any) -> Message:
        w, island = self._work, self.island
        about = {
            **w.about,
            "path": [p for p in sys.path if p],
            "sources": sources().digest,
            "number": island.number,
            "host": island.host,
            "lanes": island.lanes,
            "tasks": island.tasks,
            "layout": [(n, a.shape, a.dtype.name) for n, a in self._arrays.items()],
            "into": [(f.tasks, f.per_iteration, f.every) for f in self.flows.into],
            "out": [(f.tasks, f.per_iteration, f.every) for f in self.flows.out],
            "learning": list(w.learning),
            "warm": w.span.warm,
            "total": w.span.total,
            "drained": w.span.drained,
            "carrier": self._carrier,
            "jitter_s": w.jitter_s,
            "restored": dict(restored),
        }
        try:
            reply = self._post.bind(about, arrays)
        except LostError as error:
            raise LaneDied(self._named(error)) from error
        self._bound = True
        return reply

    def _named(self, why: object) -> str:
        return f"lane {self._called} on host {self.island.host}: {why}"

    def begin(self) -> None:
        self._keep(None)
        self._start()

    def _keep(self, environments: Any) -> None:
        """Keep the island's arrays as they are now, at a pause."""
        board = self._board
        fired = {word: board.read(board.count(word)) for word in board.tasks}
        begin = board.read(board.flush)
        text = {"fired": fired, "begin": begin, "environments": environments}
        self._begun = packed([STATE], list(self._arrays.values()), text)
        self._log, self._logged_bytes = [], 0
        self._heard.clear()
        self._repeated.clear()
        for mail in (self._into, self._out):
            mail.start(begin)

    def _start(self) -> None:
        """Give the island its arrays and all that was sent since, and go on."""
        self._into.traffic.state_bytes += self._begun.nbytes
        try:
            self._post.start(self._begun)
        except LostError as error:
            raise LaneDied(self._named(error)) from error
        self._lost, self._over, self._told = "", False, ()
        loops = self._send, self._receive
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def settled(self) -> None:
        """All lanes are at the same iteration: what was sent before is not needed any more."""
        try:
            self._post_due()
        except LostError as error:
            self._lost = self._lost or str(error)
        with self._sending:
            self._keep(self._environments["environments"])

    def again(self) -> None:
        """Bind the island anew, after it was lost, and let it do its firings again."""
        self._leave()
        self._post.kill()
        self._ended_cpu_s, self._cpu_s = self._ended_cpu_s + self._cpu_s, 0.0
        self._losses += 1
        self._repeated = self._heard.copy()
        try:
            self._post = self._making(self.island, losses=self._losses)
        except SpecError as error:
            raise LaneError(self._named(error)) from error
        self._bind(packed([STATE], list(self._arrays.values())), {})
        self._start()

    # ------------------------------------------------------------------ threads

    def _send(self) -> None:
        try:
            with self._sending:
                if self._log:  # of an island that was lost
                    self._post.push(list(self._log))
            while not self._over:
                if self._post_due():
                    continue
                self._board.write(self._sleeps, 1)
                if not self._into.ready and controlled(self._board) == self._told:
                    self._bell.sleep(SLEEP_S)
                self._board.write(self._sleeps, 0)
        except LostError as error:
            self._lost = self._lost or str(error)
        except Exception as error:  # told by the thread that waits for this one
            self._error = self._error or self._named(error_text(error))

    def _post_due(self) -> bool:
        """Send all that can be sent now; whether that was anything."""
        with self._sending:
            messages, now = list(self._into.due()), controlled(self._board)
            if now != self._told:
                self._told = now
                messages.append(packed([CONTROL, *now]))
                self._into.traffic.others += 1
            if messages:
                self._log += messages
                self._logged_bytes += sum(m.nbytes for m in messages)
                self._post.push(messages)
        return bool(messages)

    def _receive(self) -> None:
        try:
            while not self._over:
                for message in self._post.pull(PULL_S):
                    self._take(message)
        except LostError as error:
            self._lost = self._lost or str(error)
        except Exception as error:  # told by the thread that waits for this one
            self._error = self._error or self._named(error_text(error))

    def _take(self, message: Message) -> None:
        board, (kind, *told) = self._board, words(message)
        if kind == FIRINGS:
            self._out.take(message)
        elif kind == STATE:
            text = unpack(message, self._state)
            self._cpu_s = told[1] / 1e6
            self._out.traffic.state_bytes += message.nbytes
            self._environments = text
            for n in self.island.lanes:
                board.write(board.flushed(n), text["at"])
        else:
            text = unpack(message, [])
            if "error" in text:
                self._error = f"lane {text['lane']} failed: {text['error']}"
            else:
                self._fails(text["failure"], text["lost"])
            self._out.traffic.others += 1
        board.wake_sleepers(self._work.bells)

    def _fails(self, text: str, lost: int) -> None:
        """Note the failure of an environment, unless it is one of a firing that is done again."""
        if self._repeated[text, lost] > 0:
            self._repeated[text, lost] -= 1
            return
        self._heard[text, lost] += 1
        self._failures.append((text, lost))

    def _leave(self) -> None:
        """End the threads that send and receive."""
        self._over = True
        self._bell.ring()
        for thread in self._threads:
            thread.join(timeout=ANSWER_S)
        self._threads = []

    # ------------------------------------------------------------------ as a worker

    def check(self) -> None:
        if self._error:
            raise LaneError(self._error)
        if self._lost:
            raise LaneDied(self._named(self._lost))

    def environments(self, at: int) -> dict[str, Any]:
        if not self._outside:
            return {}
        if self._environments["at"] != at:
            raise LaneError(self._named("it has not told how its environments are"))
        found: dict[str, Any] = self._environments["environments"]
        return found

    def failures(self) -> list[tuple[str, int]]:
        return [self._failures.popleft() for _ in range(len(self._failures))]

    def timeout_reason(self, limit_s: float, *, stalled_s: float) -> str | None:
        if not self._outside or stalled_s < 1.5 * limit_s + GRACE_S:
            return None
        return f"an environment of its does not answer, and has not for {stalled_s:.1f} s"

    def kill(self) -> None:
        self._post.kill()

    def cpu_s(self) -> float:
        return self._ended_cpu_s + self._cpu_s

    def end(self) -> Measured:
        self._leave()
        found: dict[str, Any] = {"times_ns": {}, "lags": {}, "cpu_s": self._cpu_s}
        if self._bound:
            with suppress(LostError):
                found = self._post.end()
        self._cpu_s = found["cpu_s"]
        self._post.kill()
        return found["times_ns"], found["lags"]
