"""Native updates against torch autograd in float64, and what they are made of."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from pearl.testing.kernel_buffers import copied, equal, fill_arrays
from pearl_devices import Buffers, Kernel, cpu, kernel
from pearl_devices.primitives.math import nets, rng
from pearl_devices.primitives.torch.off_policy import run, squash, views
from tests import kernel_losses

Q, ACTOR, CRITIC = (4, 64, 64, 3), (3, 32, 24, 2), (5, 24, 40, 1)
BATCH = 64


def rate(lr: list[float], done: int) -> float:
    """The learning rate after `done` steps: one number, or a fall in a line or along a cosine."""
    if len(lr) == 1:
        return lr[0]
    first, last, steps, cosine = lr
    way = min(done / steps, 1.0)
    return first + (last - first) * ((1 - math.cos(math.pi * way)) / 2 if cosine else way)


class Reference:
    """The same networks in float64, moved by torch.optim.Adam."""

    def __init__(
        self, buffers: Buffers, widths: dict[str, tuple[int, ...]], duelling: bool = False
    ) -> None:
        self.widths, self.buffers = widths, buffers
        self.flat: dict[str, Tensor] = {}
        self.target: dict[str, Tensor] = {}
        self.optimiser: dict[str, torch.optim.Adam] = {}
        beta1, beta2, eps = (float(x) for x in buffers["hyper.adam"])
        for name in widths:
            flat = torch.tensor(buffers[f"learner.{name}"], dtype=torch.float64)
            self.flat[name] = flat.requires_grad_()
            if f"learner.{name}.target" in buffers:
                target = buffers[f"learner.{name}.target"]
                self.target[name] = torch.tensor(target, dtype=torch.float64)
            self.optimiser[name] = torch.optim.Adam([flat], betas=(beta1, beta2), eps=eps)
        self.duelling = duelling
        self.norms: dict[str, float] = {}
        self.losses: dict[str, list[float]] = {name: [] for name in widths}

    def call(self, name: str, flat: Tensor, *inputs: Tensor) -> Tensor:
        if not inputs:
            return flat
        out = run(views(flat, self.widths[name]), torch.cat(inputs, 1))
        if name == "actor" and out.shape[1] == self.buffers["act.low"].size:
            low, high = (torch.tensor(self.buffers[f"act.{x}"]).double() for x in ("low", "high"))
            return squash(out, low, high)
        if self.duelling:
            advantage = out[:, 1:]
            return out[:, 0, None] + (advantage - advantage.mean(dim=1)[:, None])
        return out.squeeze(1) if name.startswith("critic") else out

    def step(self, losses: Any, batch: Any, hyper: Any) -> Tensor:
        clip_norm = float(self.buffers["hyper.clip_norm"][0])

        class Nets:
            target = type("Target", (), {})()

        for name in self.widths:
            setattr(Nets, name, staticmethod(lambda *x, n=name: self.call(n, self.flat[n], *x)))
        for name in self.target:
            frozen = lambda *x, n=name: self.call(n, self.target[n], *x).detach()  # noqa: E731
            setattr(Nets.target, name, frozen)
        steps = losses(Nets, batch, hyper)
        while True:
            try:
                name, loss = next(steps)
            except StopIteration as end:
                td = end.value
                break
            lr, taken = self.buffers[f"hyper.lr.{name}"].tolist(), len(self.losses[name])
            self.optimiser[name].param_groups[0]["lr"] = rate(lr, taken)
            self.losses[name].append(float(loss.detach()))
            self.flat[name].grad = torch.autograd.grad(loss, self.flat[name])[0]
            if clip_norm > 0:
                norm = torch.nn.utils.clip_grad_norm_([self.flat[name]], clip_norm)
                self.norms[name] = float(norm)
            self.optimiser[name].step()
        late = hyper.step % hyper.policy_delay == 0
        tau = float(self.buffers["hyper.tau"][0]) if late else 0.0
        for name, target in self.target.items():
            target += tau * (self.flat[name].detach() - target)
        assert isinstance(td, Tensor)
        return td.detach()


def in_double(buffers: Buffers, s: int) -> Any:
    fields = ("obs", "action", "reward", "next_obs", "discount", "weight")
    batch = {f: torch.from_numpy(buffers[f"batch.{f}"][s].copy()) for f in fields}
    wide = {f: x.double() if x.is_floating_point() else x for f, x in batch.items()}
    return type("Batch", (), wide)()


def near(a: np.ndarray, b: Tensor) -> float:
    """Relative error in the 2-norm."""
    reference = b.detach().numpy()
    return float(np.linalg.norm(a - reference) / np.linalg.norm(reference))


class Noise:
    """The numbers of rng.update, in float64."""

    def __init__(self, key: np.uint64, firing: int) -> None:
        self.base, self.drawn = np.uint64(rng.stream_base(key, np.uint64(firing))), 0

    def normal(self, *shape: int) -> Tensor:
        out = np.zeros(shape, np.float32)
        rng.normals(self.base, self.drawn, out.reshape(-1))
        self.drawn += out.size + out.size % 2
        return torch.from_numpy(out).double()


def hyper(k: Kernel, buffers: Buffers, step: int) -> Any:
    """What a loss is given in gradient step number `step`, from 1."""
    given: dict[str, Any] = {"double": 0, "policy_delay": 1, "step": step, **k.dims}
    given["huber"] = buffers["hyper.huber"][0]
    if k.dim("act"):
        given["act_low"], given["act_high"] = (
            torch.tensor(buffers[f"act.{end}"]).double() for end in ("low", "high")
        )
    if "rng.update" in buffers:
        given["noise"] = Noise(buffers["rng.update"][0], step - 1)
        given["smoothing"] = buffers.get("hyper.smoothing")
        given["target_entropy"] = float(buffers.get("hyper.target_entropy", [0.0])[0])
    return SimpleNamespace(**given)


def fresh(k: Kernel, widths: dict[str, tuple[int, ...]], seed: int = 0) -> Buffers:
    buffers = fill_arrays([k], seed)
    for name, layers in widths.items():
        other = 10 * (name == "critic2")
        if layers[0]:
            buffers[f"learner.{name}"][:] = nets.init_params(layers, seed + other)
        if f"learner.{name}.target" in buffers:
            buffers[f"learner.{name}.target"][:] = nets.init_params(layers, seed + other + 1)
        buffers[f"learner.{name}.m"][:] = 0
        buffers[f"learner.{name}.v"][:] = 0
        if k.dims.get("scheduled"):
            buffers[f"hyper.lr.{name}"][:] = 3e-3, 5e-4, 3, name in ("q", "actor")
    return buffers


def dqn_case(
    double: int, steps: int = 1, duelling: int = 0
) -> tuple[Kernel, dict[str, tuple[int, ...]]]:
    program = "tests.kernel_losses:dqn"
    sizes: dict[str, Any] = {"obs": 4, "act": 0, "q": Q, "batch": BATCH, "steps": steps}
    more = {"double": double, "duelling": duelling, "scheduled": double}
    return kernel("update.dqn", sizes, **more, program=program), {"q": Q}


def ddpg_case(steps: int = 1) -> tuple[Kernel, dict[str, tuple[int, ...]]]:
    program = "tests.kernel_losses:ddpg"
    sizes: dict[str, Any] = {"obs": 3, "act": 2, "batch": BATCH, "steps": steps, "scheduled": 1}
    k = kernel("update.ddpg", sizes, program=program, actor=ACTOR, critic=CRITIC)
    return k, {"actor": ACTOR, "critic": CRITIC}


def twin_case(algorithm: str, steps: int = 1) -> tuple[Kernel, dict[str, tuple[int, ...]]]:
    sizes: dict[str, Any] = {"obs": 3, "act": 2, "batch": BATCH, "steps": steps, "scheduled": 1}
    widths: dict[str, tuple[int, ...]] = {"actor": ACTOR, "critic1": CRITIC, "critic2": CRITIC}
    if algorithm == "sac":
        widths |= {"actor": (3, 32, 24, 4), "alpha": (0, 1)}
    else:
        sizes["policy_delay"] = 2
    program = f"tests.kernel_losses:{algorithm}"
    return kernel(f"update.{algorithm}", {**sizes, **widths}, program=program), widths


def single_step(k: Kernel) -> Kernel:
    dims: dict[str, Any] = {**k.dims, "steps": 1}
    return kernel(k.kind, program=k.program, **dims)


CASES = {
    "dqn": dqn_case(double=0, steps=5), "double dqn": dqn_case(double=1, steps=5),
    "duelling dqn": dqn_case(double=1, steps=5, duelling=1), "ddpg": ddpg_case(steps=5),
    "td3": twin_case("td3", steps=5), "sac": twin_case("sac", steps=5),
}  # fmt: skip


def losses_of(k: Kernel) -> Any:
    return getattr(kernel_losses, k.kind.removeprefix("update."))


@pytest.mark.sweep(5)
@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.05])
@pytest.mark.parametrize("huber", [0.0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_five_gradient_steps_equal_torch_in_float64(
    case: str, huber: float, clip_norm: float, variant: str
) -> None:
    k, widths = CASES[case]
    buffers = fresh(k, widths, seed=3)  # with others some input of a ReLU is 0 to rounding
    buffers["hyper.huber"][0], buffers["hyper.clip_norm"][0] = huber, clip_norm
    if k.dim("act"):
        buffers["act.low"][:], buffers["act.high"][:] = (-2.0, -1.0), (2.0, 3.0)
    reference = Reference(buffers, widths, bool(k.dims.get("duelling")))
    cpu.bind(k, variant, buffers)()
    for s in range(5):
        given = hyper(k, buffers, s + 1)
        td = reference.step(losses_of(k), in_double(buffers, s), given)
        assert near(buffers["batch.td"][s], td) < 1e-5
    if clip_norm:
        assert max(reference.norms.values()) > clip_norm
    assert buffers["learner.step"][0] == 5
    for name in widths:
        late = name == "actor" and "policy_delay" in k.dims
        assert buffers[f"learner.{name}.steps"][0] == (2 if late else 5)
        assert near(buffers[f"learner.{name}"], reference.flat[name]) < 1e-5
        (moments,) = reference.optimiser[name].state.values()  # the scale of gradients
        assert near(buffers[f"learner.{name}.m"], moments["exp_avg"]) < 1e-5
        assert buffers[f"loss.{name}"][0] == pytest.approx(reference.losses[name][-1], rel=1e-4)
    for name, target in reference.target.items():
        assert near(buffers[f"learner.{name}.target"], target) < 1e-5


@pytest.mark.parametrize("layers", [(4, 2), (4, 8, 2), (3, 8, 16, 8, 5), (6, 1, 2)])
def test_networks_of_any_depth_and_width_agree_with_torch(layers: tuple[int, ...]) -> None:
    program = "tests.kernel_losses:dqn"
    sizes: dict[str, Any] = {"obs": layers[0], "act": 0, "q": layers, "batch": 7, "steps": 2}
    k = kernel("update.dqn", sizes, program=program, double=1)
    native = fresh(k, {"q": layers})
    other = copied(native)
    cpu.bind(k, "native", native)()
    cpu.bind(k, "torch", other)()
    for name in ("learner.q", "learner.q.target", "learner.q.m", "batch.td"):
        np.testing.assert_allclose(native[name], other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("case", ["double dqn", "ddpg", "td3", "sac"])
def test_a_hard_target_moves_only_every_so_many_steps(case: str, variant: str) -> None:
    k, widths = CASES[case]
    one = single_step(k)
    buffers = fresh(one, widths)
    buffers["hyper.target_every"][0] = 3
    call = cpu.bind(one, variant, buffers)
    for step in range(1, 8):
        before = copied(buffers)
        call()
        for name in [name for name in widths if f"learner.{name}.target" in buffers]:
            target, online = buffers[f"learner.{name}.target"], buffers[f"learner.{name}"]
            expected = online if step % 3 == 0 else before[f"learner.{name}.target"]
            assert np.array_equal(target, expected)


@pytest.mark.parametrize("case", CASES)
def test_hyper_parameters_are_read_at_each_firing(case: str) -> None:
    k, widths = CASES[case]
    buffers = fresh(k, widths)
    call = cpu.bind(k, "native", buffers)
    for name in widths:
        buffers[f"hyper.lr.{name}"][:2] = 0.0
    before = copied(buffers)
    call()
    for name in widths:
        assert np.array_equal(buffers[f"learner.{name}"], before[f"learner.{name}"])


@pytest.mark.parametrize("case", CASES)
def test_a_block_of_steps_equals_single_steps_bit_for_bit(case: str) -> None:
    k, widths = CASES[case]
    one = single_step(k)
    block = fresh(k, widths)
    cpu.bind(k, "native", block)()
    single = fresh(k, widths)
    for s in range(5):
        part = {n: a[s : s + 1].copy() if n.startswith("batch.") else a for n, a in single.items()}
        cpu.bind(one, "native", part)()
        single["batch.td"][s] = part["batch.td"][0]
    assert equal(block, single) == []


def test_initial_parameters_are_uniform_within_one_over_root_fan_in() -> None:
    for scale in (None, 3e-3):
        random = np.random.default_rng(7)
        halves = (0.5, 1 / 3, 1 / np.sqrt(2) if scale is None else scale)
        sizes = (4 * 9 + 9, 9 * 2 + 2, 2 * 3 + 3)
        wanted = [random.uniform(-half, half, n) for half, n in zip(halves, sizes, strict=True)]
        flat = nets.init_params((4, 9, 2, 3), 7, final_scale=scale)
        assert flat.dtype == np.float32
        np.testing.assert_allclose(flat, np.concatenate(wanted), rtol=1e-6)


@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("case", ["dqn", "duelling dqn", "ddpg", "sac"])
def test_inference_explores_with_the_numbers_of_the_stream(case: str, variant: str) -> None:
    """Five environments: the first two firings, of 10 env steps, are random."""
    widths = {"dqn": (4, 6, 6, 6, 6, 3), "duelling dqn": (4, 6, 4), "ddpg": (4, 6, 2)}
    layers, act = widths.get(case, (4, 6, 4)), 0 if "dqn" in case else 2
    more: dict[str, Any] = {"actor": layers} if act else {"q": layers, "duelling": "du" in case}
    k = kernel(f"inference.{case.split()[-1]}", envs=5, obs=4, act=act, **more)
    b = fill_arrays([k])
    params, random = b[f"policy.{'actor' if act else 'q'}"], np.random.default_rng(0)
    params *= 4
    b["explore"][:] = (0.9, 0.2, 25, 10)
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
    if act:
        b["act.low"][:], b["act.high"][:] = low, high
    half, call = (high - low) / 2, cpu.bind(k, variant, b)
    for firing in range(7):
        b["env.obs"][:] = random.normal(size=(5, 4))
        call()
        base = np.uint64(rng.stream_base(b["rng.inference"][0], np.uint64(firing)))
        out = run(views(torch.tensor(params).double(), layers), torch.tensor(b["env.obs"]).double())
        z = out.numpy()[:, int("du" in case) :]
        share = 0.9 - 0.7 * min(5 * firing / 25, 1) if firing > 1 else 1.0
        shares = np.array([rng.uniform(base, n) for n in range(10)])
        noise = np.array([rng.normal(base, n) for n in range(10)]).reshape(5, 2)
        if case == "sac":
            drawn = np.zeros(10, np.float32)
            rng.normals(base, 0, drawn)
            deviation = np.exp(z[:, 2:].clip(-20, 2))
            wanted = low + half + half * np.tanh(z[:, :2] + deviation * drawn.reshape(5, 2))
        elif act:
            wanted = (low + half + half * (np.tanh(z) + 0.9 * noise)).clip(low, high)
        else:
            wanted = np.where(shares[::2] < share, shares[1::2] * 3 // 1, z.argmax(1))
        if act and firing < 2:
            wanted = low + (high - low) * shares.reshape(5, 2)
        np.testing.assert_allclose(b["act.action"], wanted, rtol=1e-5, atol=2e-5)
        assert b["rng.inference"][1] == firing + 1
    greedy = cpu.act(k, params, b["env.obs"], *((b["act.low"], b["act.high"]) if act else ()))
    mean = low + half + half * np.tanh(z[:, :2]) if act else z.argmax(1)
    np.testing.assert_allclose(greedy, mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["q", "actor"])
def test_param_sync_copies_the_learners_network(algorithm: str) -> None:
    k = kernel("param_sync", params=37, args={"network": algorithm})
    buffers = fill_arrays([k])
    before = buffers[f"learner.{algorithm}"].copy()
    assert not np.array_equal(before, buffers[f"policy.{algorithm}"])
    cpu.bind(k, "native", buffers)()
    assert np.array_equal(buffers[f"policy.{algorithm}"], before)
    assert np.array_equal(buffers[f"learner.{algorithm}"], before)


def test_kernels_that_divide_are_compiled_with_the_numpy_error_model() -> None:
    """Python's error model checks each division for zero, and Adam's loop would not vectorise."""
    options = nets.adam.targetoptions
    assert options["error_model"] == "numpy"
    assert options["fastmath"] is False  # the processor would decide bits
    compiler: Any = numba
    signature = tuple(
        compiler.typeof(a) for a in (*[np.ones(64, np.float32)] * 4, 1, 0.1, np.ones(3), 0.0)
    )
    for error_model, vector in (("numpy", True), ("python", False)):
        again = compiler.njit(fastmath=False, error_model=error_model)(nets.adam.py_func)
        again.compile(signature)
        code = next(iter(again.inspect_llvm().values()))
        assert bool(re.search(r"fdiv [a-z ]*<\d+ x float>", code)) == vector, error_model
