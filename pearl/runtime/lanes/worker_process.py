"""Program of a worker process, which serves one lane.

The process reads its first request as a line of JSON, maps the arrays, binds the calls of its lane
and reports that it is ready. Then it follows the iteration limit until the run stops or its parent
has died. Replies go to a pipe; the output of environments goes to standard error.
"""

from __future__ import annotations

from contextlib import suppress

from pearl.runtime.child_process import Answer, ParentConnection, serve
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.engine import CELLS, bind_lane, restore_envs, shared_counters
from pearl.runtime.lanes.lane_runner import StopRequested
from pearl.runtime.lanes.workers import error_text, raise_when_stopped
from pearl.runtime.protocol.channels import SharedArrays
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.run_context import RunContext


def main() -> int:
    """Serve a lane until the run ends. Returns the exit status."""
    return serve(_serve_lane, error_text)


def _serve_lane(parent: ParentConnection, config: Answer) -> None:
    layout = [(name, tuple(shape), dtype) for name, shape, dtype in config["layout"]]
    memory = SharedArrays(layout, parent.handle(config["memory"]))
    context = RunContext.from_json(config, memory.arrays)
    context.wake_events = [WakeEvent(parent.handle(handle)) for handle in config["wake_events"]]
    number, groups = config["lane"], config["remote_groups"]
    counters, lanes = shared_counters(context), len(context.protocol.lanes)
    size = ControlBlock.size(len(counters), lanes, groups)
    cells = SharedArrays([(CELLS, (size,), "int64")], parent.handle(config["cells"]))
    control = ControlBlock(counters, lanes, cells.arrays[CELLS], groups)
    runner = bind_lane(
        context,
        number,
        control,
        raise_when_stopped(control),
        spins=config["spins"],
        restarted_envs=config["restarted_envs"],
    )
    notes: list[str] = []
    if runner.environments:
        on_failure = external_envs.failure_sender(parent.reply, restart=context.restart_envs)
        for env in runner.environments.values():
            env.on_failure = on_failure
        notes = restore_envs(context, runner.environments)
        runner.on_segment_end = lambda at: parent.reply(
            at=at, environments=external_envs.snapshot(runner.environments)
        )
    parent.reply(ready=True, notes=notes)
    if parent.next_request() is None:  # the run ended before it began
        return
    if runner.on_segment_end is not None:
        runner.on_segment_end(control.read(control.flushed_cell(number)))
    limit_s = context.env_time_limit_s
    with (
        suppress(StopRequested),
        external_envs.interrupting_overdue_envs(runner.environments, limit_s),
    ):
        runner.serve()
    external_envs.close(runner.environments)
    parent.reply(times_ns=runner.times_ns, lags=runner.lags, record=runner.record())
