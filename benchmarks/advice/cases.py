"""Where gradient steps belong: our answer beside one that an expert can check by hand.

By hand, for a gradient step of networks with P weights on B samples: a forward and a backward pass
take 6·P·B flops, and what each algorithm does beside (targets, a second critic) a factor k. One
core does CORE flops a second on such products; CORES of them do half of what each does alone, and
start their threads for each operator (TORCH_S): the quicker of the two counts. A GPU does GPU flops
a second, and none of its operators is quicker than a small one: a product takes PRODUCT, another
ELEMENT where the step is a graph, and either EAGER where the host starts each (PPO's, which has no
graph). These are figures that others published, of kernels timed on the device and of loops, and no
constants of our models. Or one multiprocessor (SM) does the whole step as one kernel, BARRIER from
operator to operator, where that is quicker. Where the two are more than CLEAR apart the answer is
clear; nearer than that either is right, and a verdict must not call itself sure of more than the
band of its estimates.
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
from pearl.explanation.resolve import devices_in, restrict
from pearl.planning.draws import Draws
from pearl.planning.plans import Plan
from pearl.solvers.solver import solve
from pearl_devices.kernels import kind_of

CORE = 60e9
"""flop/s of one server core on products of these sizes: half of 16 lanes × 2 × 3.5 GHz."""

CORES, TORCH_S = 16, 10e-6
"""Cores of a server's CPU, and what an operator of torch takes beside its arithmetic: 5 µs to
dispatch and as much to start its threads and to join them."""

GPU = 15e12
"""flop/s of a card on products of 1024 squared: 14.9 on an RTX 3080 and 17.1 on an A40, which have
the chip of an RTX 3090 (zzc0721/torch-performance-test-data, issues 114 and 185)."""

PRODUCT_S, ELEMENT_S = 4.2e-6, 1.0e-6
"""A product of 128 squared, 4.0 to 4.3 us on the device (JuliaGPU/GemmKernels.jl, pulls 169 and
174), and torch's smallest element-wise kernel (official-stockfish/nnue-pytorch, pull 96)."""

EAGER_S, START_S = 23e-6, 6.1e-6
"""An operator of a gradient step that the host starts: the middle of 8 us, one without gradients
(flagos-ai/Torch-FL, pull 27), and 69, what a loop of LeanRL's eager PPO leaves for each: 683 env
steps a second on an H100 are 9.4 ms for a gradient step and its 6.4 env steps, over 136 operators.
And a launch with its end (openfabric-systems/simllm, a100_hardware_envelope_v1)."""

SM, BARRIER_S = 200e9, 0.5e-6
"""flop/s of one SM: half of 35.6 TFLOP/s over 82 SMs (data sheet of the RTX 3090); and the threads
of a block that wait for each other and read what they wrote: some 800 cycles, assumed."""

CLEAR = 3.0
"""Factor between the two from which the answer is clear."""

AGREED = 0.95
"""Share of the clear answers that ours must be."""

SURE = 0.95
"""Share of the draws from which a verdict counts as sure."""


@dataclass(frozen=True)
class ByHand:
    """An algorithm by hand. env: obs and actions. k: passes beside one forward and backward, as a
    factor. networks: how many of them learn. operators: of one gradient step. products: of them,
    by networks of three layers. eager: the host starts each."""

    env: str
    sizes: tuple[int, int]
    k: float
    networks: int
    operators: int
    products: int
    eager: bool = False


ALGORITHMS = {
    "dqn": ByHand("CartPole-v1", (4, 2), 1.7, 1, 50, 14),
    "ddpg": ByHand("Pendulum-v1", (4, 1), 1.7, 2, 90, 28),
    "sac": ByHand("Pendulum-v1", (4, 1), 1.8, 3, 250, 45),
    "ppo": ByHand("CartPole-v1", (4, 2), 1.0, 2, 130, 16, eager=True),
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
    products_s = a.products * (EAGER_S if a.eager else PRODUCT_S)
    others_s = (a.operators - a.products) * (EAGER_S if a.eager else ELEMENT_S)
    whole = START_S + products_s + others_s + flops / GPU
    alone = START_S + a.operators * BARRIER_S + flops / SM
    line = (
        f"6 × {each:,} × {batch} × {a.networks} × {a.k:g} = {flops / 1e6:,.1f} MFLOP; "
        f"/ 60 G = {1e6 * one:,.0f} µs, or {a.operators} × {1e6 * TORCH_S:.0f} + "
        f"/ 480 G = {1e6 * all_s:,.0f} µs; {START_S * 1e6:.0f} + {a.products} products "
        f"{1e6 * products_s:.0f} + {a.operators - a.products} others {1e6 * others_s:.0f} + "
        f"{1e6 * flops / GPU:.0f} = {1e6 * whole:,.0f} µs, or on one SM "
        f"{1e6 * a.operators * BARRIER_S:.0f} + {1e6 * flops / SM:,.0f} = {1e6 * alone:,.0f} µs"
    )
    return min(one, all_s), min(whole, alone), line


def spec(algorithm: str, width: int, batch: int, platform: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": algorithm, "env": ALGORITHMS[algorithm].env, "hidden": [width, width],
        "num_envs": 8,
    }  # fmt: skip
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
    away = restrict(about, {}, {tasks: frozenset({here})})
    other = solve(about.graph, away.costs, limits=about.limits, time_limit_s=10.0)
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
                f"{algorithm} {width}-{width} b{batch}", platform, hand, here,
                f"{100 * share:.0f} %", f"{plan.rates['env_steps_per_s']:,.0f}",
                "yes" if good else "NO", line,
            ],
        )  # fmt: skip
        values.append({"case": rows[-1][:2], "by_hand": hand, "ours": here, "share": share})
    bars = [
        Bar(
            "gradient steps where an answer by hand that is clear has them", f"{agreed} of {clear}",
            f"{AGREED:.0%}", agreed >= AGREED * clear,
        ),
        Bar("of them sure of the other answer", str(sure_of_other), "0", sure_of_other == 0),
    ]  # fmt: skip
    columns = ["case", "platform", "by hand", "ours", "draws", "env steps/s", "agree", "by hand"]
    left_out = [f"{len(CASES) - len(chosen)} of {len(CASES)} cases"] if quick else []
    return Part("Where gradient steps belong", columns, rows, bars, left_out, {"cases": values})
