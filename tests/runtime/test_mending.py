"""What is set right after a lane has died is what its complete firings have left."""

import dataclasses
import functools

import numpy as np
import pytest

from pearl.runtime.lanes.engine import Engine
from pearl.runtime.protocol import channels, recovery
from pearl_devices.buffers import specs
from tests.lanes import planned, replay_spec, trained

PRIORITISED = {"kind": "prioritised", "fanout": 8}
CASES = {
    "filling": ({"capacity": 4000, **PRIORITISED}, {"policy_lag": 2}, "1/4"),
    # A ring of 25 rows an environment.
    "wrapped": ({"capacity": 200, **PRIORITISED}, {"policy_lag": 2}, "1/4"),
    # Delayed work, so that lanes drain at the end; one draw is for several gradient steps.
    "delayed": (
        {"capacity": 200, "kind": "uniform"}, {"insertion_lag": 1, "prefetch": 1}, "1/2",
    ),
}  # fmt: skip


@functools.cache
def plan_of(case):
    replay, limits, ratio = CASES[case]
    return planned(replay_spec("dqn", limits, replay=replay, replay_ratio=ratio))


def of_lane(protocol, number):
    """The random streams and cursors that the tasks of a lane advance."""
    for task in protocol.lanes[number].tasks:
        kernel = protocol.graph.task(task).kernel
        yield from (
            channels.array_name(protocol, task, n) for n in specs(kernel) if n.startswith("rng.")
        )
        if kernel.kind == "replay_insert":
            yield "replay.cursor"


def mended(engine, number, found):
    """What a lane has counted, once all of it was lost and mended."""
    arrays = {n: a.copy() for n, a in engine.context.arrays.items()}
    for name in found:
        arrays[name][-1] += 12345
    context = dataclasses.replace(engine.context, arrays=arrays)
    recovery.rebuild_counts(context, number, engine.control, engine.monitor.start_counts)
    return arrays


@pytest.mark.parametrize("case", CASES)
def test_mending_a_lane_sets_what_its_complete_firings_have_counted(case, monkeypatch, tmp_path):
    run, seen = Engine.run, []

    def checked(engine, end, stop, *, timed=False):
        at = run(engine, end, stop, timed=timed)
        protocol = engine.context.protocol
        for number in range(len(protocol.lanes)):
            found = set(of_lane(protocol, number))
            arrays = mended(engine, number, found)
            for name in found:
                now = engine.context.arrays[name]
                np.testing.assert_array_equal(arrays[name], now, err_msg=name)
            seen.append((min(engine.monitor.start_counts.fired.values()), found))
        return at

    monkeypatch.setattr(Engine, "run", checked)
    trained(*plan_of(case), "one", steps=600, out=tmp_path)
    trainer = trained(*plan_of(case), "one", steps=1200, out=tmp_path, resume=True)
    assert trainer.run.status == "done"
    assert set().union(*(found for _, found in seen)) == {
        "rng.inference", "rng.env_step", "rng.replay_sample", "replay.cursor",
    }  # fmt: skip
    assert {begun for begun, _ in seen} == {0, 600 // trainer.graph.env_steps}
    if case != "filling":
        assert trainer.session.arrays["replay.cursor"][1] == 200
    if case == "delayed":
        assert trainer.protocol.delay["store"] > 0
        assert trainer.protocol.drain > 0
        assert trainer.graph.task("sample").kernel.dim("steps") > 1
