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


def _regress(nets: Any, batch: Any, hyper: Any, target: Tensor) -> Steps:
    first = nets.critic1(batch.obs, batch.action)
    second = nets.critic2(batch.obs, batch.action)
    yield "critic1", _weighted(first, target, batch, hyper)
    yield "critic2", _weighted(second, target, batch, hyper)
    td: Tensor = ((first - target).abs() + (second - target).abs()) / 2
    return td


def td3(nets: Any, batch: Any, hyper: Any) -> Steps:
    ahead = nets.target.actor(batch.next_obs)
    half = (hyper.act_high - hyper.act_low) / 2
    noise = hyper.noise.normal(*ahead.shape) * hyper.smoothing[0] * half
    noise = torch.minimum(
        torch.maximum(noise, -hyper.smoothing[1] * half), hyper.smoothing[1] * half
    )
    ahead = torch.minimum(torch.maximum(ahead + noise, hyper.act_low), hyper.act_high)
    values = torch.stack(
        [c(batch.next_obs, ahead) for c in (nets.target.critic1, nets.target.critic2)]
    )
    td = yield from _regress(nets, batch, hyper, batch.reward + batch.discount * values.amin(0))
    if hyper.step % hyper.policy_delay == 0:
        yield "actor", -nets.critic1(batch.obs, nets.actor(batch.obs)).mean()
    return td


def _drawn(nets: Any, obs: Tensor, hyper: Any) -> tuple[Tensor, Tensor]:
    """Actions and their log density by the plain formula, which float64 bears."""
    mean, log_std = nets.actor(obs).chunk(2, 1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.scale * hyper.noise.normal(*mean.shape)
    density = normal.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
    middle, half = (hyper.act_high + hyper.act_low) / 2, (hyper.act_high - hyper.act_low) / 2
    return middle + half * torch.tanh(u), density.sum(1)


def sac(nets: Any, batch: Any, hyper: Any) -> Steps:
    temperature = nets.alpha().detach().exp()
    with torch.no_grad():
        ahead, density = _drawn(nets, batch.next_obs, hyper)
        both = [c(batch.next_obs, ahead) for c in (nets.target.critic1, nets.target.critic2)]
        soft = torch.stack(both).amin(0) - temperature * density
    td = yield from _regress(nets, batch, hyper, batch.reward + batch.discount * soft)
    own, density = _drawn(nets, batch.obs, hyper)
    both = [nets.critic1(batch.obs, own), nets.critic2(batch.obs, own)]
    yield "actor", (temperature * density - torch.stack(both).amin(0)).mean()
    yield "alpha", -(nets.alpha() * (density.detach() + hyper.target_entropy)).mean()
    return td


def wrong_network(nets: Any, batch: Any, hyper: Any) -> Steps:
    yield "value", nets.q(batch.obs).mean()
    td: Tensor = batch.weight
    return td


def wrong_shape(nets: Any, batch: Any, hyper: Any) -> Steps:
    yield "q", nets.q(batch.obs).mean()
    td: Tensor = batch.weight[:-1]
    return td
