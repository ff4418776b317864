"""How many environments, actors and threads; which batch, replay ratio and width change the
answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from pearl.advice.asking import SOLVE_S, Case, Finding, numbers
from pearl.advice.comparison import Comparison, compare, how_sure, number
from pearl.errors import InfeasibleError, SpecError
from pearl.explanation.resolve import LEAST_S, devices_in, restricted
from pearl.formatting import count, listed, percent
from pearl.planner.gpu_balance import balance
from pearl.planning.plans import Plan
from pearl.solvers.solver import solve

ENVIRONMENTS = (0.25, 0.5, 2, 4, 8)
BATCHES = (0.25, 4, 16)
RATIOS = (Fraction(1, 4), Fraction(4))
WIDTHS = (0.5, 2, 4, 8)
"""Factors on the spec's own sizes that are tried."""

ACTORS = (1, 2, 4, 8)
"""Copies of the acting tasks that are tried."""

Size = float | Fraction
"""A size of a spec: samples, units, or gradient steps an env step."""

ENOUGH = 0.95
"""The least size is named that gives this share of the best of those tried."""


def how_many_environments(case: Case) -> Iterator[Finding]:
    """The rate over numbers of environments, and the least number that is enough."""
    now = getattr(case.system.algorithm, "num_envs", None)
    if not isinstance(now, int):
        return
    sizes = [n for f in ENVIRONMENTS if (n := int(now * f)) >= 1 and n != now]
    tried = {now: case.plan}
    for n in sizes:
        other = case.changed({"algorithm.num_envs": n})
        if other is not None:
            tried[n] = other
    if len(tried) == 1:
        return
    best = max(number(p) for p in tried.values())
    enough = min(n for n, p in tried.items() if number(p) >= ENOUGH * best)
    row = listed([f"{n}: {count(number(tried[n]))}" for n in sorted(tried)])
    question, sets = "How many environments?", {"algorithm.num_envs": enough}
    if enough == now:
        answer = f"{now}, as now: more give less than 5 % ({case.unit} by number: {row})."
        yield Finding(question, answer, case.command("plan"), numbers=_by(tried))
        return
    c = case.against(tried[enough])
    why = "are enough" if enough < now else f"give {case.beside(tried[enough])}"
    yield Finding(
        question,
        f"{enough} {why} ({case.unit} by number: {row}). More environments a gradient step change "
        "what is learned.",
        case.command("plan", sets=sets),
        c.better if enough > now else None,
        {**numbers(c, tried[enough]), **_by(tried)},
    )


def _by(tried: dict[int, Plan]) -> dict[str, object]:
    return {"by_size": {str(size): number(plan) for size, plan in sorted(tried.items())}}


def how_many_threads(case: Case) -> Iterator[Finding]:
    """Actor threads at which the GPU is the busier, where the platform has one."""
    try:
        found = balance(case.system)
    except SpecError:  # no actors, or not one CPU and one GPU
        return
    if not found.points:
        return
    point = found.points[-1]
    if point.closed is None:
        answer = "No number of threads keeps it busy: an actor's own work takes longer than its."
    else:
        n = max(1, math.ceil(point.closed))
        answer = f"{n} actor thread{'s' if n > 1 else ''} keep{'' if n > 1 else 's'} it busy."
    if found.halved_sms is not None and found.halved_cores is not None:
        answer += (
            f" With half of its multiprocessors {percent(found.halved_sms)} of the rate is left, "
            f"with half of the cores {percent(found.halved_cores)}, where slack is enough."
        )
    yield Finding(
        "How many threads does the GPU need?",
        answer,
        case.command("balance"),
        numbers={"threads": point.closed, "multiprocessors": point.sms},
    )


def how_many_actors(case: Case) -> Iterator[Finding]:
    """The threads that a GPU needs; then the rate over copies of the acting tasks, each in a thread
    of its own beside the learner."""
    yield from how_many_threads(case)
    acting = [t.name for t in case.graph.tasks if t.environments > 1]
    host = case.costs.platform.device(case.costs.platform.host)
    cores = min(host.max_lanes, host.width)
    if not acting or case.plan.objective == "makespan":
        return
    question = "How many actors and threads?"
    if cores < 2:
        yield Finding(
            question, f"One thread: {host.name} has one core to use.", case.command("plan")
        )
        return
    envs = min(case.graph.task(t).environments for t in acting)
    lag = max(1, case.system.limits.policy_lag)
    best: tuple[float, int, Plan] | None = None
    row = []
    for n in ACTORS:
        if n > min(envs, cores - 1) or case.left_s < 1:
            break
        sets: dict[str, object] = {"limits.policy_lag": lag, "limits.max_lanes": n + 1}
        if n > 1:
            sets |= {f"limits.replicas.{t}": n for t in acting}
        other = case.changed(sets)
        if other is None:
            continue
        row.append(f"{n}: {count(number(other))}")
        if best is not None and number(other) < best[0] / ENOUGH:
            break
        best = (number(other), n, other)
    if best is None:
        return
    _, n, other = best
    c = case.against(other)
    threads = len({k.lane for k in other.lanes if k.width})
    also = "" if case.system.limits.policy_lag else f" (with policy_lag {lag}, as actors need)"
    if c.ratio < 1.05:
        answer = f"One: actors in threads of their own{also} give less than 5 % ({'; '.join(row)})."
    else:
        plural = "actor" if n == 1 else "actors"
        answer = (
            f"{n} {plural}, {threads} lanes in all{also}: {case.beside(other)} ({'; '.join(row)})."
        )
    yield Finding(question, answer, case.command("plan"), c.better, numbers(c, other))


