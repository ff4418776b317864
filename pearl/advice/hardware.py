"""The value of each device, the gain by another one, and the device of the replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

from pearl.advice.case import Case, Finding, cores_text, numbers
from pearl.advice.comparison import Choice, Comparison, how_sure, number, ratio_text
from pearl.advice.designs import has_closed_forms, plan_without, plans_by_design, range_verdict
from pearl.errors import SpecError
from pearl.explanation.resolve import classes, devices_in, devices_of, equivalents_of, restrict
from pearl.formatting import count, listed, percent
from pearl.spec.catalogue import catalogue
from pearl.spec.messages import suggest_nearest
from pearl.spec.platform_files import read_platform
from pearl.spec.yaml_reader import parse
from pearl_devices import Device, Link, Platform, offers

ASKED_FOR = "rtx_4090"
"""The device whose purchase is evaluated for a platform with only a host (assumed)."""

MOST = 4
"""Most equal devices that are added."""

WORTH = 1.02
"""A further equal device is tried if the one before gained this much."""


TELLING = 0.6
"""A verdict that holds in a smaller share of the samples says so (assumed)."""

KEEPS: Mapping[Choice, str] = {"plan": "Yes", "other": "No", "either": "It does not matter"}
"""Verdict on a device in use, by the recommended plan."""

USES: Mapping[Choice, str] = {"plan": "No", "other": "Yes", "either": "It does not matter"}
"""Verdict on a device that the plan does not use."""

BUYS: Mapping[Choice, str] = {
    "plan": "Nothing",
    "other": "A better plan",
    "either": "Nothing that matters",
}
"""Verdict on a purchase."""


def device_findings(case: Case) -> Iterator[Finding]:
    """Yield a finding for every device besides the host: the plan without it, or if no task runs on
    it, with one there. Of interchangeable devices: without all, and without one."""
    platform, covered = case.problem.costs.platform, set[str]()
    for device in platform.devices:
        if device.name == platform.host or device.name in covered:
            continue
        same = next((s for s in case.interchangeable if device.name in s), (device.name,))
        covered |= set(same)
        used = [d for d in same if any(t.device == d for t in case.plan.tasks)]
        if not used:
            yield _idle_finding(case, device, same)
            continue
        yield _used_finding(case, same)
        if len(same) > 1:
            yield (
                _used_finding(case, same[-1:])
                if len(used) == len(same)
                else _spare_finding(case, used, same)
            )


def _used_finding(case: Case, names: Sequence[str]) -> Finding:
    one = len(names) == 1
    is_are, it = ("Is", "it") if one else ("Are", "them")
    plain = case.command("plan", "--explain")
    question = f"{is_are} {listed(names)} worth having?"
    other = plan_without(case, names)
    if other is None:
        return Finding(question, f"No plan without {it} was found that meets the limits.", plain)
    if has_closed_forms(case.plan, names):
        plans = plans_by_design(case, case.system.platform, names, case.plan)
        return range_verdict(case, Finding(question, "", plain), other, plans, names)
    c = case.compare(other)
    verdict, setting = _verdict(KEEPS[c.choice], c), case.setting(case.plan, other, names)
    values = f"{case.value_text(case.plan)} with {it}, {count(number(other))} without"
    return Finding(
        question,
        f"{verdict}: {values}{_confidence_text(c, 'With ' + it, 'Without ' + it)}{setting}",
        plain,
        c.confidence,
        numbers(c, other),
    )


def _verdict(word: str, c: Comparison) -> str:
    """The verdict with its size, and a remark if estimates and samples disagree."""
    if c.choice == "either":
        return f"{word} ({percent(abs(c.ratio - 1))})"
    if c.is_disputed:
        return f"{word}, by most draws"
    if c.closed or c.recommended.better >= TELLING:
        return word
    return f"{word}, but the estimates hardly tell the two apart"


def _confidence_text(c: Comparison, plan: str, other: str) -> str:
    """The certainty of a verdict; empty if it does not matter. plan, other: names of the two."""
    if c.choice == "either":
        return "."
    factor = "" if c.is_disputed else f" ({ratio_text(c.recommended.ratio)})"
    return f"{factor}. {other if c.choice == 'other' else plan} the plan is {how_sure(c)}."


def _spare_finding(case: Case, used: Sequence[str], same: Sequence[str]) -> Finding:
    """A finding on devices like those in use, of which the plan needs no more."""
    spare = [d for d in same if d not in used]
    are = "is" if len(spare) == 1 else "are"
    sure = "the best plan uses" if case.plan.status == "optimal" else "the plan found uses"
    return Finding(
        f"{are.capitalize()} {listed(spare)} worth having?",
        f"No: {listed(spare)} {are} like {listed(used)}, and {sure} no more of them. Slack, "
        "replicas or several runs at once (pearl sweep) may use more.",
        case.command("plan", "--explain"),
        numbers={"used": list(used), "spare": spare},
    )


def _idle_finding(
    case: Case,
    device: Device,
    same: Sequence[str] = (),
    words: Mapping[Choice, str] = USES,
) -> Finding:
    question, plain = (
        f"Should {listed(same or [device.name])} be used?",
        case.command("plan", "--explain"),
    )
    learning = set(case.tasks("gradient"))
    able = [
        (
            not learning.isdisjoint(g),
            sum(t.share_of_period for t in case.plan.tasks if t.task in g),
            g,
        )
        for g in classes(case.problem)
        if device.name in devices_of(g, case.problem)
    ]
    if not able:
        return Finding(question, "No task may run on it, or has an estimate for it.", plain)
    if has_closed_forms(case.plan, [device.name]):
        names = list(same or [device.name])
        platform = case.problem.costs.platform
        plans = plans_by_design(case, platform, names, case.plan)
        return range_verdict(case, Finding(question, "", plain), case.plan, plans, names)
    group = max(able)[2]
    other = case.solve_variant(restrict(case.problem, {group: device.name}, {}))
    if other is None:
        return Finding(question, f"No plan with {listed(group)} there meets the limits.", plain)
    c = case.compare(other)
    there = device.name if len(same) > 1 else "it"
    verdict, setting = _verdict(words[c.choice], c), case.setting(other, case.plan, [device.name])
    values = f"with {listed(group)} on {there} {case.value_text(other)}"
    return Finding(
        question,
        f"{verdict}: {values}, {count(number(case.plan))} without"
        f"{_confidence_text(c, 'Without it', 'With it')}{setting}",
        plain,
        c.confidence,
        numbers(c, other),
    )


def purchase_findings(case: Case, names: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each of these catalogue devices added to the platform, one and more of
    it; a device of the host's kind replaces the host."""
    names = names or ([ASKED_FOR] if len(case.problem.costs.platform.devices) == 1 else [])
    for name in names:
        yield _purchase_finding(case, name)


