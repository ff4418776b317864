"""What a window of the rollout is worth to A2C: `python -m benchmarks.rollout_windows [PART …]`.

memory: bytes counted and measured of returns to the end of a rollout of 1,000 vector steps, and of
8 rewards. overlap: env steps a second of both, predicted and measured, with environments of 200 us
on two lanes, in turns; with --pairs N times.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bars import run_module
from pearl.formats import latest

RETURNS: dict[str, Any] = {"monte_carlo": "monte_carlo", "8 steps": {"n_step": 8}}
HORIZON = 1000
"""Vector steps of the long rollout."""

QUIET = {"evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0}


def _spec(returns: Any, steps: int, limits: dict[str, Any], **options: Any) -> dict[str, Any]:
    algorithm = {"name": "a2c", "env": "CartPole-v1", "returns": returns, **options}
    train = {"steps": steps, **QUIET}
    return {"algorithm": algorithm, "limits": limits, "train": train}


def _status(name: str) -> int:
    """A figure of this process in bytes, by its name in /proc."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split(f"{name}:")[1].split()[0])


def _long_rollout(returns: Any, envs: int) -> dict[str, Any]:
    """The spec of one rollout of HORIZON vector steps."""
    limits = {"max_lanes": 1, "variants": {"step": ["gymnasium"]}}  # no fused calls
    sizes = {"rollout_steps": HORIZON, "hidden": [64, 64], "num_envs": envs}
    return _spec(returns, HORIZON * envs, limits, **sizes)


def rollout_bytes(returns: Any, envs: int = 128) -> float:
    """Bytes that the task graph counts for the arrays of a rollout."""
    import pearl
    from pearl.algorithms import algorithm
    from pearl.graph.liveness import stored_arrays

    graph = algorithm("a2c").graph(pearl.load(_long_rollout(returns, envs)))
    return sum(a.bytes for a in stored_arrays(graph))


def hold(returns: Any, envs: int = 128) -> dict[str, float]:
    """Counted and measured bytes of one run. The peak begins once everything is compiled."""
    import pearl

    pearl.compile(_long_rollout(returns, 2)).train()
    system = pearl.load(_long_rollout(returns, envs))
    plan = pearl.plan(system)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before = _status("VmRSS")
    trainer = pearl.compile(system, plan=plan)
    run = trainer.train()
    assert run.status == "done", run.message
    arrays = sum(a.nbytes for a in trainer.session.arrays.values())
    scratch = sum(t.kernel.resident_bytes for t in trainer.graph.tasks)
    rollout = rollout_bytes(returns, envs)
    return {"rollout": rollout, "counted": arrays + scratch, "measured": _status("VmHWM") - before}


def memory() -> dict[str, Any]:
    """Each of the two in a process of its own."""
    found = {}
    for name, returns in RETURNS.items():
        given = ["--hold", json.dumps(returns)]
        found[name] = run_module(name, "benchmarks.rollout_windows", given, env={})
    whole, window = found.values()
    for what in ("rollout", "counted"):
        print(f"{what}: {whole[what]:,.0f} and {window[what]:,.0f} bytes, "
              f"{whole[what] / window[what]:.0f} x")  # fmt: skip
    saved = {k: whole[k] - window[k] for k in ("counted", "measured")}
    print(f"saved: {saved['counted']:,.0f} bytes counted, {saved['measured']:,.0f} measured, "
          f"ratio {saved['measured'] / saved['counted']:.3f}")  # fmt: skip
    return found


def overlap(pairs: int) -> dict[str, Any]:
    """Both plans, run in turns."""
    import pearl

    sizes = {"num_envs": 32, "rollout_steps": 256, "hidden": [256, 256]}
    sizes |= {"env": "benchmarks.slow_env:vector_of", "env_args": {"us": 200.0}}
    made, rates = {}, {}
    for name, returns in RETURNS.items():
        system = pearl.load(_spec(returns, 20 * 32 * 256, {"max_lanes": 2}, **sizes))
        made[name] = system, pearl.plan(system)
        rates[name] = list[float]()
    for _ in range(pairs):
        for name, (system, plan) in made.items():
            run = pearl.compile(system, plan=plan).train()
            rates[name].append(run.env_steps_per_s or 0.0)
    found = dict[str, Any]()
    for name, (_, plan) in made.items():
        lanes = len([k for k in plan.lanes if k.width])
        predicted = plan.rates["env_steps_per_s"]
        found[name] = {"lanes": lanes, "predicted": predicted, "measured": rates[name]}
        print(f"{name}: {lanes} lanes, {predicted:,.0f} env steps/s predicted")
    both = [found[name] for name in RETURNS]
    predicted = both[1]["predicted"] / both[0]["predicted"]
    print(f"8 steps over monte_carlo: {predicted:.2f} x predicted")
    if pairs:
        for name, measured in rates.items():
            print(f"{name}: {median(measured):,.0f} measured (best {max(measured):,.0f})")
        slow, fast = (rates[name] for name in RETURNS)
        gain = median(b / a for a, b in zip(slow, fast, strict=True))
        print(f"8 steps over monte_carlo: {gain:.2f} x measured, median of {pairs} pairs")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help="memory, overlap; by default all")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        print(json.dumps(hold(json.loads(given.hold))))
        return
    found = {}
    if not given.part or "memory" in given.part:
        found["memory"] = memory()
    if not given.part or "overlap" in given.part:
        found["overlap"] = overlap(given.pairs)
    if given.json:
        content = {"schema": latest("benchmark result"), **found}
        given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
