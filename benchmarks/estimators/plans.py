"""Whole plans of this host: predicted against measured throughput, and whether the plan that is
chosen is the best of those that come near.

The systems are drawn by a seed: algorithm, environment, network, batch, environments, replay, slack
and lanes. Beside the chosen plan run the best one of a single lane, the best one of several (also
where the planner says that they do not pay) and its nearest runner-ups. All of a system run in
turns, each in a process that has compiled everything before; the figure of a plan is the median.
A plan of one core is measured by the CPU-seconds it takes, which others on the machine change
little; one of several by wall time, in runs in which the cores were as far apart before and after
as when the host was calibrated (`pearl_devices.primitives.math.core_latency`): the host of a
virtual machine moves its processors, and no estimate knows where it will.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pearl
from benchmarks.bars import Part, at_least, at_most
from pearl.explanation import explain
from pearl.explanation.near_optimal import signature
from pearl.planner import planner
from pearl.planning.plans import Plan
from pearl.spec.reading import System
from pearl_devices.primitives.math.core_latency import as_near
from pearl_estimators.host.measuring import calibrate

SEED, CASES, QUICK_CASES = 11, 30, 3
NEAREST = 2
"""Runner-ups measured beside the chosen plan, at most."""
WITHIN = 0.3
"""How far below the chosen plan they may be, predicted."""
RUN_S, ROUNDS = 0.8, 3
TRIES = 5
"""Runs of a plan on two cores, at most, for one that counts."""
MEDIAN, WORST, CLOSE, SHARE = 0.10, 0.25, 0.03, 0.9

DISCRETE = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
CONTINUOUS = ("Pendulum-v1", "MountainCarContinuous-v0")
SLOW = "benchmarks.slow_env:cartpole"


def drawn(random_: random.Random) -> dict[str, Any]:
    """One spec."""
    name = random_.choice(["dqn", "dqn", "ddpg", "td3", "sac", "ppo", "a2c"])
    discrete = name == "dqn" or (name in ("ppo", "a2c") and random_.random() < 0.5)
    env = random_.choice(DISCRETE if discrete else CONTINUOUS)
    width = random_.choice([32, 48, 64, 96, 128, 200, 256])
    algorithm: dict[str, Any] = {
        "name": name, "env": env, "hidden": [width] * random_.choice([1, 2, 2, 3]),
        "num_envs": random_.choice([1, 2, 4, 8, 16, 24]),
    }  # fmt: skip
    if discrete and random_.random() < 0.4:
        algorithm |= {"env": SLOW, "env_args": {"us": random_.choice([20, 60, 150])}}
    if name not in ("ppo", "a2c"):
        prioritised = random_.random() < 0.5
        capacity = algorithm["num_envs"] * random_.choice([500, 4_000, 20_000])
        algorithm |= {
            "batch_size": random_.choice([32, 64, 100, 128, 256, 400]),
            "replay_ratio": random_.choice(["1", "1/2", "1/4"]),
            "replay": {"kind": "prioritised" if prioritised else "uniform", "capacity": capacity},
            "learning_starts": 400,
        }
    limits: dict[str, Any] = {"max_lanes": random_.choice([1, 2, 2])}
    if limits["max_lanes"] == 2 and name not in ("ppo", "a2c"):
        limits |= {"policy_lag": random_.choice([0, 1, 2]), "prefetch": random_.choice([0, 1])}
    train = {"evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0, "seed": 0}
    return {"algorithm": algorithm, "limits": limits, "train": {**train, "steps": 1_000}}


def label(spec: dict[str, Any]) -> str:
    a, env = spec["algorithm"], str(spec["algorithm"]["env"])
    env = f"own env of {a['env_args']['us']} us" if env == SLOW else env.partition("-")[0]
    kind = f", {a['replay']['kind']}" if "replay" in a else ""
    batch = f" b{a['batch_size']}" if "batch_size" in a else ""
    return f"{a['name']} {env} {a['hidden']}{batch} x{a['num_envs']}{kind}"


@contextmanager
def several_lanes_wanted() -> Iterator[None]:
    """Within it the planner takes several lanes even where they promise little."""
    before, planner.MIN_GAIN = planner.MIN_GAIN, 0.0
    try:
        yield
    finally:
        planner.MIN_GAIN = before


def candidates(system: System) -> list[Plan]:
    """The chosen plan first, then others, no two alike."""
    chosen = pearl.plan(system)
    found = {signature(chosen): chosen}
    others = []
    if system.limits.max_lanes != 1:
        alone = replace(system, limits=replace(system.limits, max_lanes=1))
        others.append(replace(pearl.plan(alone), spec_sha256=system.sha256))
        with several_lanes_wanted():
            others.append(pearl.plan(system))
    close = explain(chosen, within=WITHIN, time_limit_s=4.0).runner_ups.plans[:NEAREST]
    for plan in [*others, *(r.plan for r in close)]:
        found.setdefault(signature(plan), plan)
    return list(found.values())


def lanes(plan: Plan) -> int:
    return len({t.lane for t in plan.tasks})


def trained(system: System, plan: Plan, rate: float, seconds: float) -> float:
    """Measured env steps per second of a run of about so many seconds at `rate`."""
    start = getattr(system.algorithm, "learning_starts", 0)
    steps = math.ceil((start + seconds * rate) / 0.9)
    longer = pearl.load(system.raw, set={"train.steps": steps})
    run = pearl.compile(longer, plan=plan, seed=0).train(steps=steps)
    found = run.env_steps_per_cpu_s if lanes(plan) == 1 and plan_cores(plan) == 1 else None
    found = found or run.env_steps_per_s
    if not found:
        raise RuntimeError(f"{system.name}: {steps} env steps have no steady stretch")
    return found


def plan_cores(plan: Plan) -> int:
    """The most cores that a call of the plan takes."""
    return max(t.width for t in plan.tasks)


def measured(system: System, plans: list[Plan], rounds: int) -> tuple[list[float], list[bool]]:
    """Env steps per second of each plan, the median of `rounds` runs in turns; and whether it is
    void, since no run of it counts."""
    rates = [trained(system, p, p.rates["env_steps_per_s"], 0.3) for p in plans]
    runs: list[list[float]] = [[] for _ in plans]
    others: list[list[float]] = [[] for _ in plans]
    for _ in range(rounds):
        for n, plan in enumerate(plans):
            for _ in range(TRIES):
                rate, counts = as_calibrated(plan, partial(trained, system, plan, rates[n], RUN_S))
                (runs if counts else others)[n].append(rate)
                if counts:
                    break
    return [median(r or o) for r, o in zip(runs, others, strict=True)], [not r for r in runs]


def as_calibrated(plan: Plan, run: Callable[[], float]) -> tuple[float, bool]:
    """What `run` returns, and whether the cores it takes were as far apart as when calibrated."""
    if lanes(plan) == plan_cores(plan) == 1:
        return run(), True
    return as_near(run, calibrate().apart_s)


def what(plan: Plan) -> str:
    """Lanes, widest call and variants in a few words."""
    variants = sorted({t.variant for t in plan.tasks})
    fused = max((len(t.fused_with) + 1 for t in plan.tasks if t.fused_with), default=0)
    parts = [f"{lanes(plan)} lane" + ("s" if lanes(plan) > 1 else ""), "+".join(variants)]
    if fused:
        parts.append(f"{fused} in one call")
    return ", ".join(parts)


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others."""
    random_ = random.Random(SEED)
    count, rounds = (QUICK_CASES, 1) if quick else (CASES, ROUNDS)
    rows: list[list[str]] = []
    errors: list[float] = []
    short: list[float] = []
    values: list[dict[str, Any]] = []
    for number in range(count):
        spec = drawn(random_)
        system = pearl.load(spec)
        plans = candidates(system)
        found, void = measured(system, plans, rounds)
        best = max(found)
        errors.append(abs(plans[0].rates["env_steps_per_s"] / found[0] - 1))
        short.append(1 - found[0] / best)
        for n, (plan, rate) in enumerate(zip(plans, found, strict=True)):
            predicted = plan.rates["env_steps_per_s"]
            rows.append(
                [
                    f"{number + 1} {label(spec)}" if n == 0 else "", what(plan),
                    f"{predicted:,.0f}", f"{rate:,.0f}", f"{100 * (predicted / rate - 1):+.1f} %",
                    f"{rate / best:.3f}" + (" (cores elsewhere)" if void[n] else ""),
                ],
            )  # fmt: skip
        values.append(
            {
                "spec": spec, "plans": [what(p) for p in plans],
                "predicted": [p.rates["env_steps_per_s"] for p in plans], "measured": found,
                "void": void,
            },
        )  # fmt: skip
        print(f"  {number + 1}/{count} {label(spec)}: {100 * errors[-1]:.1f} %", flush=True)
    good = sum(s <= CLOSE for s in short) / count
    near = f"chosen plan within {CLOSE:.0%} of the measured best of its candidates, of {count}"
    bars = [
        at_most("error of a whole plan, median", median(errors), MEDIAN, "{:.1%}"),
        at_most("error of a whole plan, worst", max(errors), WORST, "{:.1%}"),
        at_least(near, good, SHARE, "{:.0%}"),
    ]
    columns = ["system", "plan", "predicted /s", "measured /s", "error", "of the best"]
    left_out = [f"{CASES - count} of {CASES} systems, repeated runs"] if quick else []
    title = "Env steps per second of whole plans; the first of each system is the chosen one"
    return Part(title, columns, rows, bars, left_out, {"systems": values, "seed": SEED})
