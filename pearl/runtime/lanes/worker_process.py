"""Program of a worker process: `python -m pearl.runtime.lanes.worker_process FD` serves one lane.

The process reads its orders as a line of JSON, maps the arrays, binds the lane's calls, says that
it is ready, and follows the iteration limit until it is told to stop or its parent is gone. Answers
go to the file descriptor FD, and the output of environments to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from pearl.planning.plans import load_plan
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.async_actor import Actor, words
from pearl.runtime.lanes.engine import CELLS, Engine
from pearl.runtime.lanes.lane_runner import Runner, Stopped
from pearl.runtime.lanes.workers import said
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.channels import Memory
from pearl.runtime.protocol.control_block import Board, Span
from pearl.runtime.protocol.lane_schedule import Protocol
from pearl.runtime.protocol.progress_counters import Bell
from pearl.runtime.protocol.residency import Residency
from pearl.spec.own_code import graph_of
from pearl.spec.reading import load
from pearl_devices.primitives.code_cache import sources

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends once the parent has died."""


_answers = os.fdopen(int(sys.argv[1]), "w")


def say(**what: Any) -> None:
    _answers.write(json.dumps(what) + "\n")
    _answers.flush()


def main() -> int:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # the parent decides when the run ends
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    about = json.loads(sys.stdin.readline())
    if os.getppid() != about["parent"]:
        return 1
    sys.path[:] = about["path"]
    if about["sources"] != sources().digest:
        raise RuntimeError(
            "the sources of the kernels have changed since the run began, and a lane of other ones "
            "would not compute the same; end the run and go on from its checkpoint with --resume"
        )
    layout = [(name, tuple(shape), dtype) for name, shape, dtype in about["layout"]]
    memory = Memory(layout, about["memory"])
    system = load(about["spec"])
    graph = graph_of(system)
    protocol = Protocol(load_plan(about["plan"]), graph)
    jobs = single_lane.jobs(
        protocol.plan, protocol.graph, system.platform, emulate=about["emulate"]
    )
    shared = words(protocol) if about["any_order"] else Engine.words(protocol)
    size = Board.size(len(shared), len(protocol.lanes))
    cells = Memory([(CELLS, (size,), "int64")], about["cells"])
    board = Board(shared, len(protocol.lanes), cells.arrays[CELLS])

    def alive() -> None:
        if board.read(board.stop) or os.getppid() != about["parent"]:
            raise Stopped

    bells = [Bell(handle) for handle in about["bells"]]
    given = protocol, about["lane"], jobs, memory.arrays, board, bells
    how = {"spins": about["spins"], "anew": about["anew"]}
    residency = Residency(jobs, memory.arrays)
    runner: Runner | Actor
    if about["any_order"]:
        runner = Actor(*given, residency, alive, **how)
    else:
        span = Span(about["warm"], about["total"], about["drained"])
        learning, jitter_s = about["learning"], about["jitter_s"]
        runner = Runner(*given, learning, span, residency, alive, jitter_s=jitter_s, **how)
    limit_s = about["env_time_limit_s"]
    if runner.environments:
        for env in runner.environments.values():
            env.on_failure = lambda text, lost: say(failure=text, lost=lost)
        if about["restored"]:
            external_envs.restore(runner.environments, about["restored"])
        runner.settled = lambda at: say(
            at=at, environments=external_envs.snapshot(runner.environments)
        )
    say(ready=True)
    if not sys.stdin.readline():  # the run was given up before it began
        return 0
    if runner.settled is not None:
        runner.settled(board.read(board.flushed(about["lane"])))
    with suppress(Stopped), external_envs.watched(runner.environments, limit_s):
        runner.follow()
    say(times_ns=runner.times_ns, lags=runner.lags)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:  # whatever it is, the parent names the lane and says it
        say(error=said(error))
        sys.exit(1)
