"""The CPU backend keeps the contract, and what is particular to it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

from pearl.testing import BackendContract
from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Device, Kernel, cpu, kernel, torch_threads
from pearl_devices.kernels.counting import parameters
from pearl_estimators.host.benchmark_kernels import bind_filled, draw_fit_kernels

Q = (4, 16, 16, 2)
ENVS = 4
DISCRETE: dict[str, Any] = {
    "obs": 4, "act": 0, "envs": ENVS, "capacity": 64, "prioritised": 1, "fanout": 4,
}  # fmt: skip
DRAWS: dict[str, Any] = {"batch": 8, "steps": 2}


def dqn_kernels(program: str | None = "tests.kernel_losses:dqn") -> tuple[Kernel, ...]:
    return (
        kernel("env_step", program="CartPole-v1", envs=ENVS, obs=4, act=0),
        kernel("inference.dqn", envs=ENVS, obs=4, act=0, q=Q),
        kernel("replay_insert", **DISCRETE),
        kernel("replay_sample", n_step=2, **DRAWS, **DISCRETE),
        kernel("update.dqn", program=program, obs=4, act=0, q=Q, double=1, **DRAWS),
        kernel("replay_update", capacity=64, fanout=4, **DRAWS),
        kernel("learn.dqn", q=Q, double=1, n_step=2, **DRAWS, **DISCRETE),
        kernel("param_sync", params=parameters(Q), args={"network": "q"}),
    )


class TestNull(BackendContract):
    device: ClassVar[Device] = Device("nothing", "null")
    kernels: ClassVar[tuple[Kernel, ...]] = dqn_kernels()
    unknown: ClassVar[Kernel | None] = None


HOST = Device("host", "cpu")


def variants(k: Kernel) -> list[str]:
    return [variant for variant, _ in cpu.offers(k, HOST)]


def test_a_missing_or_misshapen_array_is_named() -> None:
    k = dqn_kernels()[7]
    buffers = fill_arrays([k])
    del buffers["policy.q"]
    with pytest.raises(KeyError, match=r"policy\.q"):
        cpu.bind(k, "native", buffers)
    buffers["policy.q"] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"policy\.q"):
        cpu.bind(k, "native", buffers)


@pytest.mark.parametrize("name", ["wrong_network", "wrong_shape"])
def test_a_loss_that_breaks_the_protocol_is_an_error_naming_it(name: str) -> None:
    k = dqn_kernels(program=f"tests.kernel_losses:{name}")[4]
    call = cpu.bind(k, "torch", fill_arrays([k]))
    with pytest.raises(ValueError, match=f"kernel_losses:{name}"):
        call()


@pytest.mark.parametrize("k", [
    kernel("inference.dqn", envs=ENVS, obs=4, act=0, q=Q),
    kernel("inference.dqn", envs=ENVS, obs=4, act=0, q=(4, 16, 3), duelling=1),
    kernel("inference.ddpg", envs=ENVS, obs=4, act=1, actor=(4, 16, 1)),
])  # fmt: skip
def test_act_is_greedy_and_agrees_with_inference_without_exploration(k: Kernel) -> None:
    buffers, act = fill_arrays([k]), k.dim("act")
    buffers["explore"][:] = 0.0
    buffers["env.obs"][:] = np.random.default_rng(1).normal(size=(ENVS, 4))
    given = k, buffers["policy.actor" if act else "policy.q"], buffers["env.obs"]
    greedy = cpu.act(*given, *((buffers["act.low"], buffers["act.high"]) if act else ()))
    assert greedy.dtype == (np.float32 if act else np.int64)
    for variant in ("native", "torch"):
        cpu.bind(k, variant, buffers)()
        np.testing.assert_allclose(greedy, buffers["act.action"], rtol=1e-5 if act else 0)
    if act:
        with pytest.raises(ValueError, match=r"inference\.ddpg: a policy needs low and high"):
            cpu.act(*given)


def test_native_kernels_load_no_other_blas_and_no_torch() -> None:
    code = (
        "import sys\n"
        "from pearl_devices.primitives.envs import native_envs\n"
        "from pearl_devices.primitives.replay import ring\n"
        "from pearl_devices.primitives.updates import ddpg, dqn\n"
        "print(sorted({'scipy.linalg', 'torch', 'gymnasium'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


def test_no_call_of_a_compiled_kernel_looks_its_types_up_in_python() -> None:
    """numba tells tuples apart by what is in them: of two classes of equal contents it takes the
    second for the first, and then types every call anew, which takes half a millisecond."""
    wide = Device("cpu", "cpu", width=2)
    offered = {
        k: [v for v, _ in cpu.offers(k, wide) if v.startswith("native")] for k in draw_fit_kernels()
    }
    most: dict[str, Kernel] = {}
    for k, names in offered.items():
        if len(names) > len(offered[most.setdefault(k.kind, k)]):
            most[k.kind] = k
    calls = [(f"{k.kind} {v}", bind_filled(k, v)) for k in most.values() for v in offered[k]]
    for _, call in calls:
        call()
    slow = {}
    for name, call in calls:
        seen: list[str] = []
        sys.setprofile(lambda frame, event, _, seen=seen: seen.append(frame.f_code.co_filename))  # type: ignore[misc]
        try:
            call()
        finally:
            sys.setprofile(None)
        if any("numba" in file for file in seen):
            slow[name] = len(seen)
    assert sum(name.endswith("pair") for name, _ in calls) == 6
    assert not slow


def test_torch_has_one_thread_while_its_kernels_are_bound_and_then_those_it_had() -> None:
    import torch

    with torch_threads.restoring_threads():
        pass
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        update = dqn_kernels()[4]
        with torch_threads.restoring_threads():
            for _ in range(2):
                cpu.bind(update, "torch", fill_arrays([update]))
                assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_torch_has_its_threads_while_such_a_gradient_step_runs() -> None:
    import torch

    before, seen = torch.get_num_threads(), []
    try:
        torch_threads.with_threads(3, lambda: seen.append(torch.get_num_threads()))()
        assert (seen, torch.get_num_threads()) == ([3], 1)
        with pytest.raises(ZeroDivisionError):
            torch_threads.with_threads(3, lambda: seen.append(1 // 0))()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
