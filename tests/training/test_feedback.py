"""What a run teaches and what it contradicts, at the bounds of every reason not to."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace as Given
from typing import Any

import pytest

from pearl.planning.plans import Plan
from pearl.planning.runs import TOLERANCE, Drift, TaskDrift
from pearl.training import run_feedback
from pearl.training.run_feedback import LOADED, calibration_feedback, find_contradictions
from pearl_estimators.host.run_corrections import IterationStats, KernelShare
from tests.examples import placement, two_device_plan

SECONDS = {"a": 1.0, "b+c": 2.0, "d": 4.0}
"""Kernel → its estimate without corrections."""
FUSED = {"b": ("c",), "c": ("b",)}


def planned(lanes: str = "one one one", **changes: Any) -> Plan:
    """Tasks a (two firings), and b and c of one call (four firings of each in an iteration)."""
    tasks = tuple(
        placement(task, "cpu", lane, 9.0, firings=2 if task == "a" else 4, width=3,
                  fused_with=FUSED.get(task, ()))
        for task, lane in zip(("a", "b", "c", "d"), lanes.split(), strict=False)
    )  # fmt: skip
    return replace(two_device_plan(), tasks=tasks, **changes)


GRAPH: Any = Given(
    kernel_of=lambda tasks: "+".join(sorted(tasks)),
    repetition={"a": 2, "b": 4, "c": 4, "d": 8},
    edges=[Given(src=src, dst=dst, bytes=float(size)) for src, dst, size in (
        ("a", "d", 10), ("d", "b", 5), ("b", "c", 1000), ("d", "d", 2000))],
)  # fmt: skip


@pytest.fixture(autouse=True)
def estimates(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Rungs of estimates, and costs of a handover, that the test may change."""
    found: dict[str, Any] = {"rungs": {}, "runtime": {}}

    def estimate(kernel: str, device: Any, variant: str, width: int) -> Any:
        assert (device.name, variant, width) == ("cpu", "native", 3)
        return Given(latency_s=SECONDS[kernel], rung=found["rungs"].get(kernel, "measured"))

    def parts(kernel: str, *_: Any) -> tuple[KernelShare, ...]:
        shares = (0.75, 0.25) if kernel == "a" else (1.0,)
        return tuple(KernelShare(f"{kernel} {share}", 1.0, 1.0, share) for share in shares)

    monkeypatch.setattr(run_feedback, "estimate_without_feedback", estimate)
    monkeypatch.setattr(run_feedback, "parts", parts)
    monkeypatch.setattr(run_feedback, "is_calibrated_here", lambda device: device.name == "cpu")
    usable = lambda: found["runtime"] and Given(runtime=found["runtime"])  # noqa: E731
    monkeypatch.setattr(run_feedback, "load_usable", usable)
    return found


def learned(
    plan: Plan, measured_s: float | None, waited: float | None = 0.0,
    rows: dict[str, float] | None = None, *, wall_s: float = 1.0, stolen_s: float | None = None,
    **more: Any,
) -> tuple[list[IterationStats], list[str]]:  # fmt: skip
    tasks = tuple(TaskDrift(task, 1.0, seconds, 0.0) for task, seconds in (rows or {}).items())
    drift = Drift(1.0, measured_s, 0.0, tasks, waited=waited, **more)
    steady = {"wall_s": wall_s} | ({} if stolen_s is None else {"stolen_s": stolen_s})
    platform: Any = Given(device=lambda name: Given(name=name))
    found, said = calibration_feedback(plan, GRAPH, platform, drift, steady)
    return [*found], [*said]


def test_a_run_of_one_lane_teaches_the_share_of_each_kernel(estimates: dict[str, Any]) -> None:
    """2 x 1 s of a and one call of 2 s: 4 s; measured 5 s, 4 % of them without a core."""
    (found,), said = learned(planned(), 5.0, 0.04)
    shares = {part.named: part.share for part in found.parts}
    assert shares == {"a 0.75": 0.375, "a 0.25": 0.125, "b+c 1.0": 0.5}
    assert (found.off, found.timed) == (pytest.approx(math.log(1.2)), True)
    assert said == ["Learned from this run: its calls took 1.200 times their estimates."]
    estimates["rungs"] = {"b+c": "datasheet"}
    assert not learned(planned(), 5.0)[0][0].timed


NOTHING = "Nothing was learned from this run: "


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"measured_s": 16.0}, None),
        ({"measured_s": 1.0}, None),
        ({"measured_s": 16.01}, "its calls took 4 times their estimates, so they are not the r"),
        ({"measured_s": 0.99}, "its calls took 0.247 times their"),
        ({"measured_s": None}, "it ended before its steady stretch"),
        ({"waited": None}, "how long its lanes had no core is not known"),
        ({"decisions": ("kept",)}, "its plan was searched again during the run"),
        ({"apart": 1.7}, "its two cores were further apart, or nearer, than when they were timed"),
        ({"waited": LOADED}, None),
        ({"waited": LOADED + 1e-9}, "something else had 9% of the core of its busiest lane"),
        ({"wall_s": 2.0, "stolen_s": 2 * LOADED}, None),
        ({"wall_s": 2.0, "stolen_s": 2.01 * LOADED}, "the host of this virtual machine had 9% of"),
        ({"wall_s": 0.5}, None),
        ({"wall_s": 0.54, "waited": 0.0625}, None),
        ({"wall_s": 0.53, "waited": 0.0625}, "its steady stretch took 0.5 s, and 0.5 s are needed"),
    ],
)  # fmt: skip
def test_each_reason_to_learn_nothing_at_its_bound(given: Any, why: str | None) -> None:
    found, (said,) = learned(planned(), **{"measured_s": 5.0, **given})
    assert (len(found), said.startswith(f"{NOTHING}{why}")) == (
        (1, False) if why is None else (0, 1)
    )


