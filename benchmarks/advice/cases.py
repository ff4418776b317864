"""Where gradient steps belong: our answer beside one that an expert can check by hand.

By hand, for a gradient step of networks with P weights on B samples: a forward and a backward pass
take 6·P·B flops, and what each algorithm does beside (targets, a second critic) a factor k. One
core does CORE flops a second on such products; CORES of them do half of what each does alone, and
start their threads for each operator (TORCH_S): the quicker of the two counts. A GPU does GPU flops
a second, and each of its operators takes some time from the one before, however small: GAP where
the step is a graph or in kernels of its own, EAGER where the host starts each (PPO's, which has no
graph). Where the two are more than CLEAR apart the answer is clear; nearer than that either is
right, and a verdict must not call itself sure of more than the band of its estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pearl
from benchmarks.bars import Bar, Part
from pearl.advice.comparison import compare
from pearl.explanation.resolve import devices_in, restricted
from pearl.planning.draws import Draws
from pearl.planning.plans import Plan
from pearl.solvers.solver import solve
from pearl_devices.kernels import kind_of

CORE = 60e9
"""flop/s of one server core on products of these sizes: half of 16 lanes × 2 × 3.5 GHz."""

CORES, TORCH_S = 16, 10e-6
"""Cores of a server's CPU, and what an operator of torch takes beside its arithmetic: 5 µs to
dispatch and as much to start its threads and to join them."""

GPU = 10e12
"""flop/s of a data-centre or desktop card on small products: a third of 30 TFLOP/s."""

GAP_S, EAGER_S, START_S = 1e-6, 15e-6, 10e-6
"""From operator to operator on a GPU that is kept fed, and on one that waits for the host; and the
start of all of them."""

CLEAR = 3.0
"""Factor between the two from which the answer is clear."""

AGREED = 0.95
"""Share of the clear answers that ours must be."""

SURE = 0.95
"""Share of the draws from which a verdict counts as sure."""


@dataclass(frozen=True)
class ByHand:
    """An algorithm by hand. env: obs and actions. k: passes beside one forward and backward, as a
    factor. networks: how many of them learn. operators: of one gradient step. gap_s: from one of
    them to the next."""

    env: str
    sizes: tuple[int, int]
    k: float
    networks: int
    operators: int
    gap_s: float = GAP_S


ALGORITHMS = {
    "dqn": ByHand("CartPole-v1", (4, 2), 1.7, 1, 50),
    "ddpg": ByHand("Pendulum-v1", (4, 1), 1.7, 2, 90),
    "sac": ByHand("Pendulum-v1", (4, 1), 1.8, 3, 250),
    "ppo": ByHand("CartPole-v1", (4, 2), 1.0, 2, 130, EAGER_S),
}

CASES = [
    (algorithm, width, batch, platform)
    for algorithm, sizes in {
        "dqn": ((32, 32), (64, 64), (128, 128), (256, 256), (512, 1024), (1024, 4096)),
        "ddpg": ((64, 64), (128, 128), (256, 256), (512, 1024)),
        "sac": ((32, 32), (64, 64), (256, 256), (512, 1024), (1024, 4096)),
        "ppo": ((32, 64), (64, 256), (256, 256), (512, 1024)),
    }.items()
    for width, batch in sizes
    for platform in ("cpu_gpu", "cpu_h200")
]


def weights(inner: int, outer: int, width: int) -> int:
    """Of a network of two hidden layers."""
    return sum(a * b + b for a, b in pairwise((inner, width, width, outer)))


def by_hand(algorithm: str, width: int, batch: int) -> tuple[float, float, str]:
    """Seconds of a gradient step on a CPU and on a GPU, and the arithmetic in a line."""
    a = ALGORITHMS[algorithm]
    each = weights(*a.sizes, width)
    flops = 6 * each * batch * a.networks * a.k
    one, all_s = flops / CORE, a.operators * TORCH_S + flops / (CORE * CORES / 2)
    gpu = START_S + a.operators * a.gap_s + flops / GPU
    line = (
        f"6 × {each:,} × {batch} × {a.networks} × {a.k:g} = {flops / 1e6:,.1f} MFLOP; "
        f"/ 60 G = {1e6 * one:,.0f} µs, or {a.operators} × {1e6 * TORCH_S:.0f} + "
        f"/ 480 G = {1e6 * all_s:,.0f} µs; {START_S * 1e6:.0f} + {a.operators} × "
        f"{1e6 * a.gap_s:.0f} + {1e6 * flops / GPU:.0f} = {1e6 * gpu:,.0f} µs"
    )
    return min(one, all_s), gpu, line


def spec(algorithm: str, width: int, batch: int, platform: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": algorithm,
        "env": ALGORITHMS[algorithm].env,
        "hidden": [width, width],
        "num_envs": 8,
    }
    if algorithm == "ppo":  # its batch is a share of the rollout
        found |= {"num_envs": batch // 4, "rollout_steps": 16, "minibatches": 4, "epochs": 4}
    else:
        found |= {"batch_size": batch, "learning_starts": max(1000, batch)}
        found |= {"replay": {"kind": "uniform", "capacity": 100_000}}
    return {"algorithm": found, "platform": platform}


def learning(plan: Plan) -> list[str]:
    """The tasks that take gradient steps."""
    assert plan.problem is not None
    tasks = plan.problem.graph.tasks
    return [t.name for t in tasks if kind_of(t.kernel).structure == "gradient"]


def answered(given: dict[str, Any]) -> tuple[Plan, str, float]:
    """The plan, where gradient steps are, and in which share of draws that is better than the best
    plan with them on the other device."""
    plan = pearl.plan(pearl.load(given), time_limit_s=10.0)
    about = plan.problem
    assert about is not None
    tasks = tuple(learning(plan))
    here = devices_in(plan, tasks)[0]
    table = restricted(about.costs, {}, {tasks: frozenset({here})})
    other = solve(about.graph, table, limits=about.limits, time_limit_s=10.0)
    return plan, here, 1 - compare(plan, other, Draws()).better


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others."""
    chosen: Sequence[tuple[str, int, int, str]] = CASES[::5] if quick else CASES
    rows: list[list[str]] = []
    clear = agreed = sure_of_other = 0
    values = []
    for algorithm, width, batch, platform in chosen:
        cpu, gpu, line = by_hand(algorithm, width, batch)
        plan, here, share = answered(spec(algorithm, width, batch, platform))
        ratio = cpu / gpu
        hand = "gpu" if ratio > CLEAR else "cpu" if ratio < 1 / CLEAR else "either"
        good = hand in (here, "either")
        clear += hand != "either"
        agreed += hand == here
        sure_of_other += not good and share >= SURE
        rows.append(
            [
                f"{algorithm} {width}-{width} b{batch}",
                platform,
                hand,
                here,
                f"{100 * share:.0f} %",
                f"{plan.rates['env_steps_per_s']:,.0f}",
                "yes" if good else "NO",
                line,
            ]
        )
        values.append({"case": rows[-1][:2], "by_hand": hand, "ours": here, "share": share})
    bars = [
        Bar(
            "gradient steps where an answer by hand that is clear has them",
            f"{agreed} of {clear}",
            f"{AGREED:.0%}",
            agreed >= AGREED * clear,
        ),
        Bar("of them sure of the other answer", str(sure_of_other), "0", sure_of_other == 0),
    ]
    columns = ["case", "platform", "by hand", "ours", "draws", "env steps/s", "agree", "by hand"]
    left_out = [f"{len(CASES) - len(chosen)} of {len(CASES)} cases"] if quick else []
    return Part("Where gradient steps belong", columns, rows, bars, left_out, {"cases": values})
