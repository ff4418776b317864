"""Program of a worker process, which serves one lane.

The process reads its orders as a line of JSON, maps the arrays, binds the lane's calls, says that
it is ready, and follows the iteration limit until it is told to stop or its parent is gone. Answers
go to a pipe, and the output of environments to standard error.
"""

from __future__ import annotations

from contextlib import suppress

from pearl.planning.plans import load_plan
from pearl.runtime.child_process import Answer, ParentConnection, serve
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.async_actor import AsyncActor, words
from pearl.runtime.lanes.engine import CELLS, Engine
from pearl.runtime.lanes.lane_runner import LaneRunner, StopRequested
from pearl.runtime.lanes.workers import error_text
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.channels import SharedArrays
from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.residency import Residency
from pearl.spec.reading import load_on
from pearl.spec.user_code import build_graph
from pearl_devices import platform_json


def main() -> int:
    """Serve a lane until the run ends. Returns the exit status."""
    return serve(_follow, error_text)


def _follow(parent: ParentConnection, about: Answer) -> None:
    layout = [(name, tuple(shape), dtype) for name, shape, dtype in about["layout"]]
    memory = SharedArrays(layout, parent.handle(about["memory"]))
    system = load_on(platform_json.from_json(about["platform"]), about["spec"])
    graph = build_graph(system)
    protocol = ExecutionSchedule(load_plan(about["plan"]), graph)
    jobs = single_lane.jobs(
        protocol.plan, protocol.graph, system.platform, emulate=about["emulate"]
    )
    shared = words(protocol) if about["any_order"] else Engine.words(protocol)
    islands = about["islands"]
    size = ControlBlock.size(len(shared), len(protocol.lanes), islands)
    cells = SharedArrays([(CELLS, (size,), "int64")], parent.handle(about["cells"]))
    board = ControlBlock(shared, len(protocol.lanes), cells.arrays[CELLS], islands)

    def alive() -> None:
        if board.read(board.stop):
            raise StopRequested

    bells = [WakeEvent(parent.handle(handle)) for handle in about["bells"]]
    given = protocol, about["lane"], jobs, memory.arrays, board, bells
    how = {"spins": about["spins"], "anew": about["anew"]}
    residency = Residency(jobs, memory.arrays)
    runner: LaneRunner | AsyncActor
    if about["any_order"]:
        runner = AsyncActor(*given, residency, alive, **how)
    else:
        span = WorkRange(about["warm"], about["total"], about["drained"])
        learning, jitter_s = about["learning"], about["jitter_s"]
        runner = LaneRunner(*given, learning, span, residency, alive, jitter_s=jitter_s, **how)
    limit_s = about["env_time_limit_s"]
    if runner.environments:
        for env in runner.environments.values():
            env.on_failure = lambda text, lost: parent.say(failure=text, lost=lost)
        if about["restored"]:
            external_envs.restore(runner.environments, about["restored"])
        runner.settled = lambda at: parent.say(
            at=at, environments=external_envs.snapshot(runner.environments)
        )
    parent.say(ready=True)
    if parent.orders() is None:  # the run was given up before it began
        return
    if runner.settled is not None:
        runner.settled(board.read(board.flushed(about["lane"])))
    with (
        suppress(StopRequested),
        external_envs.interrupting_overdue_envs(runner.environments, limit_s),
    ):
        runner.follow()
    parent.say(times_ns=runner.times_ns, lags=runner.lags)
