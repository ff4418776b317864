"""Placement of RL loops of large language models: a part of `python -m benchmarks.solver`.

Instances with known answers, read by `examples/llm_placement.py` from the folder `rl_placement` of
the data: RLinf's tests (their totals), splits that verl published with measured step times; and
random ones, against an enumeration of its own. PEARL plans these loops; it does not train them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import AbsentError, Bar, Part, at_most
from benchmarks.solver.clock import counted
from examples.llm_placement import groups_of, read
from pearl import InfeasibleError, Plan, solve
from pearl.planning.problem import Problem
from pearl.verification import check_plan

PUBLISHED_S = 289.095734
"""RLinf's total for its reasoning test, 80, 16 and 32 GPUs, of 512 groups."""

STREAMED_S = 60.0
"""Time limit of a streamed PPO loop."""

MEASURED = 0.15
"""Asked: how far a period may be from a measured one."""

COMPONENTS = ("rollout", "reward", "reference", "values", "train_actor", "train_critic")
SCORES, TRAINS = COMPONENTS[1:4], COMPONENTS[4:]
AFTER = {score: ["rollout"] for score in SCORES} | {train: list(SCORES) for train in TRAINS}
"""PPO's six components, and the components that each waits for."""

COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""GPUs that a component of the random instances may run on."""

LONG, LONG_S, LONG_GPUS, ABOVE = 10, 3.0, 1_024, 1.01
"""Components of a long loop, CPU-seconds and GPUs for it, and its period over that of an annealing
at most."""

Times = Mapping[str, Mapping[int, float]]


def ppo(seed: int) -> dict[str, Any]:
    """A random PPO loop on 64 GPUs. Components scale with their GPUs to a power of 0.5 to 1."""
    r = random.Random(seed)
    base = {n: r.uniform(5, 60) if n in SCORES else r.uniform(50, 400) for n in COMPONENTS}
    power = {n: r.uniform(0.5, 1.0) for n in COMPONENTS}
    times = {n: {k: base[n] * (64 / k) ** power[n] for k in COUNTS} for n in COMPONENTS}
    return {"name": f"ppo {seed}", "gpus": 64, "times": times, "after": AFTER}


def partitions(names: tuple[str, ...]) -> Iterator[list[list[str]]]:
    """Every way to put components in groups."""
    if not names:
        yield []
        return
    for rest in partitions(names[1:]):
        yield [[names[0]], *rest]
        for k, group in enumerate(rest):
            yield [*rest[:k], [names[0], *group], *rest[k + 1 :]]


def enumerated_s(times: Times, gpus: int) -> float:
    """The least seconds of an iteration that is not streamed: every grouping, every number of GPUs
    of each group, every order of the scores in a group. Nothing of PEARL's is used."""
    best = float("inf")
    for groups in partitions(COMPONENTS):
        sizes = np.array(
            [c for c in itertools.product(COUNTS, repeat=len(groups)) if sum(c) <= gpus], int
        )
        seconds = {
            n: np.array([times[n][k] for k in sizes[:, g]])
            for g, group in enumerate(groups)
            for n in group
        }
        group_of = {n: g for g, group in enumerate(groups) for n in group}
        start: NDArray[np.float64] = seconds["rollout"]
        for stages in itertools.product(*(itertools.permutations(s) for s in (SCORES, TRAINS))):
            done, free = start, dict[int, NDArray[np.float64]]()
            for stage in stages:
                ends = []
                for n in stage:
                    begin = np.maximum(done, free.get(group_of[n], np.zeros(1)))
                    free[group_of[n]] = begin + seconds[n]
                    ends.append(free[group_of[n]])
                done = np.maximum.reduce(ends)
            best = min(best, float(done.min()))
    return best


def tight(seed: int) -> dict[str, Any]:
    """A random loop whose memory forbids some groupings."""
    r = random.Random(seed)
    names = [f"c{k}" for k in range(r.randint(2, 5))]
    counts = 1, 2, 4, 8
    times = {n: {k: r.uniform(20, 200) / k ** r.uniform(0.5, 1) for k in counts} for n in names}
    return {
        "gpus": 8, "times": times, "firings": r.choice([1, 1, 2, 4]), "lag": r.choice([0, 1]),
        "gpu_gb": 80.0, "sharded_gb": {n: r.choice([0, 84, 200]) for n in names},
        "each_gb": {n: r.choice([0, 14, 40]) for n in names}, "transfer_s": r.choice([0.0, 3.0]),
        "switch_s": r.choice([0.0, 5.0]),
    }  # fmt: skip


