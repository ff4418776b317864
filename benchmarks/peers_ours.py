"""Our runs of the workloads, and what would limit them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.bars import AbsentError
from benchmarks.peers_workloads import Workload

Changes = dict[str, object]
GYMNASIUM: Changes = {"limits.variants": {"step": ["gymnasium"]}}
OWN_ENV: Changes = {"algorithm.env": "benchmarks.peers_ours:cartpole"}
TORCH: Changes = {"limits.variants": {"learn": ["torch"]}}
BFLOAT16: Changes = {"limits.variants": {"learn": ["torch-bf16"]}}
SMALLEST: Changes = {"algorithm.hidden": [1], "algorithm.batch_size": 1}
"""So little work in every kernel that Python and dispatch are most of an iteration."""


def cartpole() -> Any:
    """An environment of the user's own, as `module:callable` names it."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


def ours(load: Workload, seed: int, changes: Changes) -> dict[str, Any]:
    """A run of ours: its rate, its variants, and whether torch was imported.

    Raises:
        AbsentError: this host has none of the variants asked for.
    """
    import pearl

    try:
        trainer = pearl.compile(load.ours(), set=changes, seed=seed)
    except pearl.InfeasibleError as error:
        raise AbsentError(str(error)) from None
    run = trainer.train()
    if run.env_steps_per_cpu_s is None:
        raise RuntimeError(f"{load.what}: {load.steps} env steps have no steady stretch")
    return {
        "per_cpu_s": run.env_steps_per_cpu_s,
        "torch": "torch" in sys.modules,
        "variants": {t.task: t.variant for t in run.plan.tasks},
    }


def products(load: Workload, own: bool) -> float:
    """Env steps per CPU-second if a gradient step were nothing but its matrix products and all else
    were free: the same shapes, preallocated, by our own tiles or by the faster of numpy's BLAS and
    torch's."""
    import numpy as np
    import torch

    from pearl import load as read
    from pearl.algorithms import algorithm
    from pearl_devices.kernels import kind_of
    from pearl_devices.primitives.math.products import affine

    torch.set_num_threads(1)
    random, system = np.random.default_rng(0), read(load.ours())
    graph = algorithm(load.algorithm).graph(system)
    update = graph.task("learn").kernel
    made = [
        [np.asarray(random.normal(size=s), np.float32) for s in ((m, k), (k, n), (m, n), n)]
        for m, k, n in kind_of(update).products(update)
    ]
    tensors = [[torch.from_numpy(array) for array in one] for one in made]
    lists: list[Callable[[], object]] = [
        lambda: [np.dot(a, b, out=out) for a, b, out, _ in made],
        lambda: [torch.mm(a, b, out=out) for a, b, out, _ in tensors],
    ]
    if own:
        lists = [lambda: [affine(a, b, bias, out, 0) for a, b, out, bias in made]]
    return max(best_rate(call) for call in lists) * graph.env_steps / graph.updates


def best_rate(call: Callable[[], object]) -> float:
    """Calls per CPU-second, the best of nine stretches of 0.1 s."""
    call()
    best = 0.0
    for _ in range(9):
        begin, count = time.process_time(), 0
        while time.process_time() - begin < 0.1:
            call()
            count += 1
        best = max(best, count / (time.process_time() - begin))
    return best
