"""How many environments, actors, threads and learners to use; which of batch, replay ratio, width
and units of the devices change the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from pearl.advice.case import SOLVE_S, Case, Finding, numbers
from pearl.advice.comparison import Comparison, compare, how_sure, number
from pearl.errors import InfeasibleError
from pearl.explanation.resolve import LEAST_S, devices_in, restrict
from pearl.formatting import count, listed
from pearl.planning.plans import Plan
from pearl.solvers.solver import solve_problem
from pearl.spec.system import System
from pearl_devices import Device

ENVIRONMENTS = (0.25, 0.5, 2, 4, 8)
BATCHES = (0.25, 4, 16)
RATIOS = (Fraction(1, 4), Fraction(4))
WIDTHS = (0.5, 2, 4, 8)
"""Factors on the spec's own sizes that are tried."""

CAPACITIES = (0.5, 2)
"""Factors on the units of each device that are tried."""

ACTORS = (1, 2, 4, 8)
"""Numbers of copies of the acting tasks that are tried."""

LEARNERS = (1, 2, 4, 8)
"""Numbers of learners with averaged gradients that are tried."""

Size = float | Fraction
"""A size of a spec: samples, units, or gradient steps per env step."""

ENOUGH = 0.95
"""The smallest size with this share of the best rate is recommended."""


def how_many_environments(case: Case) -> Iterator[Finding]:
    """Yield the rate for numbers of environments, and the least sufficient number."""
    now = getattr(case.system.algorithm, "num_envs", None)
    if not isinstance(now, int):
        return
    sizes = [n for f in ENVIRONMENTS if (n := int(now * f)) >= 1 and n != now]
    tried = {now: case.plan}
    for n in sizes:
        other = case.plan_with({"algorithm.num_envs": n})
        if other is not None:
            tried[n] = other
    if len(tried) == 1:
        return
    enough = _smallest_sufficient(tried)
    row = listed([f"{n}: {count(number(tried[n]))}" for n in sorted(tried)])
    question, sets = "How many environments?", {"algorithm.num_envs": enough}
    if enough == now:
        answer = f"{now}, as now: more give less than 5 % ({case.unit} by number: {row})."
        yield Finding(question, answer, case.command("plan"), numbers=_by_size(tried))
        return
    c = case.compare(tried[enough])
    verdict = "are enough" if enough < now else f"give {case.comparison_text(tried[enough])}"
    yield Finding(
        question,
        f"{enough} {verdict} ({case.unit} by number: {row}). More environments a gradient step "
        "change what is learned.",
        case.command("plan", sets=sets),
        c.confidence if enough > now else None,
        {**numbers(c, tried[enough]), **_by_size(tried)},
    )


def _by_size(tried: dict[int, Plan]) -> dict[str, object]:
    return {"by_size": {str(size): number(plan) for size, plan in sorted(tried.items())}}


def which_capacities_matter(case: Case) -> Iterator[Finding]:
    """Yield the rate with half and with twice the cores, multiprocessors or other units of each
    device in use; its memory and links stay as they are."""
    answers, rates = list[str](), dict[str, dict[str, float]]()
    used = {t.device for t in case.plan.tasks}
    for device in (d for d in case.system.platform.devices if d.name in used):
        tried = {device.width: case.plan}
        for factor in CAPACITIES:
            other = scale_units(device, factor)
            if other.width not in tried and (
                plan := case.plan_system(_replace_device(case, other))
            ):
                tried[other.width] = plan
        if len(tried) == 1:
            continue
        now = number(case.plan)
        row = listed([f"{n}: {count(number(p))}" for n, p in sorted(tried.items())])
        changes = {n: number(p) / now - 1 for n, p in tried.items()}
        most = max(changes, key=lambda n: abs(changes[n]))
        effect = (
            "change the rate by less than 5 %"
            if abs(changes[most]) <= 1 - ENOUGH
            else f"change the rate by up to {changes[most]:+.0%}".replace("%", " %")
        )
        low, high = min(tried), max(tried)
        answers.append(f"{low} to {high} {device.width_unit} of {device.name} {effect} ({row})")
        rates[device.name] = {str(n): number(p) for n, p in sorted(tried.items())}
    if answers:
        yield Finding(
            "Which cores or multiprocessors matter?",
            f"{'; '.join(answers)}; in {case.unit} by number, without more memory or links.",
            case.command("plan", "--explain"),
            numbers={"by_width": rates},
        )


def scale_units(device: Device, factor: float) -> Device:
    """Return a device with `factor` times its units and their rates. A larger one has no model,
    because what was timed on the model ends at its units."""
    width = max(1, int(device.width * factor))
    share = width / device.width
    lanes = max(1, int(device.max_lanes * share)) if device.max_lanes > 1 else 1
    return replace(
        device,
        model=device.model if factor <= 1 else "",
        width=width,
        max_lanes=min(width, lanes),
        peak_flops_per_s=device.peak_flops_per_s * share,
    )


def _replace_device(case: Case, device: Device) -> System:
    platform = case.system.platform
    devices = tuple(device if d.name == device.name else d for d in platform.devices)
    return replace(case.system, platform=replace(platform, devices=devices))