def long(seed: int, firings: int = 1) -> dict[str, Any]:
    """A random loop of ten components, each after the one before it, on 1,024 GPUs."""
    r = random.Random(f"long {seed}")
    names = [f"c{k}" for k in range(LONG)]
    base = {n: math.exp(r.uniform(math.log(5), math.log(400))) for n in names}
    power = {n: r.uniform(0.5, 1.0) for n in names}
    counts = [2**k for k in range(11)]
    times = {n: {k: base[n] * (LONG_GPUS / k) ** power[n] for k in counts} for n in names}
    return {
        "gpus": LONG_GPUS, "times": times, "firings": firings, "lag": 1, "gpu_gb": 80.0,
        "sharded_gb": {n: r.choice([0, 84, 200, 600]) for n in names},
        "each_gb": {n: r.choice([0, 5, 14]) for n in names},
        "transfer_s": r.choice([0.0, 3.0]), "switch_s": r.choice([0.0, 5.0]),
    }  # fmt: skip


def annealed_s(instance: dict[str, Any], seed: int = 0, steps: int = 40_000) -> float:
    """The least seconds of an iteration in one part that an annealing over contiguous groups finds:
    it joins and cuts groups and changes their widths. Nothing of PEARL's is used.

    Each group is a lane that runs its components one after another, so that the period is the
    larger of the largest group and of all seconds over the iterations under way.
    """
    r, times = random.Random(seed), instance["times"]
    names, counts = list(times), sorted(times["c0"])

    def seconds(groups: list[list[Any]]) -> float:
        if sum(width for _, width in groups) > instance["gpus"]:
            return math.inf
        total, most = instance["transfer_s"] * (len(groups) > 1), 0.0
        for members, width in groups:
            kept = sum(instance["sharded_gb"][n] / width + instance["each_gb"][n] for n in members)
            if kept > instance["gpu_gb"]:
                return math.inf
            pairs = len(members) * (len(members) - 1) / 2
            group = sum(times[n][width] for n in members) + instance["switch_s"] * pairs
            most, total = max(most, group), total + group
        return max(most, total / (1 + instance["lag"]))

    now = [[names, counts[-1]]]
    value = best = seconds(now)
    for step in range(steps):
        then = [[list(members), width] for members, width in now]
        k = r.randrange(len(then))
        way = r.random()
        if way < 0.15 and k + 1 < len(then):
            then[k : k + 2] = [[then[k][0] + then[k + 1][0], r.choice(then[k : k + 2])[1]]]
        elif way < 0.3 and len(then[k][0]) > 1:
            at = r.randrange(1, len(then[k][0]))
            members, width = then[k]
            then[k : k + 1] = [[members[:at], width], [members[at:], r.choice(counts)]]
        elif way < 0.5 and k + 1 < len(then):
            both = then[k][0] + then[k + 1][0]
            at = r.randrange(1, len(both))
            then[k][0], then[k + 1][0] = both[:at], both[at:]
        for _ in range(r.randrange(3)):
            at = r.randrange(len(then))
            up = counts.index(then[at][1]) + r.choice((-1, 1))
            then[at][1] = counts[max(0, min(len(counts) - 1, up))]
        found, heat = seconds(then), 0.1 * 0.02 ** (step / steps) * min(best, 1e9)
        if found <= value or r.random() < math.exp(min(0.0, (value - found) / heat)):
            now, value = then, found
            best = min(best, value)
    return best


def held_gb(instance: dict[str, Any], plan: Plan) -> float:
    """The most that a GPU of any group holds, by the instance and the plan's widths alone."""
    most = 0.0
    for lane in plan.lanes:
        total = 0.0
        for task in {e.task for e in lane.order} - {"sync"}:
            shared = instance["sharded_gb"][task] / plan.task(task).width
            total += shared + instance["each_gb"][task]
        most = max(most, total)
    return most


def solved(instance: dict[str, Any], seconds: float = 60.0) -> tuple[Plan, float]:
    """The plan of an instance, checked, and the CPU-seconds that it took, with those of HiGHS. The
    limit counts them too, so that other processes change no plan."""
    problem = read(instance)
    with counted() as clock:
        began = clock()
        plan = solve(**problem, time_limit_s=seconds, workers=1)
        took = clock() - began
    check_plan(plan, Problem(problem["graph"], problem["costs"], problem["limits"]))
    return plan, took


