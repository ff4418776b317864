"""The FPGA's arithmetic against autograd in float64: gradient steps, small numbers, acting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pearl.testing.kernel_buffers import copied, fill_arrays
from pearl_devices import Kernel, cpu, kernel
from pearl_devices.primitives.fpga import acting, ddpg, dqn, passes
from pearl_devices.primitives.fpga.tanh import INTERVALS, tanh_table
from tests.devices import test_primitives_nets as nets

Layers = tuple[int, ...]
TABLE = np.array(tanh_table(), np.float32)
ENDS = np.tanh(np.append(np.arange(INTERVALS - 1) / 64, np.inf))
"""tanh at the beginnings of the intervals, the last of which is 1."""


class Curve(torch.autograd.Function):
    """tanh as the engine computes it: linear between the ends; the derivative is 1 − tanh²."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        size = z.detach().abs().numpy()
        bent = np.interp(size, np.arange(INTERVALS) / 64, [*ENDS[:-1], math.tanh(511 / 64)])
        bent = np.where(size < 511 / 64, bent, 1.0)
        ctx.bent = torch.from_numpy(np.copysign(bent, z.detach().numpy()))
        return ctx.bent  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        return given[0] * (1 - ctx.bent**2)


class Reference(nets.Reference):
    """The networks in float64, with actions by the engine's tanh."""

    def call(self, name: str, flat: Tensor, *inputs: Tensor) -> Tensor:
        if name != "actor":
            return super().call(name, flat, *inputs)
        z = nets.run(nets.views(flat, self.widths[name]), inputs[0])
        low, high = (torch.tensor(self.buffers[f"act.{x}"]).double() for x in ("low", "high"))
        bent: Tensor = Curve.apply(z)  # type: ignore[no-untyped-call]
        return low + (high - low) / 2 * (1 + bent)


SIZES: dict[str, Any] = {"batch": 3, "steps": 4, "scheduled": 1}


def dqn_case(double: int, q: Layers) -> tuple[Kernel, dict[str, Layers]]:
    return kernel("update.dqn", SIZES, obs=q[0], act=0, double=double, q=q), {"q": q}


def ddpg_case(actor: Layers, critic: Layers) -> tuple[Kernel, dict[str, Layers]]:
    widths = {"actor": actor, "critic": critic}
    return kernel("update.ddpg", SIZES, obs=actor[0], act=actor[-1], **widths), widths


CASES = {
    "dqn": dqn_case(0, (3, 5, 4, 3)),
    "double dqn": dqn_case(1, (3, 4, 2)),
    "one layer": dqn_case(1, (2, 3)),
    "ddpg": ddpg_case((3, 4, 2), (5, 6, 3, 1)),
    "ddpg of one layer": ddpg_case((2, 1), (3, 1)),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("huber", "clip_norm"), [(0.0, 0.0), (0.4, 0.05)])
@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_equal_torch_in_float64(case: str, huber: float, clip_norm: float) -> None:
    k, widths = CASES[case]
    buffers = nets.fresh(k, widths, seed=3)
    buffers["hyper.huber"][0], buffers["hyper.clip_norm"][0] = huber, clip_norm
    buffers["batch.weight"][:] = [0.5, 1.0, 2.0]
    if k.dim("act"):
        buffers["act.low"][:], buffers["act.high"][:] = -2.0, 1.0
        buffers["learner.actor"][:] *= 3  # outputs on both sides of 0 and far from it
    reference = Reference(buffers, widths)
    (ddpg if k.dim("act") else dqn).bind_update(k, buffers, 2)()
    for s in range(4):
        td = reference.step(
            nets.losses_of(k), nets.in_double(buffers, s), nets.hyper(k, buffers, s + 1)
        )
        assert nets.near(buffers["batch.td"][s], td) < 1e-5
    assert buffers["learner.step"][0] == 4
    for name in widths:
        assert buffers[f"learner.{name}.steps"][0] == 4
        assert nets.near(buffers[f"learner.{name}"], reference.flat[name]) < 1e-6
        assert nets.near(buffers[f"learner.{name}.target"], reference.target[name]) < 1e-6
        (moments,) = reference.optimiser[name].state.values()
        assert nets.near(buffers[f"learner.{name}.m"], moments["exp_avg"]) < 1e-5
        assert nets.near(buffers[f"learner.{name}.v"], moments["exp_avg_sq"]) < 1e-5
        assert buffers[f"loss.{name}"][0] == pytest.approx(reference.losses[name][-1], rel=1e-4)
    if clip_norm:
        assert min(reference.norms.values()) > clip_norm


@pytest.mark.parametrize("case", ["dqn", "ddpg"])
def test_a_target_that_is_copied_moves_only_every_so_many_steps(case: str) -> None:
    k, widths = CASES[case]
    k = kernel(k.kind, {**k.dims, "steps": 1})
    buffers = nets.fresh(k, widths)
    buffers["hyper.target_every"][0] = 2
    call = (ddpg if k.dim("act") else dqn).bind_update(k, buffers, 4)
    for step in range(1, 4):
        before = copied(buffers)
        call()
        for name in widths:
            wanted = buffers if step == 2 else before
            moved = f"learner.{name}{'' if step == 2 else '.target'}"
            assert np.array_equal(buffers[f"learner.{name}.target"], wanted[moved])


