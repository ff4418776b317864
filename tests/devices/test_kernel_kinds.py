"""The record of every kernel kind in a file of `FAMILIES` keeps the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pearl.testing import KernelKindContract
from pearl_devices import Kernel, kernel
from pearl_devices.base import KernelFailed, KernelKindError
from pearl_devices.kernel import Dim
from pearl_devices.kernels import FAULTS, KINDS, KernelKind, acts, kind_of, user_kinds
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


def test_a_kind_that_there_is_not_is_refused_with_those_there_are() -> None:
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


TEN = ((10,), "float32")


@pytest.mark.parametrize(("record", "said"), [
    ({}, ""),
    ({"count": lambda k: (0.0, 1.0, 2.0, 3.0)}, ""),
    ({"count": lambda k: (0.0, 1.0, 2.0)}, "count gives (0.0, 1.0, 2.0); it must give"),
    ({"count": lambda k: (0.0, -1.0, 2.0, 3.0)}, "count gives (0.0, -1.0, 2.0, 3.0); it must"),
    ({"count": lambda k: 1 / 0}, "count fails: ZeroDivisionError: division by zero"),
    ({"arrays": lambda k: 1 / 0}, "arrays fails: ZeroDivisionError: division by zero"),
    ({"arrays": lambda k: {}}, "arrays gives {}; it must be a dict from names to (shape,"),
    ({"arrays": lambda k: [TEN]}, "it must be a dict from names to (shape, dtype)"),
    ({"arrays": lambda k: {3: TEN}}, "arrays gives the name 3; it must be text without @"),
    ({"arrays": lambda k: {"a@b": TEN}}, "arrays gives the name 'a@b'; it must be text"),
    ({"arrays": lambda k: {"x": ((0,), "uint8")}}, ""),
    ({"arrays": lambda k: {"x": ([1], "uint8")}}, "([1], 'uint8') for x; it must be a tuple"),
    ({"arrays": lambda k: {"x": ((-1,), "uint8")}}, "((-1,), 'uint8') for x; it must be a t"),
    ({"arrays": lambda k: {"x": ((1.0,), "uint8")}}, "((1.0,), 'uint8') for x; it must be a"),
    ({"arrays": lambda k: {"x": ((1,), float)}}, "for x; it must be a tuple of whole number"),
    ({"arrays": lambda k: {"x": ((1,), "complex64")}}, "((1,), 'complex64') for x; it must"),
    ({"arrays": lambda k: {"x": ((1,), "none")}}, "((1,), 'none') for x; it must be a tuple"),
    ({"arrays": lambda k: {"x": 3}}, "arrays gives 3 for x; it must be a tuple of whole num"),
    ({"writes": ()}, "writes is empty; it must name the arrays that a firing writes"),
    ({"writes": "x"}, "writes is 'x'; a tuple of names of arrays is needed"),
    ({"sends": (3,)}, "sends is (3,); a tuple of names of arrays is needed"),
    ({"writes": ("x", "y")}, "writes has 'y', which is none of its arrays ['x', 'z']"),
    ({"per_copy": ("y.",)}, "per_copy has 'y.', which is none of its arrays ['x', 'z']"),
    ({"sends": ("z",)}, "it sends ['z'] but does not write them; add them to writes"),
    ({"variants": {}}, "variants is empty; it needs one, such as {'python': 'module:f'}"),
    ({"variants": {"a": "no name"}}, "variant a is 'no name'; it must be 'module:function'"),
    ({"variants": {"a": "no_such:f"}}, "variant a: no_such:f: No module named 'no_such'"),
    ({"in_evaluation": "left out"}, ""),
    ({"in_evaluation": "no name"}, "in_evaluation is 'no name'; it must be 'module:functio"),
    ({"in_evaluation": "no_such:f"}, "in_evaluation: no_such:f: No module named 'no_such'"),
])  # fmt: skip
def test_a_fault_of_a_record_is_a_sentence(record: dict[str, Any], said: str) -> None:
    sound: dict[str, Any] = {
        "name": "m:K", "writes": ("x",), "variants": {"python": "pearl_devices.kernel:Kernel"},
        "arrays": lambda k: {"x": TEN} if "arrays" in record else {"x": TEN, "z": TEN},
    }  # fmt: skip
    kind = KernelKind(**{**sound, **record})
    if not said:
        user_kinds.check(kind, Kernel("m:K"))
        return
    with pytest.raises(KernelKindError) as error:
        user_kinds.check(kind, Kernel("m:K"))
    assert str(error.value).startswith("kernel kind m:K: ")
    assert said in str(error.value)


def test_the_call_of_a_record_is_bound_over_its_arrays_and_a_failure_names_it() -> None:
    kind = KernelKind(
        name="m:K", arrays=lambda k: {"x": TEN}, writes=("x",),
        variants={n: f"{__name__}:{n}" for n in ("filling", "failing", "nothing")}
        | {"python": f"{__name__}:fill"},
    )  # fmt: skip
    arrays = {"x": np.zeros(10, np.float32), "other": np.zeros(1)}
    for variant in ("python", "filling"):
        arrays["x"][:] = 0
        user_kinds.bind(kind, Kernel("m:K", {"v": 7}), variant, arrays)()
        assert arrays["x"].tolist() == [7.0] * 10
    with pytest.raises(KernelFailed, match=rf"kind m:K: {__name__}:failing failed: ZeroDivision"):
        user_kinds.bind(kind, Kernel("m:K"), "failing", arrays)()
    with pytest.raises(KernelKindError, match=r"nothing returns 3; it must be a function without"):
        user_kinds.bind(kind, Kernel("m:K"), "nothing", arrays)
    with pytest.raises(KernelKindError, match=r"filling cannot be bound: KeyError"):
        user_kinds.bind(kind, Kernel("m:K"), "filling", arrays)


def fill(k: Kernel, arrays: dict[str, Any]) -> None:
    assert list(arrays) == ["x"]
    arrays["x"][:] = k.dim("v")


def filling(k: Kernel, arrays: dict[str, Any]) -> Any:
    value = k.dim("v")
    return lambda: arrays["x"].fill(value)


def failing(k: Kernel, arrays: dict[str, Any]) -> Any:
    return lambda: 1 // 0


def nothing(k: Kernel, arrays: dict[str, Any]) -> Any:
    return 3
