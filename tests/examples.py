"""Plans and runs written by hand, for tests that need one without solving or training, and a small
algorithm for those that train."""

from __future__ import annotations

from dataclasses import replace

from pearl.planning.bands import Bands, Regret
from pearl.planning.lane_times import CallTime, LaneTime, MeasuredCall
from pearl.planning.plans import Bottleneck, Channel, Entry, Lane, Placement, Plan
from pearl.planning.runs import Run, TaskTiming
from pearl.report.kept_calls import planned_calls
from pearl.report.schedule import schedule_of

SMALL_DQN: dict[str, object] = {
    "name": "dqn",
    "env": "CartPole-v1",
    "num_envs": 4,
    "hidden": [16],
    "batch_size": 16,
    "learning_starts": 100,
    "replay": {"capacity": 1000},
}
"""The section `algorithm` of a spec."""


def placement(task: str, device: str, lane: str, seconds: float, **other: object) -> Placement:
    values: dict[str, object] = {
        "width": 1,
        "width_unit": "cores",
        "variant": "native",
        "firings": 1,
        "occupancy_s": seconds,
        "low_s": 0.8 * seconds,
        "high_s": 1.25 * seconds,
        "share_of_period": seconds / 500e-6,
        "rung": "calibrated",
        "bound_by": "overhead",
    }
    values.update(other)
    return Placement(task=task, device=device, lane=lane, seconds=seconds, **values)  # type: ignore[arg-type]


def two_device_plan() -> Plan:
    """DQN, 8 gradient steps an iteration: acting and replay on a CPU lane, learning on a GPU."""
    gpu = {"width": 16, "width_unit": "sm", "variant": "torch", "rung": "datasheet"}
    share = {"firings": 8, "share_of_period": 8 * 60e-6 / 500e-6}
    tasks = (
        placement("act", "cpu", "cpu/0", 30e-6),
        placement("step", "cpu", "cpu/0", 120e-6, bound_by="compute"),
        placement("store", "cpu", "cpu/0", 8e-6, bound_by="memory"),
        placement("sample", "cpu", "cpu/0", 20e-6, firings=8, share_of_period=0.32),
        placement("learn", "gpu0", "gpu0/0", 60e-6, **gpu, **share),
        placement("sync", "gpu0", "gpu0/0", 20e-6, **gpu),
    )
    cpu = ("act", "step", "store", *["sample"] * 8)
    lanes = (
        Lane("cpu/0", "cpu", 1, "cores", tuple(Entry(t) for t in cpu), 318 / 500),
        Lane(
            "gpu0/0",
            "gpu0",
            16,
            "sm",
            (*(Entry("learn", -1) for _ in range(8)), Entry("sync", -1)),
            1.0,
        ),
        Lane(
            "cpu-gpu0",
            "cpu-gpu0",
            0,
            "link",
            (*(Entry("sample>gpu0") for _ in range(8)), Entry("sync>cpu")),
            0.18,
        ),
    )
    edges = (
        Channel("act", "step", 1, 1, 0, 0, 0, 1, 32.0, None),
        Channel("step", "act", 1, 1, 1, 1, 0, 2, 128.0, None),
        Channel("step", "store", 1, 1, 0, 0, 0, 1, 400.0, None),
        Channel("store", "sample", 8, 1, 0, 0, 0, None, 0.0, None),
        Channel("sample", "store", 1, 8, 8, 8, 0, None, 0.0, None),
        Channel("sample", "learn", 1, 1, 2, 0, 2, 4, 12_800.0, "cpu-gpu0"),
        Channel("learn", "sync", 1, 8, 0, 0, 0, None, 0.0, None),
        Channel("sync", "learn", 8, 1, 8, 8, 0, None, 0.0, None),
        Channel("sync", "act", 1, 1, 2, 1, 1, 3, 18_184.0, "cpu-gpu0"),
    )
    return Plan(
        pearl_version="0.1.0",
        spec_sha256="0" * 64,
        host="example",
        objective="throughput",
        status="feasible",
        method="period",
        seed=0,
        solve_s=0.35,
        value=16_000.0,
        value_unit="env steps/s",
        bound_value=16_400.0,
        gap=1 - 16_000 / 16_400,
        period_s=500e-6,
        bound_s=500e-6 * 16_000 / 16_400,
        pace_s=None,
        simulated_period_s=512e-6,
        rates={
            "env_steps_per_s": 16_000.0,
            "updates_per_s": 16_000.0,
            "samples_per_s": 1_024_000.0,
        },
        energy_per_iteration_j=0.081,
        power_w=162.0,
        env_steps_per_j=98.8,
        bottleneck=Bottleneck("lane", "gpu0/0", ("learn", "sync")),
        lanes=lanes,
        tasks=tasks,
        edges=edges,
        bands=Bands(
            draws=200,
            seed=0,
            period_s=(302e-6, 1.19e-3),
            env_steps_per_s=(6_722.0, 26_490.0),
            updates_per_s=(6_722.0, 26_490.0),
            samples_per_s=(430_208.0, 1_695_360.0),
            energy_per_iteration_j=(0.05, 0.17),
            power_w=(140.0, 171.0),
            env_steps_per_j=(47.0, 160.0),
            missed=0,
        ),
        regret=Regret("mean", 40, 0, 0.031, 0.42, 0.02, 31, 0.068, 0.76),
    )