def test_a_call_that_is_stopped_goes_on_with_the_next_gradient_step() -> None:
    for k, widths in (CASES["dqn"], CASES["ddpg"]):
        whole, bind = nets.fresh(k, widths), (ddpg if k.dim("act") else dqn).bind_update
        parts = copied(whole)
        bind(k, whole, 2)()
        call = bind(k, parts, 2)
        parts["loop.stop"][0] = 1
        for done in (1, 2, 3, 0):
            call()
            assert parts["loop.stop"][1] == done
        parts["loop.stop"][0] = 0
        assert nets.equal(whole, parts) == []


TINY = float(np.float32(2.0**-126))


def test_a_number_below_the_least_normal_one_counts_as_zero() -> None:
    below = np.nextafter(np.float32(TINY), np.float32(0))
    given = np.array([-1.5, -TINY, -below, -0.0, 0.0, 1e-45, below, TINY, 2.0], np.float32)
    wanted = [-1.5, -TINY, 0.0, 0.0, 0.0, 0.0, 0.0, TINY, 2.0]
    assert [passes.flush(x) for x in given] == wanted
    assert not any(np.signbit(passes.flush(x)) for x in given[2:])
    flat = given.copy()
    passes.flush_all(flat)
    assert flat.tolist() == wanted


def test_all_arrays_of_a_network_and_the_batch_are_read_so() -> None:
    """Subnormal numbers and zeros have the same effect to the bit, and zeros stay."""
    for k, widths in (CASES["double dqn"], CASES["ddpg"]):
        zeros = nets.fresh(k, widths)
        zeros["hyper.lr." + next(iter(widths))][:2] = 0.0
        columns = ["batch.obs", "batch.next_obs"] + ["batch.action"] * bool(k.dim("act"))
        for name in columns:
            zeros[name][:, 1, 1] = 0.0
        for name in ("batch.reward", "batch.discount", "batch.weight"):
            zeros[name][:, 2] = 0.0
        small = copied(zeros)
        for name in columns:
            small[name][:, 1, 1] = 1e-39
        for name in ("batch.reward", "batch.discount", "batch.weight"):
            small[name][:, 2] = 1e-39
        for name in widths:
            for part in ("", ".target", ".m", ".v"):
                zeros[f"learner.{name}{part}"][0] = 0.0
                small[f"learner.{name}{part}"][0] = 1e-39
        for buffers in (zeros, small):
            (ddpg if k.dim("act") else dqn).bind_update(k, buffers, 2)()
        assert [n for n in nets.equal(zeros, small) if n.startswith(("learner.", "batch.td"))] == []


def test_tanh_is_linear_between_multiples_of_a_64th_and_1_from_511_of_them() -> None:
    z = np.concatenate([np.linspace(0, 9, 300), [511 / 64, 8.0, 100.0]]).astype(np.float32)
    wanted = Curve.apply(torch.from_numpy(z).double()).numpy()  # type: ignore[no-untyped-call]
    for sign in (1, -1):
        found = [ddpg.curve(np.float32(sign) * x, TABLE) for x in z]
        np.testing.assert_allclose(found, sign * wanted, atol=2e-7)
    assert TABLE.shape == (512, 3)
    np.testing.assert_array_equal(TABLE[:, 0], np.arange(512) / 64)
    np.testing.assert_allclose(TABLE[:, 2], ENDS, rtol=1e-7)
    np.testing.assert_allclose(TABLE[:-2, 1], 64 * np.diff(ENDS)[:-1], rtol=1e-6)
    assert TABLE[-1, 1] == 0.0


@pytest.mark.parametrize("algorithm", ["dqn", "ddpg"])
def test_acting_is_that_of_the_host_to_rounding(algorithm: str) -> None:
    sizes: dict[str, Any] = {"envs": 5, "obs": 3}
    if algorithm == "dqn":
        k = kernel("inference.dqn", sizes, act=0, q=(3, 4, 6, 3))
    else:
        k = kernel("inference.ddpg", sizes, act=2, actor=(3, 4, 6, 2))
    host = fill_arrays([k])
    host["env.obs"][:] = np.random.default_rng(0).normal(size=(5, 3))
    host["env.obs"][0, 0] = 1e-40
    host["explore"][:] = (0.3, 0.3, 1, 5)
    engine, bind = copied(host), acting.bind_dqn if algorithm == "dqn" else acting.bind_ddpg
    calls = cpu.bind(k, "native", host), bind(k, engine, 2)
    for _ in range(4):
        for call in calls:
            call()
        np.testing.assert_allclose(host["act.action"], engine["act.action"], rtol=1e-5, atol=1e-6)
    assert engine["rng.inference"][1] == 4
