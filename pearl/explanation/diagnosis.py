"""Answers to common questions: why the GPU is slower or faster than the CPU, why it idles, and
where the replay should live.

Every sentence is built from costs and solves. A question is left out if the platform leaves no
choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pearl.explanation.near_optimal import differences
from pearl.explanation.resolve import (
    Answer,
    Resolver,
    classes,
    devices_in,
    devices_of,
    equivalents_of,
    restrict,
)
from pearl.formatting import count, figure, listed, percent, si
from pearl.planning.costs import Mode
from pearl.planning.plans import Plan
from pearl.planning.timing import delay_s
from pearl.planning.variants import (
    allowed_variants,
    exclusion_reason,
    has_backend,
    is_excluded,
    refusal_reason,
)
from pearl_devices import Device
from pearl_devices.kernels import kind_of
from pearl_estimators.roofline import launches

ALIKE = 1e-3
"""Fraction below which one plan counts as no faster than another."""

FEW = 3
"""Most differences of a plan that are named."""


@dataclass(frozen=True)
class QuestionAnswer:
    """A question and its answer."""

    question: str
    answer: str


def fastest_by_estimates(resolver: Resolver) -> tuple[QuestionAnswer, ...]:
    """Explain a robust plan: return the plan that is fastest by the estimates alone, and why it was
    not chosen."""
    best = resolver.plan
    if best.regret is None:
        return ()
    question = "Why not the fastest plan by the estimates alone?"
    answer = replace(resolver, plan=replace(best, regret=None)).solve()
    if answer is None or answer.plan is None:
        return (QuestionAnswer(question, "No time was left to look for that plan."),)
    if answer.gain <= ALIKE:
        sure = "No plan is" if answer.proven else "No plan was found that is"
        return (QuestionAnswer(question, f"{sure} faster by the estimates alone than this one."),)
    other, kind = answer.plan, best.regret.kind
    faster = (
        f"By the estimates alone {_where(best, other)} is {100 * answer.gain:.1f} % faster "
        f"({count(other.value)} instead of {figure(best.value, best.value_unit)})"
    )
    own, its = (f"{percent(c - 1)}" for c in (resolver.own_cost, resolver.cost_of(other)))
    if resolver.cost_of(other) > resolver.own_cost:
        reason = (
            f"Its uncertainty is why it was not chosen: over {best.regret.draws} draws of the "
            f"times its {kind} regret is {its}, this plan's {own}."
        )
    else:
        reason = (
            f"Over the draws it is no worse either ({kind} regret {its}, this plan's {own}): this "
            "plan is not the best; solve longer."
        )
    return (QuestionAnswer(question, f"{faster}. {reason}"),)


def _where(best: Plan, other: Plan) -> str:
    """The differences of another plan, in one phrase."""
    lines = differences(best, other)
    more = f" and {len(lines) - FEW} more" if len(lines) > FEW else ""
    return f"the plan with {'; '.join(lines[:FEW])}{more}"


def answers(resolver: Resolver) -> tuple[QuestionAnswer, ...]:
    """Return answers to the questions that this platform raises.

    Empty without an accelerator: a device of another kind than the host's, not simulated.
    """
    platform = resolver.problem.costs.platform
    host = platform.device(platform.host)
    sentences: list[QuestionAnswer] = []
    covered: set[str] = set()
    gpus = [d for d in platform.devices if d.kind != host.kind and not d.simulated]
    for gpu in gpus:
        is_covered = covered.intersection(equivalents_of(resolver.interchangeable, gpu.name))
        if not is_covered and (compared := compare_with_cpu(resolver, gpu)):
            sentences.append(compared)
        covered.add(gpu.name)
        if idle := idle_reason(resolver, gpu):
            sentences.append(QuestionAnswer(f"Why does {gpu.name} idle?", idle))
    replay = where_replay(resolver) if gpus else None
    if replay:
        sentences.append(QuestionAnswer("Where should the replay live?", replay))
    refusing = [d for d in platform.devices if d.kind != host.kind]
    return (*sentences, *refusals(resolver, refusing))


def refusals(resolver: Resolver, devices: Sequence[Device]) -> tuple[QuestionAnswer, ...]:
    """Return for each device the tasks that it refuses, or for which the limits leave no variant,
    with the reasons. Devices with the same reasons share one answer."""
    same: dict[str, list[str]] = {}
    limits = resolver.problem.limits
    for device in filter(has_backend, devices):
        tasks: dict[str, list[str]] = {}
        able = {t for m in resolver.problem.costs.modes if m.device == device.name for t in m.tasks}
        for task in resolver.problem.graph.tasks:
            if task.name in able or is_excluded((task.name,), device, limits):
                continue
            if not allowed_variants((task.name,), task.kernel, device, limits):
                reason = exclusion_reason((task.name,), task.kernel, device, limits)
                tasks.setdefault(reason, []).append(task.name)
        if tasks:
            text = "; ".join(f"{listed(names)}: {reason}" for reason, names in tasks.items())
            same.setdefault(text, []).append(device.name)
    return tuple(
        QuestionAnswer(f"What can {listed(names)} not run?", f"{text}.")
        for text, names in same.items()
    )


def compare_with_cpu(resolver: Resolver, gpu: Device) -> QuestionAnswer | None:
    """Compare both devices on the task with the longest CPU time that both can run.

    The answer has the parts of the GPU's time, and the time that its messages add. The question
    names the slower device. None if no task runs on both.
    """
    platform = resolver.problem.costs.platform
    kind = platform.device(platform.host).kind
    cpus = [d.name for d in platform.devices if d.kind == kind]
    pairs: list[tuple[float, str, Mode, float, Mode]] = []
    for task in resolver.problem.graph.tasks:
        gpu_modes = [m for m in resolver.problem.costs.of(task.name) if m.device == gpu.name]
        cpu_modes = [
            (seconds, m)
            for m in resolver.problem.costs.modes
            if task.name in m.tasks and m.share is None and m.device in cpus
            if (seconds := _firing_s(resolver, m, task.name)) is not None
        ]
        if gpu_modes and cpu_modes:
            best = min(gpu_modes, key=lambda m: m.estimate.latency_s)
            cpu_s, cpu = min(cpu_modes, key=lambda pair: pair[0])
            total = cpu_s * resolver.problem.graph.repetition[task.name]
            pairs.append((total, task.name, best, cpu_s, cpu))
    if not pairs:
        return None
    _, name, mode, cpu_s, cpu = max(pairs, key=lambda p: p[0])
    gpu_s = mode.estimate.latency_s
    apart = f"{name} takes {si(gpu_s, 's')} a firing on {gpu.name}"
    beside = f"{si(cpu_s, 's')} on {cpu.device}"
    if cpu.fused:
        beside += f" (its share of one call with {len(cpu.tasks) - 1} other tasks)"
    waits = _message_delay_s(resolver, name, gpu.name, cpu.device)
    text = f"{_parts_text(resolver, name, mode)}; its messages to and from {cpu.device} add "
    text += f"{si(waits, 's')} a firing"
    slower = gpu_s + waits > cpu_s
    question = f"Why is {gpu.name} {'slower' if slower else 'faster'} than the CPU?"
    if slower and gpu_s <= cpu_s:
        both = si(gpu_s + waits, "s")
        text = f"By its messages: {apart} and {beside}; but {text}, {both} in all."
    else:
        text = f"{apart} and {beside}: {text}."
    return QuestionAnswer(question, text)


def _firing_s(resolver: Resolver, mode: Mode, task: str) -> float | None:
    """Seconds of a firing; in a fused call the task's share; None if no shares are known."""
    if not mode.fused:
        return mode.estimate.latency_s
    share = resolver.problem.costs.shares(mode, resolver.problem.graph).get(task)
    return share and mode.estimate.latency_s * share / resolver.problem.graph.repetition[task]


