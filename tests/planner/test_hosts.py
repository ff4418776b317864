"""Plans over several hosts: where messages are dear the planner stays at home, and says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pearl.errors import InfeasibleError
from pearl.planner.planner import plan
from pearl.planning.plans import Plan
from pearl.spec.reading import System, load
from pearl_devices import Link, Platform, discover
from pearl_devices.hosts import join_hosts
from pearl_estimators.host import calibrator, measuring

CALL = {"latency_s": 4e-4, "bytes_per_s": 1e8, "per_message_s": 5.5e-4}
"""Of a message between two processes of a cluster."""


@pytest.fixture
def two_computers() -> Iterator[Platform]:
    """This machine with one core, and another like it that measures itself."""
    core = replace(discover.cpu(), width=1, max_lanes=1)
    machines = {host: Platform(host, (core,)) for host in "ab"}
    calibrator.set_remote_hosts({"b": measuring.measured_calibration})
    sources = dict.fromkeys(CALL, "assumed: a test")
    yield join_hosts("ray", machines, [Link("a", "b", sources=sources, **CALL)])
    calibrator.set_remote_hosts({})


def system(platform: Platform, env: dict[str, Any], **limits: Any) -> System:
    found = load(
        "dqn_cartpole",
        set={f"algorithm.{key}": value for key, value in env.items()}
        | {f"limits.{key}": value for key, value in limits.items()},
    )
    return replace(found, platform=platform, limits=replace(found.limits, max_lanes=None))


def hosts(found: Plan, platform: Platform) -> dict[str, set[str]]:
    """Task → the hosts of its copies."""
    seen: dict[str, set[str]] = {}
    for task in found.tasks:
        seen.setdefault(task.task, set()).add(platform.device(task.device).host)
    return seen


SLOW = {
    "env": "tests.uneven_envs:Sleeping", "env_args": {"step_s": 0.008}, "num_envs": 8, "n_step": 1,
}  # fmt: skip


def test_microseconds_stay_on_one_host(two_computers: Platform) -> None:
    found = plan(system(two_computers, {"num_envs": 8}, replicas={"step": 2, "act": 2}))
    assert set.union(*hosts(found, two_computers).values()) == {"a"}
    assert "a alone" in found.note
    assert "links between hosts: assumed: a test" in found.note


def test_milliseconds_spread_over_both_and_the_learner_stays_at_home(
    two_computers: Platform,
) -> None:
    in_turn = {"step": ("gymnasium",)}  # in processes, one host would do
    asked = system(two_computers, SLOW, replicas={"step": 2, "act": 2}, variants=in_turn)
    found = plan(asked)
    where = hosts(found, two_computers)
    assert where["step"] == {"a", "b"}
    assert where["learn"] == {"a"}
    told = re.search(r"lanes on a and b: (\S+) x the value of a alone", found.note)
    assert told
    assert float(told[1]) > 1.7
    assert found.problem is not None
    assert found.problem.system is asked
    sources = {m.estimate.source for m in found.problem.costs.modes if m.device == "b/cpu"}
    assert any(text.startswith("calibrated on b ") for text in sources)


def test_environments_that_wait_get_processes_on_the_other_host_too(
    two_computers: Platform,
) -> None:
    asked = system(two_computers, SLOW)
    away = replace(asked, limits=replace(asked.limits, pin={"step": "b/cpu"}))
    step = plan(away).task("step")
    assert (step.device, step.variant) == ("b/cpu", "processes")


def test_the_learner_cannot_be_sent_away(two_computers: Platform) -> None:
    asked = system(two_computers, SLOW)
    away = replace(asked, limits=replace(asked.limits, pin={"learn": "b/cpu"}))
    with pytest.raises(InfeasibleError, match="learn runs at home, on a"):
        plan(away)


def test_what_only_another_host_can_run_is_planned_over_both(two_computers: Platform) -> None:
    asked = system(two_computers, SLOW)
    there = replace(asked, limits=replace(asked.limits, pin={"step": "b/cpu"}))
    found = plan(there)
    assert hosts(found, two_computers)["step"] == {"b"}
    assert "a alone has no plan" in found.note
