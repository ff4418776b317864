"""Parts of a run on twins of what they use: its end, its events, its binding, and what goes on."""

from __future__ import annotations

from types import SimpleNamespace as Given
from typing import Any

from pearl.planning.costs import CostTable
from pearl.testing.graphs import devices, loop, mode, star
from pearl.training import replanning
from pearl.training.checkpoints.state import RunState

# Binding


def session(**fields: Any) -> Any:
    train = Given(env_time_limit=None, on_env_failure="stop")
    lanes = [Given(firings=[1, 2]), Given(firings=[3])]
    compiled = Given(
        emulate=False, system=Given(train=train, raw={}), protocol=Given(lanes=lanes),
        plan=Given(period_s=0.5, pace_s=0.25), graph="graph",
    )  # fmt: skip
    plain: dict[str, Any] = {"compiled": compiled, "state": RunState(iteration=4), "arrays": {},
                             "resume_point": None, "acting": None}  # fmt: skip
    return Given(**{**plain, **fields})


# Going on


# Re-planning


def test_factors_are_sums_of_measured_over_sums_of_estimated_seconds(monkeypatch):
    named = lambda graph, mode: f"{'+'.join(mode.tasks)}, {mode.key[1]}"  # noqa: E731
    monkeypatch.setattr(replanning, "_factor_name", named)

    def way(tasks: str, said: float, share: int | None = None, **other: Any) -> Any:
        key = (other.get("device", "cpu"), other.get("variant", "native"), 1)
        return Given(tasks=tuple(tasks), share=share, key=key, estimate=Given(latency_s=said))

    modes = [
        way("a", 2.0), way("a", 9.0, variant="torch"), way("a", 9.0, device="gpu"), way("bc", 4.0),
        way("b", 1.0), way("c", 3.0), way("d", 5.0, 2), way("d", 9.0, 3), way("e", 0.0),
    ]  # fmt: skip
    parts = {"d_0": Given(shares=(2, 3), replica=0), "d_1": Given(shares=(2, 2), replica=1)}
    place = Given(device="cpu", variant="native", width=1)
    protocol: Any = Given(
        plan=Given(task=lambda name: place),
        graph=Given(task=lambda name: Given(part=parts.get(name)),
                    origin=lambda name: (name[0], 0)),
    )  # fmt: skip
    jobs = [Given(tasks=tasks) for tasks in (("a",), ("b", "c"), ("d_0",), ("d_1",), ("e",))]
    seconds = {"a": 3.0, "b+c": 6.0, "b": None, "c": 1.5, "d_0": 10.0, "d_1": 5.0, "e": 1.0}
    rows: Any = [Given(task=task, measured_s=s) for task, s in seconds.items()]
    problem: Any = Given(costs=Given(modes=modes), graph=None)
    assert replanning.compute_factors(problem, protocol, jobs, rows) == {  # type: ignore[arg-type]
        "a, native": 1.5, "b+c, native": 1.5, "c, native": 0.5, "d, native": 1.5
    }  # fmt: skip


def test_a_fused_call_without_a_factor_of_its_own_has_those_of_its_members(monkeypatch):
    named = lambda graph, mode: "+".join(mode.tasks)  # noqa: E731
    monkeypatch.setattr(replanning, "_factor_name", named)
    graph, platform = loop("a", "b"), star(devices("d0", "d1", lanes=1), 1e-6, 1e12)
    a, b = mode("a", "d0", 1.0, energy=2.0), mode("b", "d0", 3.0)
    both = replanning.replace(a, tasks=("a", "b"))
    table = CostTable(platform, (a, b, both))

    def scaled(by: Any, shares: Any) -> list[float]:
        monkeypatch.setattr(CostTable, "shares", lambda self, mode, graph: shares)
        return [m.estimate.latency_s for m in replanning.apply_factors(table, graph, by).modes]

    shares = {"a": 0.25, "b": 0.75}
    assert scaled({"a": 2.0}, shares) == [2.0, 3.0, 1.25]
    assert scaled({"a": 2.0}, {}) == [2.0, 3.0, 1.0]
    assert scaled({"a": 2.0, "b": 4.0, "a+b": 5.0}, shares) == [2.0, 12.0, 5.0]
    found = replanning.apply_factors(table, graph, {"a": 1.0, "b": 2.0}).modes
    assert found[0] is a
    assert found[1].estimate.source.endswith("; times 2, as the run measured")
