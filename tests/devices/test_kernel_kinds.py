"""The record of every kernel kind in a file of `FAMILIES` keeps the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pearl.testing import KernelKindContract
from pearl_devices import Kernel, kernel
from pearl_devices.kernel import Dim
from pearl_devices.kernels import FAULTS, KINDS, KernelKind, acts, kind_of
from pearl_devices.kernels.evaluation import evaluation
from pearl_devices.primitives import NATIVE_ENVS

SIZES: dict[str, Dim] = {
    "envs": 4, "capacity": 64, "prioritised": 1, "fanout": 4, "batch": 8, "steps": 2, "n_step": 2,
    "vector_steps": 2, "horizon": 4, "epochs": 1, "tanh": 1, "states": 6, "actions": 3,
}  # fmt: skip


def sample(kind: KernelKind) -> Kernel:
    """A small kernel of a kind."""
    program = "Pendulum-v1" if kind.actions == "continuous" else "CartPole-v1"
    env = NATIVE_ENVS[program]
    obs, outputs = (1, 3) if kind.structure == "table" else (env.obs, env.actions or env.act)
    sizes: dict[str, Dim] = {**SIZES, "obs": obs, "act": env.act, **kind.example_sizes}
    if kind.structure == "own":
        return kind.kernel(sizes, program=kind.example)
    if kind.structure == "evaluation":
        acting = kernel("inference.dqn", envs=4, obs=4, act=0, q=(4, 16, 2))
        return evaluation(acting, program, {}, 6, max_steps=50)
    if kind.structure == "copy":
        return kind.kernel(params=21, args={"network": "q"})
    nets: dict[str, Dim] = {}
    if kind.networks:
        nets = kind.networks(np.random.default_rng(0), env.obs, env.act, outputs, (16,))
    elif kind.structure in ("network", "gradient", "shared", "advantages", "fused"):
        nets = {"actor": (env.obs, 16, outputs), "critic": (env.obs, 16, 1)}
    if kind.structure == "network":
        nets = {n: size for n, size in nets.items() if n in (next(iter(nets)), "duelling")}
    elif kind.structure == "advantages":
        del nets["actor"]
    elif kind.structure == "fused" and not kind.code:
        del nets["critic"]
    if kind.structure == "shared":
        shared: dict[str, Dim] = {**sizes, **nets, "learner": 1, "learners": 2}
        return kind.kernel(shared, program=kind.example)
    at_home = kind.structure == "environment" or acts(Kernel(kind.name, {**sizes, **nets}))
    return kind.kernel({**sizes, **nets}, program=program if at_home else None)


for _name, _kind in KINDS.items():
    _title = "".join(word.capitalize() for word in _name.replace(".", "_").split("_"))
    globals()[f"Test{_title}"] = type(
        f"Test{_title}", (KernelKindContract,), {"kernel": sample(_kind)}
    )


def test_every_file_of_the_table_has_sound_records() -> None:
    assert FAULTS == []


def test_a_kind_with_sizes_of_its_own_is_sampled_with_its_example_sizes() -> None:
    kind = KernelKind(
        name="tiled",
        arrays=lambda k: {"tiles": ((k.dim("tiles"), k.dim("envs")), "float32")},
        example_sizes={"tiles": 3},
    )
    assert kind.arrays(sample(kind)) == {"tiles": ((3, SIZES["envs"]), "float32")}


def test_a_kind_of_an_algorithm_of_the_users_own_has_a_record_of_its_structure() -> None:
    nets: dict[str, Any] = {"actor": (4, 16, 2), "critic": (4, 16, 1)}
    rollout = kernel("update.own", SIZES, obs=4, act=0, **nets)
    steps = {n: size for n, size in SIZES.items() if n != "horizon"}
    for k, array in (
        (rollout, "rollout.obs"),
        (kernel("update.own", steps, obs=4, act=0, **nets), "batch.obs"),
    ):
        assert kind_of(k).structure == "gradient"
        assert kind_of(k).assumed
        assert array in kind_of(k).arrays(k)
        assert list(kind_of(k).variants) == ["torch"]
    assert kind_of(kernel("inference.own", envs=2, obs=4, act=0, q=(4, 2))).structure == "network"
    assert kind_of(Kernel("no_such_kind")).structure == "unknown"
    with pytest.raises(KeyError, match="no kernel kind 'no_such_kind'; there are"):
        kernel("no_such_kind")


def test_a_copy_has_rows_where_the_shape_of_a_smaller_kernel_is_shorter_and_nowhere_else() -> None:
    """The runtime gives a copy its rows of arrays whose shape its kernel has smaller."""
    for kind in (KINDS["env_step"], KINDS["inference.ddpg"], KINDS["inference.ppo"]):
        whole = sample(kind)
        half = kernel(whole.kind, {**whole.dims, "envs": 2}, program=whole.program)
        shapes = {n: shape for n, (shape, _) in kind.arrays(half).items()}
        for name, (shape, _) in kind.arrays(whole).items():
            assert shapes[name] == shape or (shape[0], shapes[name]) == (4, (2, *shape[1:])), name
