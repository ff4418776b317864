"""Learners with averaged gradients compute what one learner computes, and the same bits wherever
they run and however the gradients are averaged."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from pearl.training.trainer import Trainer
from pearl_devices import Buffers, Kernel, backend
from pearl_devices.buffers import allocate
from pearl_devices.kernels import kernel
from pearl_devices.kernels.data_parallel import copy_to_learners
from pearl_devices.kernels.examples import fill_arrays
from tests.lanes import cut, differing, told, trained
from tests.learners import CASES, apart, but_for_gradients, planned_with

STEPS = 600
"""Env steps of a run; each case takes 100 gradient steps or more."""

SIZES: dict[str, Any] = {"obs": 4, "act": 0, "batch": 32, "steps": 1}
KINDS: dict[str, dict[str, Any]] = {
    "dqn": {**SIZES, "q": (4, 64, 64, 2), "double": 1, "td": 1},
    "ppo": {**SIZES, "envs": 8, "horizon": 8, "epochs": 1, "steps": 2, "tanh": 1}
    | {"actor": (4, 64, 64, 2), "critic": (4, 64, 64, 1)},
}


@functools.cache
def alone(case: str, learners: int) -> Trainer:
    """The run in one thread."""
    return trained(*planned_with(case, learners), "one", steps=STEPS)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_parameters_after_many_steps_are_those_of_one_learner(case: str, learners: int) -> None:
    one, several = alone(case, 1).session.arrays, alone(case, learners).session.arrays
    first = [n for n in one if n.startswith("learner.") and n.endswith((".q", ".actor", ".critic"))]
    assert (
        int(one["learner.step"][0])
        == int(several["learner.step"][0])
        >= (100 if "d" in case else 18)
    )
    for name in first:
        apart = np.linalg.norm(several[name] - one[name])
        assert apart <= 1e-4 * np.linalg.norm(one[name])
    for name in (n for n in several if n.startswith("learners.")):
        same = several[f"learner.{name.split('.', 2)[2]}"]
        assert np.array_equal(several[name], same), f"{name} took other steps than the first"


def _kernels(name: str, learners: int, *, cut: bool = False) -> tuple[list[Kernel], list[Kernel]]:
    sizes = {**KINDS[name], "learners": learners} | ({"shards": 1} if cut else {})
    program = f"pearl.algorithms.{name}:losses"
    gradients = [
        kernel(f"learner_gradient.{name}", {**sizes, "learner": i}, program=program)
        for i in range(learners)
    ]
    shards = [{"learner": i} for i in range(learners)] if cut else [{}]
    return gradients, [kernel(f"all_reduce.{name}", sizes, **shard) for shard in shards]


def _arrays(name: str, kernels: list[Kernel]) -> Buffers:
    """Arrays that every number of learners has alike, with all parameters the same."""
    first = fill_arrays(_kernels(name, 1)[0], seed=3)
    if name == "ppo":
        random = np.random.default_rng(4)
        for n, a in first.items():
            if n.startswith("rollout.") and a.dtype == np.float32:
                a[:] = random.normal(0, 1, a.shape)
        for n, value in (("normalise", 1), ("value_weight", 0.5), ("entropy", 0.01), ("clip", 0.2)):
            first[f"hyper.{n}"][:] = value
    given = {n: a for n, a in first.items() if not n.startswith("gradient.")}
    arrays = allocate(kernels, given)
    copy_to_learners(arrays)
    return arrays


def _means(name: str, learners: int, *, cut: bool = False) -> dict[str, Any]:
    """The mean gradients of one step by so many learners, and the TD errors of its batch."""
    gradients, reductions = _kernels(name, learners, cut=cut)
    arrays = _arrays(name, [*gradients, *reductions])
    for k in (*gradients, *reductions):
        backend("cpu").bind(k, "torch", arrays)()
    return {n: a.copy() for n, a in arrays.items() if n.startswith(("mean.", "batch.td", "loss."))}


@pytest.mark.parametrize("learners", [2, 4, 8])
@pytest.mark.parametrize("name", KINDS)
def test_the_mean_gradient_of_one_step_is_that_of_the_whole_batch(name: str, learners: int) -> None:
    """In float32. Of a sum, or of a share taken twice, the norm would be off by a part of itself.
    PPO's advantages are normalised over the whole minibatch."""
    whole, mean = _means(name, 1), _means(name, learners)
    assert whole.keys() == mean.keys()
    for array, found in mean.items():
        norm = np.linalg.norm(whole[array])
        assert norm > 0
        assert np.linalg.norm(found - whole[array]) <= 1e-6 * norm, array


@pytest.mark.parametrize("learners", [2, 4, 8])
@pytest.mark.parametrize("name", KINDS)
def test_shards_of_the_mean_have_the_bits_of_the_whole(name: str, learners: int) -> None:
    whole, cut = _means(name, learners), _means(name, learners, cut=True)
    for array in whole:
        shards = [f"{array}.{i}" for i in range(learners)] if array.startswith("mean.") else [array]
        assert np.array_equal(whole[array], np.concatenate([cut.pop(n) for n in shards])), array
    assert not cut


def test_gradients_are_added_in_the_order_of_the_learners() -> None:
    """Which float32 sums do tell apart: 1e8 + 1 − 1e8 + 3 is 3, in other orders 1, 0 or 4."""
    gradients, (reduction,) = _kernels("dqn", 4)
    arrays = allocate([*gradients, reduction])
    for i, value in enumerate((1e8, 1.0, -1e8, 3.0)):
        arrays[f"gradient.{i}.q"][:] = value
    call = backend("cpu").bind(reduction, "torch", arrays)
    for _ in range(3):
        call()
        assert set(arrays["mean.q"].tolist()) == {0.75}


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("case", "learners", "reduction", "hosting"),
    [
        ("dqn, prioritised", 4, "star", "threads"),
        ("ppo", 4, "star", "threads"),
        ("ppo", 4, "shards", "threads"),
        ("dqn", 2, "shards", "processes"),
    ],
)
def test_learners_on_lanes_of_their_own_compute_the_same_bits(
    case: str, learners: int, reduction: str, hosting: str
) -> None:
    """Those of the star in one thread, whatever the reduction."""
    system, plan = planned_with(case, learners, reduction)
    several = trained(system, apart(plan), hosting, steps=STEPS)
    assert len(several.protocol.lanes) == learners
    assert but_for_gradients(differing(alone(case, learners), several)) == []


@pytest.mark.parametrize("reduction", ["star", "shards"])
def test_a_run_of_learners_goes_on_from_its_checkpoint(reduction: str, tmp_path: Any) -> None:
    system, plan = planned_with("ppo", 2, reduction)
    plan = apart(plan)
    cut(Trainer(told(system, lanes="threads"), plan, seed=3), 200, steps=STEPS, out=tmp_path)
    again = Trainer(told(system, lanes="one"), plan, seed=3)
    assert again.train(steps=STEPS, out=tmp_path, resume=True).status == "done"
    assert but_for_gradients(differing(alone("ppo", 2), again)) == []