def how_many_actors(case: Case) -> Iterator[Finding]:
    """Yield the rate for copies of the acting tasks, each on a lane, and with actors that are one
    param sync behind, so that they continue during gradient steps."""
    acting = [t.name for t in case.problem.graph.tasks if t.environments > 1]
    host = case.problem.costs.platform.device(case.problem.costs.platform.host)
    cores, limits = min(host.max_lanes, host.width), case.system.limits
    if not acting or case.plan.objective == "makespan":
        return
    question = "How many actors and threads?"
    if cores < 2:
        text = f"One thread: {host.name} has one core to use."
        yield Finding(question, text, case.command("plan"), decides=False)
        return

    def room(n: int) -> dict[str, object]:
        short = limits.max_lanes is not None and limits.max_lanes <= n
        return {"limits.max_lanes": n + 1} if short else {}

    def sets(n: int, lag: int) -> dict[str, object]:
        copies: dict[str, object] = {f"limits.replicas.{t}": n for t in acting}
        return {**copies, **room(n), **({"limits.policy_lag": lag} if lag else {})}

    now = max(t.replicas for t in case.plan.tasks if t.task in acting)
    max_actors = min(cores, *(case.problem.graph.task(t).environments for t in acting))
    base = (case.plan_with(room(now)) if room(now) else None) or case.plan
    tried, skipped = {now: base}, list[int]()
    for n in (*(n for n in ACTORS if now < n <= max_actors), *(n for n in ACTORS if n < now)):
        if case.left_s < 1:
            skipped.append(n)
        elif (other := case.plan_with(sets(n, limits.policy_lag))) is not None:
            tried[n] = other
    row = listed([f"{n}: {count(number(tried[n]))}" for n in sorted(tried)])
    n, lag = _smallest_sufficient(tried), limits.policy_lag
    if number(tried[now]) >= ENOUGH * max(map(number, tried.values())):
        n = now
    chosen = tried[n]
    behind = None if lag else case.plan_with(sets(n, 1))
    if behind is not None:
        row += f"; {n} with policy_lag 1: {count(number(behind))}"
        if number(behind) * ENOUGH >= number(chosen):
            chosen, lag = behind, 1
    row += "; max_lanes one more" if room(max(tried)) else ""
    untried = f" No time was left for {listed(list(map(str, skipped)))}." if skipped else ""
    if chosen is base:
        answer = f"{n}, as now: others that were tried give less than 5 % more ({row}).{untried}"
        yield Finding(question, answer, case.command("plan"), numbers=_by_size(tried))
        return
    c, lanes = case.compare(chosen), sum(k.width > 0 for k in chosen.lanes)
    which = f"{n} actor{'s' if n > 1 else ''}{f' with policy_lag {lag}' if lag else ''}"
    answer = (
        f"{which}, {lanes} lane{'s' if lanes > 1 else ''} in all: {case.comparison_text(chosen)}"
    )
    yield Finding(
        question,
        f"{answer} (copies of {listed(acting)} at most: {row}).{untried}",
        case.command("plan", sets=sets(n, lag)),
        c.confidence,
        {**numbers(c, chosen), **_by_size(tried)},
    )


def how_many_learners(case: Case) -> Iterator[Finding]:
    """Yield the rate for numbers of learners with averaged gradients, each on its own lane."""
    platform, limits = case.problem.costs.platform, case.system.limits
    kind = platform.device(platform.host).kind
    lanes = sum(d.max_lanes for d in platform.devices if d.kind == kind)
    now, tried = limits.learners, {limits.learners: case.plan}
    question = "How many learners with averaged gradients?"
    if case.plan.objective == "makespan":
        return

    def sets(n: int) -> dict[str, object]:
        max_lanes = limits.max_lanes
        short = max_lanes is not None and max_lanes <= n
        keys: dict[str, object] = {"limits.learners": n}
        if short:
            keys["limits.max_lanes"] = min(lanes, n + 1)
        if n == 1 and limits.reduction is not None:  # only several learners have a reduction
            keys["limits.reduction"] = None
        return keys

    for n in LEARNERS:
        other = case.plan_with(sets(n)) if n != now and n <= lanes else None
        if other is not None:
            tried[n] = other
    if len(tried) == 1:
        if case.left_s > LEAST_S:
            answer = (
                f"{now}, as now: no other number that was tried is possible; the command says why."
            )
            command = case.command("check", sets=sets(3 - min(now, 2)))
            yield Finding(question, answer, command, decides=False)
        return
    best = max(number(p) for p in tried.values())
    enough = now if number(case.plan) >= ENOUGH * best else _smallest_sufficient(tried)
    row = listed([f"{n}: {count(number(tried[n]))}" for n in sorted(tried)])
    if enough == now:
        answer = f"{now}, as now: others give less than 5 % more ({case.unit} by number: {row})."
        yield Finding(question, answer, case.command("plan"), numbers=_by_size(tried))
        return
    c = case.compare(tried[enough])
    yield Finding(
        question,
        f"{enough}: {case.comparison_text(tried[enough])} ({case.unit} by number: {row}). What is "
        "learned changes by the order of a sum.",
        case.command("plan", sets=sets(enough)),
        c.confidence,
        {**numbers(c, tried[enough]), **_by_size(tried)},
    )


