"""Parts of a run on twins of what they use: its end, its events, its binding, and what goes on."""

from __future__ import annotations

from types import SimpleNamespace as Given
from typing import Any

from pearl.training import replanning

# Binding


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