def run(quick: bool, data: Path | None) -> Part:
    folder = data / "rl_placement" if data else None
    if folder is None or not folder.is_dir():
        raise AbsentError("the folder rl_placement: give its parent with --data or PEARL_DATA")

    def instance(name: str, **changed: Any) -> dict[str, Any]:
        return {**json.loads((folder / f"{name}.json").read_text()), **changed}

    rows: list[list[str]] = []
    bars: list[Bar] = []
    values: dict[str, Any] = {}

    def row(name: str, plan: Plan, took: float, known: str) -> None:
        groups = ", ".join(f"{'+'.join(names)} on {n}" for names, n in groups_of(plan))
        figures = [f"{plan.period_s:.4f}", f"{plan.gap:.3%}", plan.status, groups, f"{took:.2f}"]
        rows.append([name, known, *figures])
        values[name] = {"period_s": plan.period_s, "gap": plan.gap, "cpu_s": took, "groups": groups}

    solved(ppo(0))  # loads what is imported on use
    actor = instance("rlinf_reasoning_128")["times"]["actor"]["32"]
    inference = instance("rlinf_reasoning_128")["times"]["inference"]["16"]
    for firings in (64, 512):
        plan, took = solved(instance("rlinf_reasoning_128", firings=firings))
        published = (224.0 + inference + actor) / firings + (firings - 1) / firings * actor
        assert firings != 512 or abs(published - PUBLISHED_S) < 1e-4
        row(f"RLinf, reasoning, {firings} parts", plan, took, f"{published:.4f}")
        what = f"RLinf, 128 GPUs, {firings} parts"
        bars.append(Bar(f"{what}: proved", plan.status, "optimal", plan.status == "optimal"))
        beside = f"{what}: beside the published plan"
        bars.append(at_most(beside, plan.period_s, published, "{:.4f} s"))
        if firings == 64:
            bars.append(at_most(f"{what}: CPU", took, 5.0, "{:.2f} s"))
    plan, took = solved(instance("rlinf_libero_4"))
    row("RLinf, libero", plan, took, "104.58")
    met = plan.status == "optimal" and abs(plan.period_s - 104.58) < 1e-6
    told = f"{plan.period_s:.4f} s, {plan.status}"
    bars.append(Bar("RLinf, libero", told, "104.58 s, optimal", met))
    two = {"chain": ["rollout", "update_actor"], "lag": 1}
    one_step, asynchronous = "verl_qwen2.5_7b_h20_one_step_off", "verl_qwen2.5_7b_h20_fully_async"
    for name, file, changed, split, measured in (
        ("verl, one step off", one_step, {"gpus": 16, "lag": 1}, [4, 12], 520.0),
        ("verl, colocated", one_step, {"gpus": 16, "lag": 0}, [16], 749.0),
        ("verl, asynchronous, 128 GPUs", asynchronous, {"gpus": 128, **two}, [64, 64], 150.63),
    ):
        plan, took = solved(instance(file, **changed))
        row(name, plan, took, f"{measured:g} measured")
        chosen, off = sorted(n for _, n in groups_of(plan)), plan.period_s / measured - 1
        bars.append(Bar(f"{name}: split", str(chosen), str(split), chosen == split))
        bars.append(at_most(f"{name}: off the measured step", abs(off), MEASURED, "{:.1%}"))
    plan, took = solved(instance(asynchronous, gpus=64, **two))
    row("verl, asynchronous, 64 GPUs (no bar)", plan, took, "189.26 measured")
    count = 5 if quick else 50
    wrong, gaps, spent = 0, [], []
    for seed in range(count):
        plan, took = solved(ppo(seed))
        expected = enumerated_s(ppo(seed)["times"], 64)
        wrong += plan.status != "optimal" or abs(plan.period_s / expected - 1) > 1e-6
        streamed, took = solved({**ppo(seed), "firings": 4}, STREAMED_S)
        gaps.append(streamed.gap)
        spent.append(took)
    bars.append(Bar("PPO, 64 GPUs: not as enumerated", f"{wrong} of {count}", "0", wrong == 0))
    bars.append(at_most("PPO in 4 parts: largest gap", max(gaps), 0.01, "{:.2%}"))
    values["ppo"] = {"count": count, "wrong": wrong, "gaps": gaps, "cpu_s": spent}
    rows.append(
        [
            f"PPO in 4 parts, {count} instances",
            "",
            "",
            f"{max(gaps):.3%} at most",
            f"{sum(g <= 1e-6 for g in gaps)} proved",
            "",
            f"{np.median(spent):.2f} median",
        ]
    )
    count, above, parted = (2 if quick else 20), [], []
    for seed in range(count):
        plan, _ = solved(long(seed), LONG_S)
        above.append(plan.period_s / annealed_s(long(seed)))
        streamed, _ = solved(long(seed, 4), LONG_S)
        parted.append(streamed.period_s / plan.period_s)
    what = f"{LONG} components, {LONG_GPUS:,} GPUs, {LONG_S:g} CPU-s, worst of {count}"
    bars.append(at_most(f"{what}: over an annealing", max(above), ABOVE, "{:.4f}"))
    bars.append(at_most(f"{what}: 4 parts over one", max(parted), 1 + 1e-6, "{:.6f}"))
    values["long"] = {"above": above, "parted": parted}
    count, over, none = (20 if quick else 200), 0, 0
    for seed in range(count):
        try:
            plan, _ = solved(tight(seed), 10.0)
        except InfeasibleError:
            none += 1
            continue
        over += held_gb(tight(seed), plan) > tight(seed)["gpu_gb"] * (1 + 1e-9)
    told = f"{over} above ({none} infeasible)"
    bars.append(Bar(f"memory of a GPU, {count} tables", told, "0 above", over == 0))
    columns = ["instance", "known, s", "period, s", "gap", "status", "groups", "CPU, s"]
    left_out = ["45 of 50 PPO loops, 18 of 20 long loops, 180 of 200 tables"] if quick else []
    return Part("placement of RL loops of language models", columns, rows, bars, left_out, values)
