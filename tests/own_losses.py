"""Losses and acting programs as a user writes them, for the tests of algorithms of one's own."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor


def sometimes(
    nets: Any, batch: Any, hyper: Any, *, scale: float = 1.0
) -> Generator[tuple[str, Tensor], None, Tensor]:
    """A value network in every gradient step, a constant with noise in every third."""
    error = nets.value(batch.obs).squeeze(1) - scale * batch.reward
    yield "value", error.square().mean()
    if hyper.step % 3 == 0:
        yield "level", (nets.level() - hyper.noise.normal(1)).square().sum()
    td: Tensor = error.abs()
    return td


def softmax(nets: Any, obs: Tensor, explore: float | None, noise: Any) -> Tensor:
    """Actions drawn by a soft-max of temperature `explore`, by the Gumbel trick."""
    q: Tensor = nets.q(obs)
    if explore is None:
        return q.argmax(1)
    gumbel = -torch.log(-torch.log(noise.uniform(*q.shape).clamp(1e-6, 1 - 1e-6)))
    return (q / max(explore, 1e-3) + gumbel).argmax(1)


def wrong_shape(nets: Any, obs: Tensor, explore: float | None, noise: Any) -> Tensor:
    out: Tensor = nets.q(obs)
    return out