def which_sizes_matter(case: Case) -> Iterator[Finding]:
    """For batch, replay ratio and width of networks: where gradient steps move, and the rate."""
    a = case.system.algorithm
    batch, ratio, hidden = (getattr(a, k, None) for k in ("batch_size", "replay_ratio", "hidden"))
    if isinstance(batch, int):
        starts = getattr(a, "learning_starts", None)

        def sets(size: float) -> dict[str, object]:
            more = {} if starts is None else {"algorithm.learning_starts": max(int(size), starts)}
            return {"algorithm.batch_size": int(size), **more}

        yield from _over(case, "batch size", [batch * f for f in BATCHES], sets, batch)
    if isinstance(ratio, Fraction) and ratio > 0:
        yield from _over(
            case,
            "replay ratio",
            [ratio * f for f in RATIOS],
            lambda r: {"algorithm.replay_ratio": str(r)},
            ratio,
        )
    if isinstance(hidden, tuple | list) and hidden and all(isinstance(h, int) for h in hidden):
        yield from _over(
            case,
            "width of the networks",
            [hidden[0] * f for f in WIDTHS],
            lambda w: {"algorithm.hidden": [max(1, int(h * w / hidden[0])) for h in hidden]},
            hidden[0],
        )


def _over(
    case: Case,
    what: str,
    sizes: Sequence[Size],
    sets: Callable[[Any], dict[str, object]],
    now: Size,
) -> Iterator[Finding]:
    learning = case.tasks("gradient")
    if not learning:
        return
    here = devices_in(case.plan, learning)
    tried: dict[Size, Plan] = {now: case.plan}
    moved: tuple[Size, Plan] | None = None
    for size in sorted(sizes, key=lambda s: abs(float(s) - float(now))):
        other = case.changed(sets(size)) if size >= 1 or isinstance(size, Fraction) else None
        if other is None:
            continue
        tried[size] = other
        if devices_in(other, learning) != here and moved is None:
            moved = size, other
    if len(tried) == 1:
        return
    row = listed([f"{_plain(s)}: {count(number(p))}" for s, p in sorted(tried.items())])
    most = max(tried)
    command = case.command("plan", "--explain", sets=sets(moved[0] if moved else most))
    sure: Comparison | None = None
    verb = "moves" if len(learning) == 1 else "move"
    if moved:
        size, other = moved
        to = listed(devices_in(other, learning))
        stayed = _stayed(case, other, learning, here)
        sure = compare(stayed, other, case.draws) if stayed else None
        how = f", {how_sure(sure)}" if sure else ""
        answer = (
            f"Yes: at {_plain(size)} {listed(learning)} {verb} to {to}{how} ({case.unit}: {row})."
        )
    elif len(case.costs.platform.devices) == 1:
        answer = f"There is one device; the rate changes ({case.unit}: {row})."
    else:
        stay = "stays" if len(learning) == 1 else "stay"
        answer = (
            f"No: {listed(learning)} {stay} on {listed(here)} from "
            f"{_plain(min(tried))} to {_plain(most)} ({case.unit}: {row})."
        )
    yield Finding(
        f"Would another {what} change the answer?",
        answer,
        command,
        sure.better if sure else None,
        {
            "now": float(now),
            "moves_at": float(moved[0]) if moved else None,
            "by_size": {_plain(s): number(p) for s, p in sorted(tried.items())},
        },
    )


def _stayed(case: Case, moved: Plan, learning: Sequence[str], here: Sequence[str]) -> Plan | None:
    """The best plan of the problem of another one with gradient steps on the devices of now."""
    about = moved.problem
    if about is None or len(here) > 1 or case.left_s < LEAST_S:
        return None
    table = restricted(about.costs, {tuple(learning): here[0]}, {})
    try:
        return solve(
            about.graph,
            table,
            objective=moved.objective,
            limits=about.limits,
            time_limit_s=min(case.left_s, SOLVE_S),
            seed=moved.seed,
        )
    except InfeasibleError:
        return None


def _plain(size: Size) -> str:
    return str(size) if isinstance(size, Fraction) else f"{size:g}"
