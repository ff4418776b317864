"""Networks that are torch modules of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pearl
from examples import catch_image
from pearl.errors import SpecError
from pearl.testing.kernel_buffers import copied
from pearl_devices import cpu
from pearl_devices.primitives.torch import modules
from tests.examples import SMALL_DQN

DENSE: dict[str, Any] = {
    "algorithm": SMALL_DQN,
    "train": {"steps": 600, "evaluate_every": 0, "final_episodes": 1, "checkpoint_every": 300},
}


def dense(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    size = int(np.prod(inputs))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, outputs))


def normed(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs[0], outputs), nn.BatchNorm1d(outputs))


def short(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(inputs[0], outputs + 1)


def broken(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    raise RuntimeError("no such layer")


def own(name: str = "dense", **changes: Any) -> Any:
    algorithm = {**SMALL_DQN, "network": f"tests.devices.test_own_network:{name}", **changes}
    return {**DENSE, "algorithm": algorithm}


def test_it_runs_in_torch_alone_and_trains_its_parameters() -> None:
    trainer = pearl.compile(own())
    variants = {t.task: t.variant for t in trainer.plan.tasks}
    assert variants["act"] == variants["learn"] == "torch"
    assert trainer.graph.fusions == ()
    before = trainer.session.arrays["learner.q"].copy()
    assert before.size == 4 * 16 + 16 + 16 * 2 + 2
    trainer.train()
    assert not np.array_equal(before, trainer.session.arrays["learner.q"])
    np.testing.assert_array_equal(
        trainer.session.arrays["learner.q"], trainer.session.arrays["policy.q"]
    )


def test_a_gradient_step_equals_that_of_the_same_dense_layers() -> None:
    """The module's parameters are the transposed ones of ours; so are the updated ones."""
    trainers = [pearl.compile(spec, set={"limits.variants": {"learn": ["torch"]}})
                for spec in (own(), DENSE)]  # fmt: skip
    mine, ours = (t.graph.task("learn").kernel for t in trainers)
    module, plain = trainers[0].session.arrays, copied(trainers[1].session.arrays)
    from pearl_devices.buffers import allocate

    allocate([ours], plain)
    for suffix in ("", ".target", ".m", ".v"):
        plain[f"learner.q{suffix}"][:] = transposed(module[f"learner.q{suffix}"])
    random = np.random.default_rng(0)
    for name in ("obs", "next_obs", "reward"):
        module[f"batch.{name}"][:] = random.normal(size=module[f"batch.{name}"].shape)
        plain[f"batch.{name}"][:] = module[f"batch.{name}"]
    for arrays in (module, plain):
        arrays["batch.discount"][:], arrays["batch.weight"][:] = 0.9, 1.0
    cpu.bind(mine, "torch", module)()
    cpu.bind(ours, "torch", plain)()
    for suffix in ("", ".target", ".m"):
        np.testing.assert_allclose(
            transposed(module[f"learner.q{suffix}"]), plain[f"learner.q{suffix}"], atol=2e-6
        )


def transposed(flat: Any) -> Any:
    """torch's layout of a 4-16-2 network → ours."""
    a, b, c, d = np.split(flat, np.cumsum([64, 16, 32]))
    return np.concatenate([a.reshape(16, 4).T.ravel(), b, c.reshape(2, 16).T.ravel(), d])


def test_first_values_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = pearl.compile(own(), seed=1).session.arrays["learner.q"]
    torch.manual_seed(6)
    np.testing.assert_array_equal(first, pearl.compile(own(), seed=1).session.arrays["learner.q"])
    assert not np.array_equal(first, pearl.compile(own(), seed=2).session.arrays["learner.q"])


def test_actors_and_critics_may_be_modules_too() -> None:
    spec = own(name="dense", env="Pendulum-v1")
    spec["algorithm"] |= {"name": "sac"}
    trainer = pearl.compile(spec)
    assert set(trainer.graph.task("learn").kernel.modules) == {"actor", "critic1", "critic2"}
    trainer.train(steps=200)
    assert trainer.policy.act(np.zeros((5, 3))).shape == (5, 1)


@pytest.mark.parametrize(("name", "says"), [
    ("normed", "has buffers .*running_mean.*LayerNorm"),
    ("short", r"gives \(2, 3\); it must give \(2, 2\)"),
    ("broken", "cannot be built: no such layer"),
    ("absent", "cannot be built: .*absent"),
])  # fmt: skip
def test_a_network_that_does_not_fit_is_a_line_that_says_why(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=f"algorithm.network.*{says}"):
        pearl.compile(own(name))


def test_its_work_is_what_torch_counts() -> None:
    counted = modules.measure("examples.catch_image:cnn", (1, 16, 16), 3)
    convolutions = 2 * (8 * 7 * 7 * 16 + 16 * 3 * 3 * 8 * 9)
    assert counted.flops == convolutions + 2 * (144 * 64 + 64 * 3)
    assert counted.params == (8 * 16 + 8) + (16 * 8 * 9 + 16) + (144 * 64 + 64) + (64 * 3 + 3)


@pytest.mark.slow
def test_a_convolutional_network_learns_to_catch() -> None:
    run = pearl.compile(catch_image.SPEC).train()
    assert run.returns["eval_mean"] >= 0.8  # random play reaches about -0.6
