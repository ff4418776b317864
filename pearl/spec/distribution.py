"""Distribution policies: named sets of limits, with which one algorithm runs in several layouts.

The layouts are those of fragmented dataflow (MSRL, Zhu et al. 2022, arXiv 2210.00882). A policy
places the steps of environments, the choice of actions and all other tasks. Hosts, devices and
lanes are those of the system's platform. Tasks that step or act on other hosts are
split into at most as many replicas as there are lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pearl.algorithms.families.learners import learner_of
from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Task, TaskGraph
from pearl_devices import Device, Platform
from pearl_devices.kernels import kind_of

Place = Literal["home", "elsewhere", "each", "processors", "accelerators", "anywhere"]
"""Place `each`: learner i of several on host i, home first, and around again."""

PLACES: Mapping[Place, str] = {
    "home": "at home",
    "elsewhere": "on other hosts",
    "each": "of learner i on host i",
    "processors": "on devices of the host device's kind",
    "accelerators": "on devices of other kinds",
    "anywhere": "anywhere",
}
"""Place → its meaning in words."""

MOST_COPIES = 64


@dataclass(frozen=True)
class Distribution:
    """The places of the parts of the loop.

    environments: of tasks that step environments.
    acting: of tasks that choose actions.
    learning: of tasks that make gradient steps.
    others: of all other tasks.
    any_order: store the rows of any actor replica that is ready.
    """

    environments: Place
    acting: Place
    learning: Place
    others: Place
    any_order: bool = False

    @property
    def summary(self) -> str:
        """The place of each part in words."""
        parts = {
            "environments": self.environments,
            "actions": self.acting,
            "gradient steps": self.learning,
            "the rest": self.others,
        }
        where = ", ".join(f"{part} {PLACES[place]}" for part, place in parts.items())
        return where + (", rows stored in any order" if self.any_order else "")


DISTRIBUTIONS: Mapping[str, Distribution] = {
    "one_host": Distribution("home", "home", "home", "home"),
    "synchronous_actors": Distribution("elsewhere", "elsewhere", "home", "home"),
    "asynchronous_actors": Distribution("elsewhere", "elsewhere", "home", "home", any_order=True),
    "central_inference": Distribution("elsewhere", "home", "home", "home"),
    "accelerated_networks": Distribution("processors", "accelerators", "accelerators", "anywhere"),
    "data_parallel_learners": Distribution("home", "home", "each", "home"),
}
"""Name → policy. A new one is a line here, and its name in `LimitsSection.distribution`."""

PARTS = {
    "gradient": "learning",
    "shared": "learning",
    "network": "acting",
    "environment": "environments",
}
"""Structures of kernels → the field of `Distribution` that places their tasks, in the order of
precedence."""


def apply_policy(name: str, graph: TaskGraph, platform: Platform, given: Limits) -> Limits:
    """Return the limits of a policy on a platform, within the given limits.

    Raises:
        SpecError: the platform has no such places, or a given limit contradicts the policy.
    """
    policy = DISTRIBUTIONS[name]
    home = platform.device(platform.host)
    holds: Mapping[Place, Callable[[Device], bool]] = {
        "home": lambda d: d.host == home.host,
        "elsewhere": lambda d: d.host != home.host,
        "processors": lambda d: d.kind == home.kind,
        "accelerators": lambda d: d.kind != home.kind,
        "anywhere": lambda d: True,
    }
    at = _places(policy, graph)
    turns = _turns(name, policy, graph, platform, given)
    needed = dict.fromkeys(place for place in at.values() if place != "each")
    places: dict[Place, tuple[str, ...]] = {
        p: tuple(d.name for d in platform.devices if holds[p](d)) for p in needed
    }
    lacking = [place for place, found in places.items() if not found]
    if lacking:
        raise SpecError(
            f"limits.distribution: {name} needs {_NEEDED[lacking[0]]}; platform {platform.name} "
            f"has {', '.join(d.name for d in platform.devices)}: plan for another platform "
            "(ray, or one with hosts), or choose another policy"
        )
    lanes = sum(d.max_lanes for d in platform.devices if d.name in places.get("elsewhere", ()))
    devices = {
        t.name: turns[t.name] if at[t.name] == "each" else places[at[t.name]] for t in graph.tasks
    }
    spread = {t.name: t for t in graph.tasks if at[t.name] == "elsewhere"}
    problems = [*_contradictions(name, policy, devices, spread, given)]
    copies = {t.name: _copies(t, lanes, policy, given) for t in spread.values() if t.environments}
    if policy.any_order and min(copies.values(), default=0) < 2:
        problems.append(
            f"limits.distribution: {name} needs two copies of the actors at least, each on a lane "
            f"of another host than {home.host} and with an equal share of the environments; there "
            f"are {lanes} such lanes: add cores or hosts, or choose synchronous_actors"
        )
    if problems:
        raise SpecError(*problems)
    allowed = {
        task: tuple(d for d in given.devices.get(task, names) if d in names)
        for task, names in devices.items()
    }
    return replace(
        given,
        devices={**given.devices, **allowed},
        replicas={**given.replicas, **{task: n for task, n in copies.items() if n > 1}},
        any_order=policy.any_order,
    )


_NEEDED: Mapping[Place, str] = {
    "elsewhere": "another host than home",
    "accelerators": "a device of another kind than the host device",
}


def _places(policy: Distribution, graph: TaskGraph) -> dict[str, Place]:
    """Return the place of each task. Tasks that must share a device have the place of the part that
    is first in PARTS."""
    found: dict[str, Place] = {}
    for together in graph.classes():
        tasks = [graph.task(name) for name in together]
        structures = {kind_of(t.kernel).structure for t in tasks}
        part = next((PARTS[s] for s in PARTS if s in structures), "others")
        found |= dict.fromkeys((t.name for t in tasks), getattr(policy, part))
    return found


def _turns(
    name: str, policy: Distribution, graph: TaskGraph, platform: Platform, given: Limits
) -> dict[str, tuple[str, ...]]:
    """Map each task to the devices of its learner's host; shared tasks to those of the local host.

    Empty if the policy has one learner.
    """
    if policy.learning != "each":
        return {}
    if given.learners < 2:
        raise SpecError(
            f"limits.distribution: {name} needs limits.learners, how many there are, 2 or more; "
            f"given {given.learners}"
        )
    home = platform.device(platform.host)
    like = [d for d in platform.devices if d.kind == home.kind]
    hosts = list(dict.fromkeys([home.host, *(d.host for d in like)]))
    found = {t.name: hosts[(learner_of(t.kernel) or 0) % len(hosts)] for t in graph.tasks}
    return {task: tuple(d.name for d in like if d.host == at) for task, at in found.items()}


def _copies(task: Task, lanes: int, policy: Distribution, given: Limits) -> int:
    """Return the largest number of copies of a task: one per lane, or the limit; in any order, all
    copies have one size."""
    most = min(lanes, task.environments, MOST_COPIES, given.replicas.get(task.name, lanes))
    if not policy.any_order:
        return most
    return max(n for n in range(1, max(1, most) + 1) if task.environments % n == 0)


def _contradictions(
    name: str,
    policy: Distribution,
    devices: Mapping[str, tuple[str, ...]],
    spread: Mapping[str, Task],
    given: Limits,
) -> Iterator[str]:
    """A line for each limit that leaves the policy no plan."""
    where = f"limits.distribution: {name}"
    for task, names in devices.items():
        kept = f"{where} has {task} on {' or '.join(names)}"
        pinned, allowed = given.pin.get(task), given.devices.get(task)
        if pinned is not None and pinned not in names:
            yield f"{kept}, limits.pin on {pinned}; leave out one of the two"
        if allowed is not None and not set(allowed) & set(names):
            yield f"{kept}, limits.devices on {' or '.join(allowed)}; leave out one of the two"
        copies = given.replicas.get(task, 1)
        if copies > 1 and spread and task not in spread:
            yield f"{where} has one {task}, limits.replicas {copies}; leave out one of the two"
    if given.any_order and not policy.any_order:
        yield f"{where} keeps rows in order, limits.any_order does not; leave out one of the two"
    if given.max_lanes == 1 and spread:
        yield f"{where} has lanes on several hosts, limits.max_lanes 1; leave out one of the two"
