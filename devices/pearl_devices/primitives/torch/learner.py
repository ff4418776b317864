"""A network that learns, over its arrays: parameters, moments, target, and the step of Adam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pearl_devices.base import Buffers
from pearl_devices.primitives.math.nets import CLIP_EPS, rate

Split = Callable[[Tensor], list[Tensor]]
"""A flat vector → the parts of a network, which share the vector's memory."""


def views(flat: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Weights (in, out) and biases of every layer, sharing the memory of `flat`."""
    parts, offset = [], 0
    for i, o in pairwise(layers):
        parts.append(flat[offset : offset + i * o].view(i, o))
        offset += i * o
        parts.append(flat[offset : offset + o])
        offset += o
    return parts


def clip_scale(norm: Tensor, limit: float, *, waits: bool) -> float | Tensor:
    """The factor that clips a gradient of this norm. waits: return a number; else a tensor, for
    which the host does not wait."""
    if waits:
        return min(1.0, limit / (float(norm) + CLIP_EPS))
    exact = norm.double() if norm.device.type != "mps" else norm  # MPS has no float64
    return (limit / (exact + CLIP_EPS)).clamp(max=1.0)


class Learner:
    """Parameters, moments and target (if there is one) of a network, and the step of Adam.

    waits: its arrays are numpy's, and the host waits for computed numbers.
    pace: None, or a tensor (3,) of the factors that change from step to step: of the second moment,
        of the step (with its sign) and of the target's move. Steps are then counted only in
        `taken`.
    """

    def __init__(
        self, name: str, layers: tuple[int, ...], buffers: Buffers, split: Split | None = None
    ) -> None:
        """split: into the parts of a network other than dense layers of these widths."""
        self.name, split = name, split or partial(views, layers=layers)
        flat = {p: torch.as_tensor(buffers[f"learner.{name}{p}"]) for p in ("", ".m", ".v")}
        self.params, self.m, self.v = flat[""], flat[".m"], flat[".v"]
        self.steps = buffers[f"learner.{name}.steps"]
        self.parts = [part.detach().requires_grad_() for part in split(self.params)]
        copy = buffers.get(f"learner.{name}.target")
        self.target = None if copy is None else torch.as_tensor(copy)
        self.lr, self.loss = buffers[f"hyper.lr.{name}"], buffers[f"loss.{name}"]
        self.waits = not isinstance(self.loss, Tensor)
        self.pace: Tensor | None = None
        self.taken = 0

    def descend(self, loss: Tensor, adam: Any, clip_norm: float) -> None:
        """Take one step of Adam down the gradient of a loss, and record the loss."""
        self.move(self.gradient(loss), adam, clip_norm)
        self.record_loss(loss)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss, as flat as the parameters."""
        pieces = torch.autograd.grad(loss, self.parts)
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def move(self, grad: Tensor, adam: Any, clip_norm: float) -> None:
        """Take one step of Adam, bias corrections as in torch.optim.Adam. grad is clipped in
        place."""
        beta1, beta2, eps = (float(value) for value in adam)
        if clip_norm > 0:
            grad *= clip_scale(grad.norm(), clip_norm, waits=self.waits)
        self.m.mul_(beta1).add_(grad, alpha=1 - beta1)
        self.v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if self.pace is None:
            share, rate = self.count_step(adam)
            root = (self.v / share).sqrt_().add_(eps)
            self.params.addcdiv_(self.m, root, value=rate)
        else:
            self.taken += 1
            root = (self.v / self.pace[0]).sqrt_().add_(eps)
            self.params.add_(self.m * self.pace[1] / root)

    def count_step(self, adam: Any) -> tuple[float, float]:
        """Count a step of Adam; return the factors of the second moment and of the step (with
        sign)."""
        self.steps[0] += 1
        step, (beta1, beta2, _) = int(self.steps[0]), (float(value) for value in adam)
        return 1 - beta2**step, -self.rate(step - 1) / (1 - beta1**step)

    def rate(self, done: int) -> float:
        """Return the learning rate after `done` steps."""
        return float(rate(np.asarray(self.lr), float(done)))

    def record_loss(self, loss: Tensor) -> None:
        """Record the loss; on a device, without waiting for it."""
        if self.waits:
            self.loss[0] = float(loss.detach())
        else:
            self.loss.copy_(loss.detach())

    def follow(self, step: int, tau: float, every: int) -> None:
        if self.target is None:
            return
        if every > 0 and self.pace is not None:
            self.target.lerp_(self.params, self.pace[2])
        elif every > 0:
            if step % every == 0:
                self.target.copy_(self.params)
        else:
            self.target.lerp_(self.params, tau)
