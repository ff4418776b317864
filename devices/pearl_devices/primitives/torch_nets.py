"""The torch variants of update and inference, over the same arrays as the native ones.

An update's loss is a generator function named by `kernel.program` (`module:callable`):

    def losses(nets, batch, hyper):
        …
        yield "q", loss      # a scalar; one step of Adam on network q is taken here
        return td            # absolute TD errors, (B,)

`nets.q(obs)` is the output (B, width), `nets.target.q(obs)` the target's, without gradient. A
network called critic returns (B,); one called actor returns actions between `hyper.act_low` and
`hyper.act_high`. Several inputs are joined: `nets.critic(obs, action)`. `batch` has obs, action,
reward, next_obs, discount, weight; `hyper` has double, huber, and for continuous actions act_low
and act_high. After the last step all targets move. The number of torch's threads is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.primitives import ddpg, dqn
from pearl_devices.primitives.native import bound
from pearl_devices.primitives.nets import CLIP_EPS

Forward = Callable[..., Tensor]


def resolve(kernel: Kernel) -> Callable[..., Any]:
    """The callable that kernel.program names; an UnsupportedError says why there is none."""
    module, _, name = str(kernel.program).partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnsupportedError(
            f"kernel {kernel.kind}: program {kernel.program!r} cannot be found ({error}); "
            "it must be module:callable"
        ) from error
    if not callable(found):
        raise UnsupportedError(
            f"kernel {kernel.kind}: program {kernel.program!r} is no callable but {type(found)}"
        )
    return found  # type: ignore[no-any-return]


def views(flat: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Weights (in, out) and biases of every layer, sharing the memory of `flat`."""
    parts, offset = [], 0
    for i, o in pairwise(layers):
        parts.append(flat[offset : offset + i * o].view(i, o))
        offset += i * o
        parts.append(flat[offset : offset + o])
        offset += o
    return parts


