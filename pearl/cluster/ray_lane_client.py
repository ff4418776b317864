"""`RayLaneClient`: a lane server in a Ray actor, on the node that has the name of the host.

Messages are arrays of bytes. They go over a transport between this process and the actor, or as
arguments and results of Ray calls, in chunks of a size that Ray handles well. Two calls for
messages are always under way, so that one is waiting when the next message is ready. The actor ends
with this process.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pearl.cluster import connect, nodes, on_node
from pearl.cluster.batching import GroupFlows, plan_flows
from pearl.cluster.chunks import chunk_count, join_chunks, split_by_sizes, split_message
from pearl.cluster.door import Rendezvous, TransportListener, join
from pearl.cluster.lane_groups import LaneGroup
from pearl.cluster.lane_groups import lane_groups as lane_groups
from pearl.cluster.lane_server import LaneServer, RemoteLostError
from pearl.cluster.messages import Message
from pearl.cluster.remote_worker import RemoteGroup
from pearl.cluster.transport import HEARTBEAT_S, SENT_S, Transport
from pearl.errors import SpecError
from pearl.runtime.lanes.workers import READY_S, error_text
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.single_lane import LaneError
from pearl.waits import NAMED_S, naming

ANSWER_S = 30.0
"""Seconds within which the Ray actor answers a call that waits for nothing (assumed)."""

PUSHED = 16
"""Most calls with messages that are under way to the Ray actor (assumed)."""

PULLS = 2
"""Calls for messages that are under way at the same time."""

NOTHING: Message = np.empty(0, np.uint8)


def host_groups(
    protocol: ExecutionSchedule, groups: Sequence[LaneGroup], *, any_order: bool
) -> list[RemoteGroup]:
    """Return the remote lane groups of a plan with their messages and their actors of Ray."""
    no_flows = [GroupFlows((), ()) for _ in groups]
    flows = no_flows if any_order else plan_flows(protocol, groups)
    return [RemoteGroup(g, f, RayLaneClient) for g, f in zip(groups, flows, strict=True)]


class _RayLaneServer(LaneServer):
    """A lane server in a Ray actor. After `join`, its messages use a transport."""

    _transport: Transport | None = None

    def bind_as(self, about: str, arrays: Message) -> Message:
        return self.bind(json.loads(about), arrays)

    def join(self, at: Rendezvous) -> None:
        self._transport = join(at)

    def start(self, arrays: Message) -> None:
        super().start(arrays)
        if self._transport is not None:
            for loop in (self._take_on, self._give_on):
                threading.Thread(target=loop, args=(self._transport,), daemon=True).start()

    def _take_on(self, transport: Transport) -> None:
        """Receive messages until the other end closes; then this actor ends too."""
        with suppress(RuntimeError):
            while True:
                messages = transport.receive(SENT_S)
                try:
                    self.push(messages)
                except Exception as error:  # the local host reports it
                    self._send_status(
                        lane=", ".join(r.name for r in self.runners), error=error_text(error)
                    )
                    return

    def _give_on(self, transport: Transport) -> None:
        with suppress(RuntimeError):
            while True:
                transport.send(self.pull(HEARTBEAT_S))

    def push_batch(self, sizes: Sequence[int], *parts: Message) -> None:
        """Call `push` with messages of these sizes, which come joined and split into chunks."""
        self.push(split_by_sizes(join_chunks(parts), sizes))

    def pull_batch(self, timeout_s: float, most: int) -> Any:
        """Call `pull`. Returns the sizes of the messages with their first chunk, and `most` − 1
        further chunks, of which some may be empty."""
        found = self.pull(timeout_s)
        parts = split_message(join_chunks(found), most) if found else [NOTHING]
        first = [m.size for m in found], parts[0]
        return first if most == 1 else (first, *parts[1:], *[NOTHING] * (most - len(parts)))


class RayLaneClient:
    """A lane server on another node.

    losses: how often the lane group was lost. After the second loss, or if its node is gone, the
        group moves to another node.

    Raises:
        SpecError: there is no cluster, or no node has the name of the host, or this machine's node
            is gone.
    """

    _transport: Transport | None = None

    def __init__(self, lane_group: LaneGroup, *, losses: int = 0) -> None:
        """Start the actor on the node of the lane group.

        Raises:
            SpecError: no node of the cluster has the name of the host.
        """
        self._ray = connect()
        found = {node.name: node for node in nodes()}
        mine = self._ray.get_runtime_context().get_node_id()
        home = next((n for n in found.values() if n.id == mine), None)
        if home is None:
            raise SpecError(
                f"host {lane_group.host}: the Ray node of this machine is gone ({mine[:8]}); the "
                f"cluster has {', '.join(found) or 'none'}; start it again here with `ray start` "
                "and continue from the checkpoint with --resume"
            )
        self._home = home.address
        node = found.get(lane_group.host)
        others = [n for n in found.values() if n is not node]
        if others and (losses > 1 or (losses and node is None)):
            node = max(others, key=lambda n: n.cores)
        if node is None:
            raise SpecError(
                f"host {lane_group.host}: no node of the Ray cluster has this name; there are "
                f"{', '.join(found) or 'none'}; start it there with `ray start --address=… "
                f"--node-name={lane_group.host}`, or plan with the hosts that there are"
            )
        self.where, self._address = node.name, node.address
        kind = self._ray.remote(concurrency_groups={"into": 1, "out": 1})(_RayLaneServer)
        options = {"num_cpus": len(lane_group.lanes), "max_restarts": 0, **on_node(node)}
        self._actor = kind.options(**options).remote()
        self._pushed: deque[Any] = deque()
        self._pulls: deque[Any] = deque()
        self._pieces = 1

    def bind(self, about: Mapping[str, Any], arrays: Message) -> Message:
        """Bind the lanes of the group on their node.

        Raises:
            LaneError: the node cannot provide the cores, or binding fails there.
        """
        bound = self._actor.bind_as.remote(json.dumps(about), arrays)
        try:
            reply: Message = self._get(bound, READY_S)
        except LaneError as error:
            needs = "a node needs the modules that the spec names, as this machine has them"
            raise LaneError(f"{error}; {needs}") from error
        if about["carrier"] != "ray":
            self._join()
        return reply

    def _join(self) -> None:
        """Open a connection to the actor."""
        door = TransportListener(self._home)
        joined = self._actor.join.remote(door.at)
        try:
            self._transport = door.open()
        except RuntimeError as error:
            self._get(joined, READY_S)
            raise LaneError(
                f"node {self.where} ({self._address}) and this one ({self._home}) cannot connect "
                f"by TCP: {error_text(error)}; let their TCP ports be open to each other, or "
                "set train.carrier to ray"
            ) from error
        self._get(joined, READY_S)

    def start(self, arrays: Message) -> None:
        self._get(self._actor.start.remote(arrays), READY_S)

    def push(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        if self._transport is not None:
            self._by_transport(self._transport.send, messages)
            return
        into = self._actor.push_batch.options(concurrency_group="into")
        self._pushed.append(
            into.remote([m.size for m in messages], *split_message(join_chunks(messages)))
        )
        while len(self._pushed) > PUSHED:
            self._get(self._pushed.popleft(), READY_S)
        while self._pushed and self._ray.wait([self._pushed[0]], timeout=0)[0]:
            self._get(self._pushed.popleft(), ANSWER_S)

    def pull(self, timeout_s: float) -> Sequence[Message]:
        if self._transport is not None:
            if self._transport.quiet:
                self._by_transport(self._transport.send, [])
            found: Sequence[Message] = self._by_transport(self._transport.receive, ANSWER_S)
            return found
        while len(self._pulls) < PULLS:  # as many chunks as the last messages took
            out = self._actor.pull_batch.options(concurrency_group="out", num_returns=self._pieces)
            self._pulls.append(out.remote(timeout_s, self._pieces))
        got = self._get(self._pulls.popleft(), timeout_s * PULLS + ANSWER_S)
        (sizes, first), *more = got if isinstance(got, list) else [got]
        if sizes:
            self._pieces = chunk_count(sum(sizes))
        return split_by_sizes(join_chunks([first, *more]), sizes)

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = self._get(self._actor.end.remote(), ANSWER_S)
        return found

    def kill(self) -> None:
        if self._transport is not None:
            self._transport.close()
        with suppress(Exception):  # the actor may have died already
            self._ray.kill(self._actor, no_restart=True)

    def _by_transport(self, call: Any, given: Any) -> Any:
        try:
            return call(given)
        except RuntimeError as error:
            raise RemoteLostError(
                f"its actor on node {self.where} is gone ({_short(error)})"
            ) from None

    def _get(self, reference: Any, timeout_s: float) -> Any:
        """Wait for the result of a call.

        Raises:
            LostError: the actor or its node is gone, or does not answer in time.
            LaneError: the call failed.
        """
        errors = self._ray.exceptions
        try:
            if timeout_s < 2 * NAMED_S:
                return self._ray.get(reference, timeout=timeout_s)
            with naming(f"node {self.where}", f"after {timeout_s:.0f} s it counts as lost"):
                return self._ray.get(reference, timeout=timeout_s)
        except errors.GetTimeoutError:
            raise RemoteLostError(
                f"node {self.where} has not answered for {timeout_s:.0f} s"
            ) from None
        except errors.RayTaskError as error:
            raise LaneError(f"on node {self.where}: {error_text(error.cause)}") from error
        except (errors.RayActorError, errors.RaySystemError, errors.ObjectLostError) as error:
            raise RemoteLostError(
                f"its actor on node {self.where} is gone ({_short(error)})"
            ) from None


def _short(error: BaseException) -> str:
    """Return the first line of an error of Ray."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