def _parts_text(resolver: Resolver, task: str, mode: Mode) -> str:
    """The parts of a mode's time that its estimate names; else the resource that bounds it."""
    kernel, e = resolver.problem.graph.task(task).kernel, mode.estimate
    parts = sorted(((s, name) for name, s in e.parts.items() if s > 0), reverse=True)
    if not parts:
        return f"{e.bound_by} bounds it there (rung {e.rung})"
    started = count(launches(kernel, mode.variant))
    names = {
        "starts": f"starting {started} operation{'' if started == '1' else 's'} that nothing hides",
        "shortest times": f"{count(kind_of(kernel).operations(kernel))} operators at their least",
        "arithmetic": f"the arithmetic of {si(kernel.flops, 'FLOP')} beyond that",
        "memory": "traffic of memory",
        "waits": "waits for memory and for barriers",
    }
    listed_parts = [
        f"{names[name]} {si(seconds, 's')} ({percent(seconds / e.latency_s)})"
        for seconds, name in parts
    ]
    return f"of that {mode.variant} spends {listed(listed_parts)}"


def _message_delay_s(resolver: Resolver, task: str, device: str, other: str) -> float:
    """Return the seconds by which messages delay one firing of `task` on one device, with the tasks
    of other classes on the other device.

    Parallel edges share a message; the largest counts.
    """
    mates = next(g for g in classes(resolver.problem) if task in g)
    q = resolver.problem.graph.repetition
    delay_of: dict[tuple[str, str], float] = {}
    for e in resolver.problem.graph.edges:
        if e.bytes > 0 and (e.src == task or e.dst == task):
            away = e.dst if e.src == task else e.src
            ends = (device, other) if e.src == task else (other, device)
            if away not in mates:
                seconds = sum(
                    delay_s(k, e.bytes) for k in resolver.problem.costs.platform.route(*ends)
                )
                seconds *= q[e.src] / q[task]
                delay_of[e.src, e.dst] = max(seconds, delay_of.get((e.src, e.dst), 0.0))
    return math.fsum(delay_of.values())