def run(parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """The network's linear output."""
    for layer in range(0, len(parts), 2):
        x = torch.addmm(parts[layer + 1], x, parts[layer])
        if layer < len(parts) - 2:
            x = torch.relu(x)
    return x


def squash(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    half = 0.5 * (high - low)
    return low + half + half * torch.tanh(z)


def network(name: str, parts: Sequence[Tensor], hyper: SimpleNamespace) -> Forward:
    """The function that a loss calls, over the parameters `parts`."""

    def call(*inputs: Tensor) -> Tensor:
        out = run(parts, inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1))
        if name == "actor":
            return squash(out, hyper.act_low, hyper.act_high)
        return out.squeeze(1) if name == "critic" else out

    return call


class Learner:
    """One network's parameters, moments and target, and the step of Adam on them."""

    def __init__(self, name: str, layers: tuple[int, ...], buffers: Buffers) -> None:
        self.name = name
        flat = {p: torch.from_numpy(buffers[f"learner.{name}{p}"]) for p in ("", ".m", ".v")}
        self.params, self.m, self.v = flat[""], flat[".m"], flat[".v"]
        self.target = torch.from_numpy(buffers[f"learner.{name}.target"])
        self.parts = [part.detach().requires_grad_() for part in views(self.params, layers)]
        self.target_parts = views(self.target, layers)
        self.lr, self.loss = buffers[f"hyper.lr.{name}"], buffers[f"loss.{name}"]

    def descend(self, loss: Tensor, step: int, adam: Any, clip_norm: float) -> None:
        """One step of Adam, bias corrections as in torch.optim.Adam; step counts from 1."""
        beta1, beta2, eps = (float(value) for value in adam)
        pieces = torch.autograd.grad(loss, self.parts)
        grad = torch.cat([piece.reshape(-1) for piece in pieces])
        if clip_norm > 0:
            grad *= min(1.0, clip_norm / (float(grad.norm()) + CLIP_EPS))
        self.m.mul_(beta1).add_(grad, alpha=1 - beta1)
        self.v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (self.v / (1 - beta2**step)).sqrt_().add_(eps)
        self.params.addcdiv_(self.m, root, value=-float(self.lr[0]) / (1 - beta1**step))
        self.loss[0] = float(loss.detach())

    def follow(self, step: int, tau: float, every: int) -> None:
        if every > 0:
            if step % every == 0:
                self.target.copy_(self.params)
        else:
            self.target.lerp_(self.params, tau)


def _without_gradient(function: Forward) -> Forward:
    def call(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    return call


def _gradient_step(
    kernel: Kernel,
    steps: Iterator[Any],
    learners: dict[str, Learner],
    buffers: Buffers,
    size: int,
) -> Tensor:
    """Runs one loss generator to its end and returns the absolute TD errors."""
    buffers["learner.step"][0] += 1
    step = int(buffers["learner.step"][0])
    while True:
        try:
            name, loss = next(steps)
        except StopIteration as end:
            td = end.value
            break
        if name not in learners or not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(
                f"kernel {kernel.kind}: {kernel.program} yielded {name!r} and a "
                f"{type(loss).__name__}; it must yield one of {sorted(learners)} and a scalar"
            )
        learners[name].descend(
            loss, step, buffers["hyper.adam"], float(buffers["hyper.clip_norm"][0])
        )
    if not isinstance(td, Tensor) or tuple(td.shape) != (size,):
        raise ValueError(
            f"kernel {kernel.kind}: {kernel.program} returned "
            f"{tuple(td.shape) if isinstance(td, Tensor) else type(td).__name__}; "
            f"it must return the absolute TD errors, shape ({size},)"
        )
    for learner in learners.values():
        learner.follow(step, float(buffers["hyper.tau"][0]), int(buffers["hyper.target_every"][0]))
    return td


def bind_update(kernel: Kernel, buffers: Buffers) -> Call:
    """update.*: `steps` runs of the loss generator that kernel.program names."""
    losses = resolve(kernel)
    networks = {
        name.removeprefix("loss."): kernel.layers("layers" if name == "loss.q" else name[5:])
        for name in specs(kernel)
        if name.startswith("loss.")
    }
    learners = {name: Learner(name, widths, buffers) for name, widths in networks.items()}
    hyper = SimpleNamespace(double=bool(kernel.dims.get("double", 0)), huber=0.0)
    if "act.low" in buffers and "actor" in networks:
        hyper.act_low = torch.from_numpy(buffers["act.low"])
        hyper.act_high = torch.from_numpy(buffers["act.high"])
    nets = SimpleNamespace(target=SimpleNamespace())
    for name, learner in learners.items():
        setattr(nets, name, network(name, learner.parts, hyper))
        frozen = _without_gradient(network(name, learner.target_parts, hyper))
        setattr(nets.target, name, frozen)
    fields = ("obs", "action", "reward", "next_obs", "discount", "weight")
    batches = [
        SimpleNamespace(**{f: torch.from_numpy(buffers[f"batch.{f}"][s]) for f in fields})
        for s in range(kernel.dim("steps"))
    ]
    td = torch.from_numpy(buffers["batch.td"])

    def call() -> None:
        hyper.huber = float(buffers["hyper.huber"][0])
        for s, batch in enumerate(batches):
            steps = losses(nets, batch, hyper)
            error = _gradient_step(kernel, steps, learners, buffers, td.shape[1])
            td[s].copy_(error.detach())

    return call


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """inference.*: the network in torch; the choice with the native variant's random numbers."""
    discrete = kernel.kind == "inference.dqn"
    flat = torch.from_numpy(buffers["policy.q" if discrete else "policy.actor"])
    parts = views(flat, kernel.layers())
    obs = torch.from_numpy(buffers["env.obs"])
    rng, explore, action = buffers["rng.inference"], buffers["explore"], buffers["act.action"]
    out = np.zeros((obs.shape[0], kernel.layers()[-1]), np.float32)
    shared = torch.from_numpy(out)
    if discrete:
        pick = bound(dqn.choose, rng, out, explore, action)

        @torch.no_grad()
        def choose() -> None:
            shared.copy_(run(parts, obs))
            pick()

        return choose
    low, high = buffers["act.low"], buffers["act.high"]
    bounds = torch.from_numpy(low), torch.from_numpy(high)

    pick = bound(ddpg.disturb, rng, out, low, high, explore, action)

    @torch.no_grad()
    def disturb() -> None:
        shared.copy_(squash(run(parts, obs), *bounds))
        pick()

    return disturb
