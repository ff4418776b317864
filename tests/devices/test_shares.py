"""Learners that share gradient steps, with torch's kernels: the steps of one learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pearl.testing.kernel_buffers import copied
from pearl_devices import Buffers, Kernel, cpu, kernel
from pearl_devices.buffers import allocate
from pearl_devices.kernels.data_parallel import copy_to_learners
from tests.devices import test_primitives_nets as nets
from tests.devices import test_primitives_ppo as on_policy


def dqn() -> tuple[Kernel, Buffers]:
    sizes: dict[str, Any] = {"obs": 3, "act": 0, "batch": 8, "steps": 3, "double": 1}
    k = kernel("update.dqn", sizes, q=(3, 6, 2), program="tests.kernel_losses:dqn")
    buffers = nets.fresh(k, {"q": (3, 6, 2)})
    buffers["hyper.clip_norm"][:], buffers["hyper.target_every"][:] = 0.05, 2.0
    return k, buffers


def rollouts(spaces: dict[str, Any]) -> tuple[Kernel, Buffers]:
    k = on_policy.update(spaces, hidden=(6,), epochs=2, minibatches=2)
    buffers = on_policy.learning(k)
    buffers["hyper.anneal"][:], buffers["learner.step"][:] = 32.0, 0
    return k, buffers


CASES: dict[str, Callable[[], tuple[Kernel, Buffers]]] = {
    "dqn": dqn,
    "discrete": lambda: rollouts(on_policy.DISCRETE),
    "continuous": lambda: rollouts(on_policy.CONTINUOUS),
}


@pytest.mark.parametrize("shards", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_two_learners_take_the_gradient_steps_of_one(case: str, shards: int) -> None:
    """Of two firings of the update; every learner's arrays become those of the one."""
    k, whole = CASES[case]()
    name, learners = k.kind.removeprefix("update."), range(2)
    sizes = {**k.dims, "learners": 2, **({"shards": 1} if shards else {})}
    shared = [
        [kernel(f"{kind}.{name}", {**sizes, "learner": i}, program=k.program) for i in places]
        for kind, places in (
            ("learner_gradient", learners),
            ("all_reduce", learners if shards else (0,)),
            ("learner_step", learners),
        )
    ]
    own = allocate([each for kinds in shared for each in kinds], copied(whole))
    copy_to_learners(own)
    calls = [cpu.bind(each, "torch", own) for kinds in shared for each in kinds]
    one = cpu.bind(k, "torch", whole)
    for firing in range(2):
        one()
        for _ in range(k.dim("steps")):
            for call in calls:
                call()
        assert own["learner.step"][0] == whole["learner.step"][0] == (firing + 1) * k.dim("steps")
    for array in (n for n in whole if n.startswith(("learner.", "loss."))):
        np.testing.assert_allclose(own[array], whole[array], rtol=1e-4, atol=1e-6, err_msg=array)
        if array.startswith("learner."):
            np.testing.assert_array_equal(own[f"learners.1.{array[8:]}"], own[array])


def test_td_errors_of_all_learners_stand_in_a_row() -> None:
    k, whole = dqn()
    k = kernel("update.dqn", {**k.dims, "steps": 1}, program=k.program)
    sizes = {**k.dims, "learners": 4, "td": 1}
    kernels = [
        kernel("learner_gradient.dqn", {**sizes, "learner": i}, program=k.program) for i in range(4)
    ] + [kernel("all_reduce.dqn", sizes)]
    whole = {n: a[:1] if n.startswith("batch.") else a for n, a in whole.items()}
    own = allocate(kernels, copied(whole))
    copy_to_learners(own)
    for each in kernels:
        cpu.bind(each, "torch", own)()
    cpu.bind(k, "torch", whole)()
    np.testing.assert_allclose(own["batch.td"], whole["batch.td"], rtol=1e-5)
    np.testing.assert_allclose(own["loss.q"], whole["loss.q"], rtol=1e-5)
