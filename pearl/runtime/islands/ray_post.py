"""`RayPost`: an outpost in an actor of Ray, on the node that has the host's name.

Messages are arrays of bytes, which Ray hands over as they are, in pieces that it carries in its
calls. Two calls for messages are always under way, so that one is there when the next message is.
The actor ends with this process.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pearl.cluster import connected, nodes, on_node
from pearl.cluster.pieces import apart, cut, joined, pieces
from pearl.errors import SpecError
from pearl.runtime.islands.crossing import Island
from pearl.runtime.islands.messages import Message
from pearl.runtime.islands.outpost import LostError, Outpost
from pearl.runtime.lanes.workers import READY_S, said
from pearl.runtime.protocol.single_lane import LaneError

ANSWER_S = 30.0
"""Seconds within which an actor answers a call that waits for nothing (assumed)."""

PUSHED = 16
"""Calls with messages under way to an actor at once (assumed)."""

PULLS = 2
"""Calls for messages under way at once."""

NOTHING: Message = np.empty(0, np.uint8)


class _Actor(Outpost):
    """An outpost whose orders are JSON."""

    def bind_as(self, about: str, arrays: Message) -> Message:
        return self.bind(json.loads(about), arrays)

    def take(self, sizes: Sequence[int], *parts: Message) -> None:
        """`push` of messages of these sizes, joined and cut."""
        self.push(apart(joined(parts), sizes))

    def give(self, timeout_s: float, most: int) -> Any:
        """`pull`: the sizes of its messages with the first piece of them joined, and `most` − 1
        further ones, of which some may be empty."""
        found = self.pull(timeout_s)
        parts = cut(joined(found), most) if found else [NOTHING]
        first = [m.size for m in found], parts[0]
        return first if most == 1 else (first, *parts[1:], *[NOTHING] * (most - len(parts)))


class RayPost:
    """An outpost on another node.

    losses: how often the island was lost; from the second time on it goes to another node, and
        where its own is gone.

    Raises:
        SpecError: no cluster, or no node of the host's name.
    """

    def __init__(self, island: Island, *, losses: int = 0) -> None:
        self._ray = connected()
        found = {node.name: node for node in nodes()}
        node = found.get(island.host)
        others = [n for n in found.values() if n is not node]
        if others and (losses > 1 or (losses and node is None)):
            node = max(others, key=lambda n: n.cores)
        if node is None:
            raise SpecError(
                f"host {island.host}: no node of the Ray cluster has this name; there are "
                f"{', '.join(found) or 'none'}; start it there with `ray start --address=… "
                f"--node-name={island.host}`, or plan with the hosts that there are"
            )
        self.where = node.name
        kind = self._ray.remote(concurrency_groups={"into": 1, "out": 1})(_Actor)
        options = {"num_cpus": len(island.lanes), "max_restarts": 0, **on_node(node)}
        self._actor = kind.options(**options).remote()
        self._pushed: deque[Any] = deque()
        self._pulls: deque[Any] = deque()
        self._pieces = 1

    def bind(self, about: Mapping[str, Any], arrays: Message) -> Message:
        bound = self._actor.bind_as.remote(json.dumps(about), arrays)
        try:
            reply: Message = self._get(bound, READY_S)
        except LaneError as error:
            needs = "a node needs the modules that the spec names, as this machine has them"
            raise LaneError(f"{error}; {needs}") from error
        return reply

    def start(self, arrays: Message) -> None:
        self._get(self._actor.start.remote(arrays), READY_S)

    def push(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        into = self._actor.take.options(concurrency_group="into")
        self._pushed.append(into.remote([m.size for m in messages], *cut(joined(messages))))
        while len(self._pushed) > PUSHED:
            self._get(self._pushed.popleft(), READY_S)
        while self._pushed and self._ray.wait([self._pushed[0]], timeout=0)[0]:
            self._get(self._pushed.popleft(), ANSWER_S)

    def pull(self, timeout_s: float) -> Sequence[Message]:
        while len(self._pulls) < PULLS:  # as many pieces as the last messages took
            out = self._actor.give.options(concurrency_group="out", num_returns=self._pieces)
            self._pulls.append(out.remote(timeout_s, self._pieces))
        found = self._get(self._pulls.popleft(), timeout_s * PULLS + ANSWER_S)
        (sizes, first), *more = found if isinstance(found, list) else [found]
        if sizes:
            self._pieces = pieces(sum(sizes))
        return apart(joined([first, *more]), sizes)

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = self._get(self._actor.end.remote(), ANSWER_S)
        return found

    def kill(self) -> None:
        with suppress(Exception):  # whatever it is, the actor is given up
            self._ray.kill(self._actor, no_restart=True)

    def _get(self, reference: Any, timeout_s: float) -> Any:
        """The result of a call.

        Raises:
            LostError: the actor or its node is gone, or does not answer in time.
            LaneError: the call failed.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except errors.GetTimeoutError:
            raise LostError(f"node {self.where} has not answered for {timeout_s:.0f} s") from None
        except errors.RayTaskError as error:
            raise LaneError(f"on node {self.where}: {said(error.cause)}") from error
        except (errors.RayActorError, errors.RaySystemError, errors.ObjectLostError) as error:
            raise LostError(f"its actor on node {self.where} is gone ({_short(error)})") from None


def _short(error: BaseException) -> str:
    """The first line of what Ray says, which may be many."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