def _purchase_finding(case: Case, name: str) -> Finding:
    question = f"What would {name} buy?"
    before, best = case.plan, None
    steps: list[str] = []
    for n in range(1, MOST + 1):
        platform, how = platform_with(case.system.platform, name, n)
        other = case.plan_system(replace(case.system, platform=platform))
        if other is None:
            break
        gain = number(other) / number(before)
        if n > 1 and gain < WORTH:
            steps.append(f"{'a second' if n == 2 else f'number {n}'} adds less than 2 %")
            break
        if n > 1:
            steps.append(f"{n} of them {count(number(other))}")
        before, best = other, best or other
        if how:
            break
    if best is None:
        return Finding(question, "No plan with it was found in time.", _add_command(case, name))
    c = case.compare(best)
    have = {d.name for d in case.system.platform.devices}
    used = any(t.device not in have for t in best.tasks)
    as_host = platform_with(case.system.platform, name, 1)[1]
    host = case.system.platform.host
    if as_host and all(t.device != host for p in (case.plan, best) for t in p.tasks):
        text = f"Nothing: the plan runs no task on {host}."
        return Finding(question, text, _add_command(case, name), numbers=numbers(c, best))
    fresh = [
        d.name
        for d in platform_with(case.system.platform, name, 1)[0].devices
        if d.name not in have
    ]
    if fresh and has_closed_forms(best, fresh):
        plans = plans_by_design(case, platform_with(case.system.platform, name, 1)[0], fresh, best)
        finding = Finding(question, "", _add_command(case, name))
        words = "A better plan, by every design", "Nothing, by no design"
        return range_verdict(case, finding, case.plan, plans, fresh, words)
    if not used and not as_host:
        there = replace(case, plan=best)
        new = next(d for d in there.problem.costs.platform.devices if d.name not in have)
        finding = _idle_finding(there, new, words=BUYS)
        return replace(finding, question=question, command=_add_command(case, name))
    values = f"{case.value_text(best)} with {'it as the host' if as_host else 'one'}"
    values += f", {count(number(case.plan))} without"
    steps = [f" {step[:1].upper()}{step[1:]}." for step in steps]
    sure = _confidence_text(c, "Without it", "With it")
    fresh = list(dict.fromkeys(t.device for t in best.tasks if t.device not in have))
    now = case.system.platform.device(host)
    beside = f" It would replace {now.model or host}, {cores_text(now.width)}." if as_host else ""
    return Finding(
        question,
        f"{_verdict(BUYS[c.choice], c)}: {values}{sure}{''.join(steps)}{beside}"
        f"{case.setting(best, case.plan, fresh)} "
        "Its figures are those of its data sheet.",
        _add_command(case, name),
        c.confidence,
        {**numbers(c, best), "used": used or as_host},
    )


def _add_command(case: Case, name: str) -> str:
    return case.command("advise", "--add", name)


