"""A network of leaky integrate-and-fire neurons, as `algorithm.network` names it.

A neuron keeps β of its membrane potential, adds its weighted inputs, fires where the potential
passes 1, and loses 1 with each spike (Eshraghian and others 2023, "Training Spiking Neural Networks
Using Lessons From Deep Learning", Proceedings of the IEEE 111(9), section III). The derivative of
the step is that of the fast sigmoid, 1 / (1 + slope · |u − 1|)² (Zenke and Ganguli 2018,
"SuperSpike", Neural Computation 30(6), equation 6).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

STEPS, BETA, SLOPE = 6, 0.8, 5.0
"""Time steps of one forward pass, share of the potential that is kept, and slope of the surrogate
(assumed)."""

HIDDEN = 96


class Spike(torch.autograd.Function):
    """1 where the potential passes 1, else 0."""

    @staticmethod
    def forward(ctx: Any, potential: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(potential)
        return (potential > 1.0).to(potential.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (potential,) = ctx.saved_tensors
        return grads[0] / (1.0 + SLOPE * (potential - 1.0).abs()) ** 2


def smooth(potential: torch.Tensor) -> torch.Tensor:
    """The function whose derivative `Spike` uses: what gradients are compared with."""
    x = potential - 1.0
    return 0.5 + x / (1.0 + SLOPE * x.abs())


class Spiking(nn.Module):
    """Observations drive the first layer in each step; outputs are potentials that never fire, as
    means over the steps.

    fire: makes spikes of potentials.
    """

    def __init__(self, inputs: int, outputs: int, fire: Any = Spike.apply) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, outputs)
        self.fire = fire

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        drive = self.first(obs)
        one = two = torch.zeros_like(drive)
        out = total = torch.zeros(len(obs), self.last.out_features, dtype=obs.dtype)
        for _ in range(STEPS):
            one = BETA * one + drive
            spikes = self.fire(one)
            one = one - spikes
            two = BETA * two + self.second(spikes)
            spikes = self.fire(two)
            two = two - spikes
            out = BETA * out + self.last(spikes)
            total = total + out
        return total / STEPS


def build(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The network of a spec: `network: examples.spiking.network:build`."""
    return Spiking(inputs[0], outputs)
