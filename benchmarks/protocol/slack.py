"""Each kind of slack on and off, on systems whose tasks wait: predicted beside measured gain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part
from benchmarks.protocol.waits import Case, planned, trained

MS = 1e-3


@dataclass(frozen=True)
class Pair:
    """A kind of slack: what it is called, without it, with it, and the gain asked."""

    what: str
    off: Case
    on: Case
    asked: float | None = None


def loop(ratio: str, envs: int = 8, **more: Any) -> dict[str, Any]:
    return {"num_envs": envs, "replay_ratio": ratio, **more}


def pairs() -> list[Pair]:
    one = loop("1/8")
    prioritised = {"capacity": 4096, "kind": "prioritised", "fanout": 8}
    apart = {"step": 4 * MS, "learn": 4 * MS}
    drawing = {"sample": 2 * MS, "learn": 2 * MS}
    deferring = {"step": 2 * MS, "learn": 2 * MS, "priorities": 2 * MS}
    storing = {"step": 3 * MS, "store": 3 * MS}
    late = {"act": 8 * MS}
    uneven = {
        "algorithm": loop("1/8", 4),
        "sleeps": {"step": 4 * 2.9 * MS},
        "drawn": {"step": lambda r: 20 * MS if r.random() < 0.1 else MS},
    }
    copies = {"max_lanes": 5, "replicas": {"act": 4, "step": 4}}
    return [
        Pair(
            "9 groups of one environment, policy lag 8",
            Case(loop("1/4", 1), {"max_lanes": 1}, {"step": MS}, late),
            Case(
                loop("1/4", 9), {"max_lanes": 1, "env_groups": 9, "policy_lag": 8},
                {"step": MS}, late,
            ),
            7.0,
        ),
        Pair(
            "policy lag 2", Case(one, {"max_lanes": 2}, apart),
            Case(one, {"max_lanes": 2, "policy_lag": 2}, apart),
        ),
        Pair(
            "prefetch 1", Case(loop("1/2"), {"max_lanes": 2}, drawing),
            Case(loop("1/2"), {"max_lanes": 2, "prefetch": 1}, drawing),
        ),
        Pair(
            "deferred priorities 2, policy lag 1",
            Case(loop("1/8", replay=prioritised), {"max_lanes": 3, "policy_lag": 1}, deferring),
            Case(
                loop("1/8", replay=prioritised),
                {"max_lanes": 3, "policy_lag": 1, "priority_staleness": 2}, deferring,
            ),
        ),
        Pair(
            "insertion lag 1", Case(one, {"max_lanes": 2}, storing),
            Case(one, {"max_lanes": 2, "insertion_lag": 1}, storing),
        ),
        Pair(
            "4 copies of step", Case(one, {"max_lanes": 4}, {"step": 8 * MS}),
            Case(one, {"max_lanes": 5, "replicas": {"step": 4}}, {"step": 8 * MS}),
        ),
        Pair(
            "4 uneven actors in any order, policy lag 32",
            Case(limits={**copies, "policy_lag": 0}, **uneven),
            Case(limits={**copies, "policy_lag": 32, "any_order": True}, **uneven), 2.0,
        ),
    ]  # fmt: skip


def run(quick: bool, data: Path | None) -> Part:
    lasting_s = 1.0 if quick else 10.0
    rows, bars, values = [], [], []
    for pair in pairs():
        predicted, measured, slack = [], [], ""
        for case in (pair.off, pair.on):
            system, plan = planned(case)
            per_s = plan.rates["env_steps_per_s"]
            done = trained(case, system, plan, max(64, int(per_s * lasting_s)))
            predicted.append(per_s)
            measured.append(done.env_steps_per_s or 0.0)
            slack = ", ".join(f"{e.src} → {e.dst} {e.slack}" for e in plan.edges if e.slack)
        gain, expected = measured[1] / measured[0], predicted[1] / predicted[0]
        rows.append(
            [
                pair.what, f"{predicted[0]:,.0f} → {predicted[1]:,.0f}",
                f"{measured[0]:,.0f} → {measured[1]:,.0f}", f"{expected:.2f}×", f"{gain:.2f}×",
                slack,
            ],
        )  # fmt: skip
        values.append({"what": pair.what, "predicted_per_s": predicted, "measured_per_s": measured})
        if pair.asked:
            bars.append(Bar(pair.what, f"{gain:.2f}×", f"≥ {pair.asked:g}×", gain >= pair.asked))
    return Part(
        "slack on and off, env steps/s",
        ["slack", "predicted", "measured", "predicted gain", "measured gain", "the plan's slack"],
        rows, bars, values={"pairs": values},
    )  # fmt: skip
