"""Trains the spiking policy, or says which device each link lets act and learn:
`python -m examples.spiking seeds [N]` or `python -m examples.spiking devices`."""

from __future__ import annotations

import sys
from pathlib import Path

import pearl

SPEC = Path(__file__).parent / "spec.yaml"
LATENCIES_S = (1e-5, 1e-3, 1e-2)
"""Of the link between host and tiles: PCIe, and networks."""


def train(seed: int, steps: int = 60_000) -> float:
    """The mean return of the best policy of a run on this host."""
    set_ = {"platform": "host", "train.steps": steps}
    return float(pearl.compile(SPEC, set=set_, seed=seed).train().returns["eval_mean"])


def choose(latency_s: float, **pin: str) -> pearl.Plan:
    """The plan for a latency of the link, with tasks pinned to devices."""
    link = {"between": ["cpu", "ipu"], "source": "assumed", "bandwidth": "31.5 GB/s"}
    links = [{**link, "latency": f"{latency_s * 1e6:g} us"}]
    return pearl.plan(pearl.load(SPEC, set={"platform.links": links, "limits.pin": pin}))


def main(what: str, count: str = "5") -> None:
    if what == "devices":
        for latency_s in LATENCIES_S:
            plan, on_cpu = choose(latency_s), choose(latency_s, learn="cpu", act="cpu")
            acts, learns = (plan.task(task).device for task in ("act", "learn"))
            print(
                f"link of {latency_s * 1e6:g} us: acts on {acts}, learns on {learns}; "
                f"{plan.value:,.0f} env steps/s (the tiles are simulated), on the CPU alone "
                f"{on_cpu.value:,.0f}"
            )
        return
    for seed in range(int(count)):
        print(f"seed {seed}: return {train(seed):.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