def fused_plan() -> Plan:
    """The same loop on one CPU lane, sample and learn fused."""
    members = ("sample", "learn", "priorities")
    fused = [
        placement(
            t,
            "cpu",
            "cpu/0",
            12e-6,
            firings=8,
            share_of_period=96e-6 / 446e-6,
            fused_with=tuple(m for m in members if m != t),
        )
        for t in members
    ]
    tasks = (
        placement("act", "cpu", "cpu/0", 30e-6),
        placement("step", "cpu", "cpu/0", 120e-6),
        placement("store", "cpu", "cpu/0", 8e-6),
        *fused,
    )
    order = ["act", "step", "store", *members * 8]
    return replace(
        two_device_plan(),
        status="optimal",
        gap=0.0,
        period_s=446e-6,
        bound_s=446e-6,
        lanes=(Lane("cpu/0", "cpu", 1, "cores", tuple(Entry(t) for t in order), 1.0),),
        tasks=tasks,
        edges=two_device_plan().edges[:5],
        bottleneck=Bottleneck("lane", "cpu/0", ("act", "step", *members)),
    )


def recorded(plan: Plan) -> dict[str, object]:
    """The times of lanes and the calls that a run of a plan may have kept: 9 % slower than planned,
    with a tenth of the time in the training loop."""
    schedule = schedule_of(plan)
    assert schedule is not None
    calls = tuple(
        MeasuredCall(c.lane, c.name, 40 * plan.task(c.name).firings
                     + next(iter(c.firings.values())).start, 1.09 * c.start_s,
                     1.09 * c.end_s, 1 if c.name == "act" else None)
        for c in planned_calls(plan, schedule, 4)
    )  # fmt: skip
    lanes = []
    for lane in (k for k in plan.lanes if k.width):
        own = [t for t in plan.tasks if t.lane == lane.lane]
        times = tuple(
            CallTime(t.task, 6250 * t.firings, 3.0 * t.share_of_period, 0.0, 0.01, 0.04)
            for t in own
        )
        home = lane.load == 1.0
        spent_s = sum(t.busy_s + t.transfer_s + t.waiting_s for t in times)
        python_s, held_s = (0.3, 0.1) if home else (0.0, 0.2)
        wall_s = spent_s + python_s + held_s + 0.051
        lanes.append(LaneTime(lane.lane, wall_s, times, 0.05, python_s, held_s, 0.001))
    return {"calls": calls, "lanes": tuple(lanes)}


def example_run(plan: Plan | None = None, **other: object) -> Run:
    plan = plan or two_device_plan()
    values: dict[str, object] = {
        "status": "done",
        "env_steps": 50_000,
        "updates": 49_000,
        "wall_s": 4.2,
        "cpu_s": 4.9,
        "steady": {"wall_s": 3.0, "cpu_s": 3.4, "env_steps": 44_000, "updates": 44_000},
        "env_steps_per_s": 44_000 / 3.0,
        "env_steps_per_cpu_s": 44_000 / 3.4,
        "updates_per_s": 44_000 / 3.0,
        "predicted_env_steps_per_s": plan.rates["env_steps_per_s"],
        "returns": {
            "mean_last_20": 471.3,
            "episodes": 412,
            "eval_mean": 498.5,
            "eval_returns": [500.0] * 19 + [470.0],
            "eval_cut": 0,
            "last_eval_mean": 117.2,
            "last_eval_returns": [117.2] * 20,
            "last_eval_cut": 0,
            "best_is_last": False,
        },
        "peak_rss_bytes": 412_000_000,
        "energy_j": 61.0,
        "energy_source": "modelled",
        "simulated": False,
        "tasks": tuple(
            TaskTiming(t.task, t.seconds, 1.09 * t.seconds, t.firings * 6250, t.task == "learn")
            for t in plan.tasks
        ),
        "plan": plan,
    }
    values.update(other)
    return Run(**values)  # type: ignore[arg-type]