def _smallest_sufficient(tried: Mapping[int, Plan]) -> int:
    """The least sufficient number."""
    best = max(number(p) for p in tried.values())
    return min(n for n, p in tried.items() if number(p) >= ENOUGH * best)


def which_sizes_matter(case: Case) -> Iterator[Finding]:
    """Yield for batch, replay ratio and width: the device of gradient steps, and the rate."""
    a = case.system.algorithm
    batch, ratio, hidden = (getattr(a, k, None) for k in ("batch_size", "replay_ratio", "hidden"))
    if isinstance(batch, int):
        starts = getattr(a, "learning_starts", None)

        def sets(size: float) -> dict[str, object]:
            more = {} if starts is None else {"algorithm.learning_starts": max(int(size), starts)}
            return {"algorithm.batch_size": int(size), **more}

        yield from _size_finding(case, "batch size", [batch * f for f in BATCHES], sets, batch)
    if isinstance(ratio, Fraction) and ratio > 0:
        yield from _size_finding(
            case,
            "replay ratio",
            [ratio * f for f in RATIOS],
            lambda r: {"algorithm.replay_ratio": str(r)},
            ratio,
        )
    if isinstance(hidden, tuple | list) and hidden and all(isinstance(h, int) for h in hidden):
        yield from _size_finding(
            case,
            "width of the networks",
            [hidden[0] * f for f in WIDTHS],
            lambda w: {"algorithm.hidden": [max(1, int(h * w / hidden[0])) for h in hidden]},
            hidden[0],
        )


def _size_finding(
    case: Case,
    size_name: str,
    sizes: Sequence[Size],
    sets: Callable[[Any], dict[str, object]],
    now: Size,
) -> Iterator[Finding]:
    learning = case.tasks("gradient")
    if not learning:
        return
    devices = devices_in(case.plan, learning)
    tried: dict[Size, Plan] = {now: case.plan}
    moved: tuple[Size, Plan] | None = None
    for size in sorted(sizes, key=lambda s: abs(float(s) - float(now))):
        other = case.plan_with(sets(size)) if size >= 1 or isinstance(size, Fraction) else None
        if other is None:
            continue
        tried[size] = other
        if devices_in(other, learning) != devices and moved is None:
            moved = size, other
    if len(tried) == 1:
        return
    row = listed([f"{_size_text(s)}: {count(number(p))}" for s, p in sorted(tried.items())])
    largest = max(tried)
    command = case.command("plan", "--explain", sets=sets(moved[0] if moved else largest))
    sure: Comparison | None = None
    verb = "moves" if len(learning) == 1 else "move"
    if moved:
        size, other = moved
        to = listed(devices_in(other, learning))
        stayed = _plan_staying(case, other, learning, devices)
        sure = compare(stayed, other, case.draws) if stayed else None
        word, how = "Yes", ""
        if sure is not None and sure.choice == "either":
            word, how = "By the estimates yes", f", but {how_sure(sure)}"
        elif sure is not None and sure.choice == "plan":
            word = "By the estimates yes, by most draws no"
            how = f"; {listed(devices)} is {how_sure(sure)}"
        elif sure is not None:
            how = f", {how_sure(sure)}"
        answer = (
            f"{word}: at {_size_text(size)} {listed(learning)} {verb} to {to}{how} "
            f"({case.unit}: {row})."
        )
    elif len(case.problem.costs.platform.devices) == 1:
        answer = f"There is one device; the rate changes ({case.unit}: {row})."
    else:
        stay = "stays" if len(learning) == 1 else "stay"
        answer = (
            f"No: {listed(learning)} {stay} on {listed(devices)} from "
            f"{_size_text(min(tried))} to {_size_text(largest)} ({case.unit}: {row})."
        )
    yield Finding(
        f"Would another {size_name} change the answer?",
        answer,
        command,
        sure.confidence if sure else None,
        {
            "now": float(now),
            "moves_at": float(moved[0]) if moved else None,
            "by_size": {_size_text(s): number(p) for s, p in sorted(tried.items())},
        },
        decides=len(case.problem.costs.platform.devices) > 1,
    )


def _plan_staying(
    case: Case, moved: Plan, learning: Sequence[str], devices: Sequence[str]
) -> Plan | None:
    """The best plan of another plan's problem with gradient steps on the present devices."""
    problem = moved.problem
    if problem is None or len(devices) > 1 or case.left_s < LEAST_S:
        return None
    narrow = restrict(problem, {tuple(learning): devices[0]}, {})
    try:
        return solve_problem(
            replace(narrow, objective=moved.objective),
            time_limit_s=min(case.left_s, SOLVE_S),
            seed=moved.seed,
        )
    except InfeasibleError:
        return None


def _size_text(size: Size) -> str:
    return str(size) if isinstance(size, Fraction) else f"{size:g}"