def platform_with(platform: Platform, name: str, number: int = 1) -> tuple[Platform, bool]:
    """Return the platform with `number` devices of the catalogue added, each on the link that
    shipped platforms have for its kind; and whether it replaced the host, because it has the host's
    kind.

    Raises:
        SpecError: the catalogue has no such device, it is part of a chip, or no shipped platform
            has a link to its kind.
    """
    device = catalogue_device(name)
    host = platform.device(platform.host)
    if device.kind == host.kind:
        new = replace(device, name=host.name)
        others = tuple(new if d == host else d for d in platform.devices)
        return replace(platform, devices=others), True
    if device.unified_memory:
        raise SpecError(
            f"advise: --add {name}: it is part of a chip with its CPU, in whose memory it works; "
            "give the whole chip as a platform"
        )
    link = links().get(device.kind)
    if link is None:
        raise SpecError(
            f"advise: --add {name}: no shipped platform has a device of kind {device.kind} beside "
            "its host, so nothing is known of its link; write a platform with it"
        )
    if host.real and not host.host:  # the CPU of this machine starts its kernels
        from pearl_estimators.gpu.variants import figures

        device = replace(device, figures={**figures(), **device.figures})
    taken = {d.name for d in platform.devices}
    free = [f"{name}{'' if n == 0 else f'_{n + 1}'}" for n in range(len(taken) + number)]
    new_names = [n for n in free if n not in taken][:number]
    devices = tuple(replace(device, name=n) for n in new_names)
    more = tuple(replace(link, a=host.name, b=n) for n in new_names)
    return replace(
        platform, devices=(*platform.devices, *devices), links=(*platform.links, *more)
    ), False


def catalogue_device(name: str) -> Device:
    """Return a device of the catalogue.

    Raises:
        SpecError: there is none of that name.
    """
    if name not in catalogue():
        raise SpecError(
            f"advise: --add {name!r}: no device of the catalogue"
            f"{suggest_nearest(name, catalogue())}; "
            f"there are {', '.join(catalogue())}"
        )
    platform, _, problems = read_platform({"devices": {name: name}})
    if platform is None:
        raise SpecError(*(f"{name}: {text}" for _, text in problems))
    return platform.devices[0]


@cache
def links() -> Mapping[str, Link]:
    """Return kind of device → its link to the host in the first shipped platform that has one."""
    by_kind: dict[str, Link] = {}
    for file in sorted(files("pearl_configs.platforms").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".yaml"):
            continue
        document = parse(file.read_bytes(), file.name)
        platform, _, _ = read_platform(document.data, default_name=file.name)
        for link in platform.links if platform else ():
            ends = {link.a, link.b} - {platform.host} if platform else set()
            for end in ends if len(ends) == 1 else ():
                by_kind.setdefault(platform.device(end).kind, link) if platform else None
    return by_kind


def where_replay(case: Case) -> Iterator[Finding]:
    """Yield the device of the replay, and the best plan with the replay elsewhere."""
    tasks = case.tasks("insert", "sample", "prioritise")
    platform = case.problem.costs.platform
    if not tasks or case.problem.graph.env_steps == 0:
        return
    question, more = "Where should the replay live?", case.command("plan", "--explain")
    group = next(g for g in classes(case.problem) if tasks[0] in g)
    device = devices_in(case.plan, group)[0]
    if len(platform.devices) == 1:
        text = f"On {device}, the only device there is."
        yield Finding(question, text, more, decides=False)
        return
    like = {device, *equivalents_of(case.interchangeable, device)}
    others = [d for d in devices_of(group, case.problem) if d not in like]
    shut = [d for d in platform.devices if d.name not in {*like, *others}]
    reasons = [f"not modelled on {d.name}" for d in shut if not _offers_all(case, group, d)]
    reasons += [f"kept from {d.name} by your limits" for d in shut if _offers_all(case, group, d)]
    tail = f" It is {'; '.join(reasons)}." if reasons else ""
    if not others:
        yield Finding(question, f"On {device}.{tail}", more)
        return
    bans = {group: frozenset(like)}
    other = case.solve_variant(restrict(case.problem, {}, bans))
    if other is None:
        yield Finding(question, f"On {device}: elsewhere no plan was found.{tail}", more)
        return
    c, other_device = case.compare(other), devices_in(other, group)[0]
    places = {"plan": device, "other": other_device, "either": device}
    word = "It does not matter" if c.choice == "either" else f"On {places[c.choice]}"
    values = f"{case.value_text(case.plan)} on {device}, {count(number(other))} on {other_device}"
    sure = _confidence_text(c, f"On {device}", f"On {other_device}")
    yield Finding(
        question,
        f"{_verdict(word, c)}: {values}{sure}{tail}",
        more,
        c.confidence,
        {**numbers(c, other), "here": device, "there": other_device},
    )


def _offers_all(case: Case, group: Sequence[str], device: Device) -> bool:
    """Whether a device offers every task of a group, limits aside."""
    return all(offers(case.problem.graph.task(t).kernel, device) for t in group)
