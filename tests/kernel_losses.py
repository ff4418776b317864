"""Losses in torch, as a user writes them, for the torch variants of update."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Steps = Generator[tuple[str, Tensor], None, Tensor]


def _weighted(value: Tensor, target: Tensor, batch: Any, hyper: Any) -> Tensor:
    if hyper.huber > 0:
        loss = F.huber_loss(value, target, reduction="none", delta=hyper.huber)
    else:
        loss = 0.5 * F.mse_loss(value, target, reduction="none")
    out: Tensor = (batch.weight * loss).mean()
    return out


def dqn(nets: Any, batch: Any, hyper: Any) -> Steps:
    q = nets.q(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    with torch.no_grad():
        after = nets.target.q(batch.next_obs)
        choice = (nets.q(batch.next_obs) if hyper.double else after).argmax(1, keepdim=True)
        target = batch.reward + batch.discount * after.gather(1, choice).squeeze(1)
    yield "q", _weighted(q, target, batch, hyper)
    td: Tensor = (q - target).abs()
    return td


def ddpg(nets: Any, batch: Any, hyper: Any) -> Steps:
    after = nets.target.critic(batch.next_obs, nets.target.actor(batch.next_obs))
    target = batch.reward + batch.discount * after
    q = nets.critic(batch.obs, batch.action)
    yield "critic", _weighted(q, target, batch, hyper)
    yield "actor", -nets.critic(batch.obs, nets.actor(batch.obs)).mean()
    td: Tensor = (q - target).abs()
    return td


def wrong_network(nets: Any, batch: Any, hyper: Any) -> Steps:
    yield "value", nets.q(batch.obs).mean()
    td: Tensor = batch.weight
    return td


def wrong_shape(nets: Any, batch: Any, hyper: Any) -> Steps:
    yield "q", nets.q(batch.obs).mean()
    td: Tensor = batch.weight[:-1]
    return td