def test_a_paced_run_and_a_device_without_timings_teach_nothing() -> None:
    assert learned(planned(pace_s=1e-3), 5.0) == ([], [f"{NOTHING}it was paced."])
    plan = planned()
    other = replace(plan, tasks=tuple(replace(t, device="gpu") for t in plan.tasks))
    assert learned(other, 5.0) == ([], [f"{NOTHING}gpu is not timed here."])


ROWS = {"a": 0.75, "c+b": 2.5, "d": 1.0}


@pytest.mark.parametrize(
    ("rows", "measured_s", "runtime", "said"),
    [
        # lane one: (2 x 0.75 + 2.5) / (2 x 1 + 2); lane two: 4 x 1 / (4 x 4)
        (ROWS, 8.0, {}, ("1.000", "0.250")),
        # 60 bytes cross: 2 firings of a with 10, and 8 of d with 5
        (ROWS, 8.0, {"carry_s_per_byte": 1 / 60}, ("0.750", None)),
        (ROWS, 8.0, {"carry_s_per_byte": 4 / 60},
         ("its calls take no longer than the bytes that cross lanes",) * 2),
        (ROWS, 8.0, {"other": 1.0}, ("1.000", "0.250")),
        (ROWS, 8.01, {}, ("it was busy 50% of the time, and its calls ran with cold caches",) * 2),
        ({"a": 0.75, "d": 1.0}, 8.0, {}, ("b+c was not timed in it", "0.250")),
        ({**ROWS, "a": 2e-6, "c+b": 2e-6}, 1e-5, {}, (None, "0.250")),
        ({**ROWS, "a": 2e-6, "c+b": 1.9e-6}, 1e-5, {},
         ("its calls take 2e-06 s in the mean, too little to time each", "0.250")),
    ],
)  # fmt: skip
def test_of_several_lanes_each_call_counts_once(rows, measured_s, runtime, said, estimates):
    estimates["runtime"] = runtime
    found, texts = learned(planned("one one one two"), measured_s, 0.05, rows)
    for lane, text, wanted in zip(("one", "two"), texts, said, strict=True):
        if wanted is None:  # a call that is too far off
            assert "so they are not the reason" in text
        elif wanted[0].isdigit():
            of = f"Learned from lane {lane}: its calls took {wanted} times their estimates."
            assert text == of
        else:
            assert text == f"Nothing was learned from lane {lane}: {wanted}."
    assert len(found) == sum(text.startswith("Learned") for text in texts)


def contradicted(
    names: str, times: float, waited: float | None = 0.0, rung: str = "calibrated"
) -> dict[str, float]:
    """a: 2 x (1, 2, 3) s in its band; b: 3 x (2, 2.5, 4) s; together (8, 11.5, 18) s."""
    bands = {"a": (2, 1.0, 2.0, 3.0), "b": (3, 2.0, 2.5, 4.0)}
    placed = {
        task: placement(task, "cpu", "one", said, firings=n, low_s=low, high_s=high, rung=rung)
        for task, (n, low, said, high) in bands.items()
    }
    graph: Any = Given(fusions=[Given(tasks=("a", "b"), kernel="ab")],
                       task=lambda name: Given(kernel=name))  # fmt: skip
    plan: Any = Given(task=placed.__getitem__)
    row = TaskDrift(names, 1.0, times, times - 1)
    return find_contradictions(plan, graph, Drift(1.0, 1.0, 0.0, (row,), waited=waited))


@pytest.mark.parametrize(
    ("names", "waited", "within", "beyond"),
    [
        ("a", 0.0, (0.51, 1.49), (0.49, 1.51)),
        ("a", 1 - 1 / 1.1, (0.51, 1.49), (0.49, 1.51)),
        ("a", 0.0910, (0.51, 1.49, 9.0), (0.49,)),  # it had not its cores to itself
        ("a", None, (0.51, 9.0), (0.49,)),
        ("a+b", 0.0, (8 / 11.5 + 1e-3, 18 / 11.5 - 1e-3), (8 / 11.5 - 1e-3, 18 / 11.5 + 1e-3)),
        ("b+a", 0.0, (9.0, 0.1), ()),  # no call of the plan
    ],
)
def test_an_estimate_is_contradicted_outside_its_band(names, waited, within, beyond, monkeypatch):
    monkeypatch.setattr(run_feedback, "family", lambda kernel: f"family of {kernel}")
    for times in within:
        assert contradicted(names, times, waited) == {}
    for times in beyond:
        name = f"family of {names.replace('+', '')} native"
        assert contradicted(names, times, waited) == {name: pytest.approx(times)}
        assert contradicted(names, times, waited, "measured") == {}


def test_a_narrow_band_is_contradicted_from_the_tolerance_on(monkeypatch):
    monkeypatch.setattr(run_feedback, "family", lambda kernel: kernel)
    alone = placement("a", "cpu", "one", 2.0, low_s=2.0, high_s=2.0)
    plan: Any = Given(task=lambda name: alone)
    graph: Any = Given(fusions=[], task=lambda name: Given(kernel=name))
    high, low = 1 + TOLERANCE, 1 / (1 + TOLERANCE)
    for times in (0.9, 1.1, high - 1e-9, high + 1e-9, low - 1e-9, low + 1e-9):
        drift = Drift(1.0, 1.0, 0.0, (TaskDrift("a", 1.0, 1.0, times - 1),), waited=0.0)
        assert bool(find_contradictions(plan, graph, drift)) == (not low < times < high)
