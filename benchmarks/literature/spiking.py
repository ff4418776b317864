"""snnTorch on IPUs (Sun et al. 2022, arXiv 2211.10725): a spiking policy on a machine of tiles."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from benchmarks.bars import Bar, Part
from benchmarks.literature import COLUMNS, command

ROOT = Path(__file__).parents[2]


def run(quick: bool, data: Path | None) -> Part:
    """The part. quick: without training."""
    sys.path.insert(0, str(ROOT))
    from examples.spiking.__main__ import LATENCIES_S, choose, train

    rows, wrong = list[list[str]](), 0
    for latency_s in LATENCIES_S:
        plan = choose(latency_s)
        values = [
            choose(latency_s, act=acts, learn=learns).value
            for acts, learns in itertools.product(("cpu", "ipu"), repeat=2)
        ]
        wrong += plan.value < max(values) * (1 - 1e-9)
        acts, learns = (plan.task(t).device for t in ("act", "learn"))
        here = f"link of {1e6 * latency_s:g} us: acts on {acts}, learns on {learns} (simulated)"
        claimed = "MIMD tiles suit the sequential steps of spiking networks"
        rows.append(["snnTorch on IPUs", claimed, here, "modelled", command("spiking")])
    bars = [Bar("plans that enumeration contradicts", str(wrong), "0", wrong == 0)]
    left_out = ["the training of a seed"] if quick else []
    if not quick:
        returned = train(0)
        here = f"DQN on CartPole-v1 with spiking neurons, one seed: return {returned:.0f}"
        rows.append(["snnTorch on IPUs", "surrogate gradients train", here, "measured",
                     "python -m examples.spiking seeds"])  # fmt: skip
        bars.append(Bar("return of a seed", f"{returned:.0f}", "at least 400", returned >= 400))
    return Part("literature: spiking networks", COLUMNS, rows, bars, left_out)