def idle_reason(resolver: Resolver, gpu: Device) -> str:
    """Return the load of the GPU and the reason for its waits; or, if it has no task, the value of
    the best plan that uses it. Empty if it does not idle.
    """
    plan = resolver.plan
    lanes = [k for k in plan.lanes if k.device == gpu.name and k.width]
    if lanes:
        load = max(k.load for k in lanes)
        if load > 0.999:
            return ""
        return (
            f"{gpu.name} is busy {percent(load)} of the period of {si(plan.period_s, 's')}; "
            f"for the rest it waits: {_bound_elsewhere(plan, gpu.name)}."
        )
    used = {t.device for t in plan.tasks}
    if same := [d for d in equivalents_of(resolver.interchangeable, gpu.name) if d in used]:
        sure = "the best plan uses" if plan.status == "optimal" else "the plan found uses"
        return f"{gpu.name} is like {listed(same)}, and {sure} no more of them."
    able = [
        (sum(t.share_of_period for t in plan.tasks if t.task in g), g)
        for g in classes(resolver.problem)
        if gpu.name in devices_of(g, resolver.problem)
    ]
    if not able:
        groups = classes(resolver.problem)
        reasons = "; ".join(_exclusion_text(resolver, g, gpu.name) for g in groups)
        return f"Nothing can run there: {reasons}."
    group = max(able)[1]
    placement = f"{listed(group)} on {gpu.name}"
    answer = resolver.solve(restrict(resolver.problem, {group: gpu.name}, {}))
    if answer is None:
        return f"{gpu.name} has no task in this plan; no time was left to try {placement}."
    if answer.plan is None:
        return (
            f"{gpu.name} has no task in this plan: with {placement} there is none: {answer.reason}"
        )
    return (
        f"{gpu.name} has no task, because with {placement} {_best_text(answer.proven)} gives "
        f"{_comparison_text(resolver, answer, answer.plan)}."
    )


def _best_text(proven: bool) -> str:
    return "the best plan" if proven else "the best plan found"


def _comparison_text(resolver: Resolver, answer: Answer, other: Plan) -> str:
    """A value next to the plan's; for a robust plan the regret."""
    best, unit = resolver.plan, other.value_unit
    if best.regret is not None:
        before, after = resolver.own_cost, resolver.own_cost / (1 + answer.gain)
        return (
            f"a {best.regret.kind} regret of {percent(after - 1)} instead of {percent(before - 1)}"
        )
    if unit == "s":
        now, more = si(other.value, unit), other.value / best.value - 1
    else:
        now, more = f"{count(other.value)} {unit}", resolver.gain(other.value)
    return f"{now} instead of {figure(best.value, unit)} ({100 * more:+,.1f} %)"


def _bound_elsewhere(plan: Plan, device: str) -> str:
    """The bound of the period outside a device."""
    b = plan.bottleneck
    if plan.pace_s is not None:
        return f"the plan is paced at {si(plan.pace_s, 's')} to keep a limit"
    if b.kind == "cycle":
        placed = {t.task: t for t in plan.tasks}
        away = [placed[n] for n in b.tasks if n in placed and placed[n].device != device]
        sends = [n for n in b.tasks if n not in placed]
        parts = [f"{t.task} ({si(t.seconds, 's')} on {t.device})" for t in away]
        parts += [f"the transfer {n}" for n in sends]
        return f"the critical cycle also takes {listed(parts)}" if parts else "its own cycle is it"
    load = max((k.load for k in plan.lanes if k.lane == b.name), default=1.0)
    return f"{b.kind} {b.name} is busy {percent(load)} of it with {listed(b.tasks)}"


def where_replay(resolver: Resolver) -> str:
    """Return the device of the replay, and the value of the best plan with the replay elsewhere.

    Empty for a graph without a replay, or with one device.
    """
    tasks = [
        t.name
        for t in resolver.problem.graph.tasks
        if kind_of(t.kernel).structure in ("insert", "sample", "prioritise")
    ]
    if not tasks or len(resolver.problem.costs.platform.devices) < 2:
        return ""
    group = next(g for g in classes(resolver.problem) if tasks[0] in g)
    own_device = devices_in(resolver.plan, group)[0]
    same = {own_device, *equivalents_of(resolver.interchangeable, own_device)}
    others = [d for d in devices_of(group, resolver.problem) if d not in same]
    never = [
        d.name for d in resolver.problem.costs.platform.devices if d.name not in {*same, *others}
    ]
    reasons = [_exclusion_text(resolver, group, device) for device in never]
    if not others:
        return f"On {own_device}{': ' if reasons else ''}{'; '.join(reasons)}."
    bans = {group: frozenset(same)}
    answer = resolver.solve(restrict(resolver.problem, {}, bans))
    if answer is None:
        return f"On {own_device}, by this plan; no time was left to try {' or '.join(others)}."
    if answer.plan is None:
        return f"On {own_device}: elsewhere there is no plan: {answer.reason}"
    other_device = devices_in(answer.plan, group)[0]
    crossing = [
        f"{c.src} → {c.dst} over {c.link}"
        for c in answer.plan.edges
        if c.link and c.bytes > 0 and (c.src in group) != (c.dst in group)
    ]
    cost = f", where {listed(crossing)} would be sent" if crossing else ""
    more = "".join(f" {reason[:1].upper()}{reason[1:]}." for reason in reasons)
    return (
        f"On {own_device}: on {other_device} {_best_text(answer.proven)} gives "
        f"{_comparison_text(resolver, answer, answer.plan)}{cost}.{more}"
    )


def no_mode_reason(resolver: Resolver, task: str, device: str) -> str:
    """Return why a task has no mode on a device: limits, or the tool; empty if it has one."""
    limits = resolver.problem.limits
    if limits.pin.get(task, device) != device or device not in limits.devices.get(task, (device,)):
        return f"kept off {device} by the limits"
    if any(m.device == device and task in m.tasks for m in resolver.problem.costs.modes):
        return ""
    if task in limits.variants:
        return f"without a variant on {device} that the limits name"
    if reason := refusal_reason(
        resolver.problem.graph.task(task).kernel, resolver.problem.costs.platform.device(device)
    ):
        return f"refused by {device} ({reason})"
    return f"not modelled on {device}"


def _exclusion_text(resolver: Resolver, group: tuple[str, ...], device: str) -> str:
    reasons = {task: no_mode_reason(resolver, task, device) for task in group}
    first = next(reason for reason in reasons.values() if reason)
    tasks = [task for task, reason in reasons.items() if reason == first]
    return f"{listed(tasks)} {'is' if len(tasks) == 1 else 'are'} {first}"
