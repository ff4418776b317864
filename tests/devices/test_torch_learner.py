"""The step of Adam in torch where its factors come from the host's counts or from a tensor."""

from __future__ import annotations

import pytest
import torch

from pearl.testing.kernel_buffers import copied
from pearl_devices import kernel
from pearl_devices.primitives.torch.learner import Learner, clip_scale
from tests.devices.test_primitives_nets import fresh

LAYERS = (3, 4, 2)


@pytest.mark.parametrize(("norm", "factor"), [(3.0, 0.5), (1.5, 1.0), (0.1, 1.0)])
@pytest.mark.parametrize("waits", [True, False])
def test_a_gradient_is_clipped_to_the_limit(norm: float, factor: float, waits: bool) -> None:
    found = clip_scale(torch.tensor(norm), 1.5, waits=waits)
    assert isinstance(found, torch.Tensor) != waits
    assert float(found) == pytest.approx(factor, rel=2e-6)


@pytest.mark.parametrize(("every", "clip_norm"), [(2, 0.0), (0, 0.5)])
def test_factors_of_a_tensor_give_the_steps_of_counted_ones(every: int, clip_norm: float) -> None:
    sizes = {"obs": 3, "act": 0, "batch": 2, "steps": 1, "double": 0}
    k = kernel("update.dqn", sizes, q=LAYERS)
    counted_arrays = fresh(k, {"q": LAYERS})
    paced_arrays = copied(counted_arrays)
    counted, paced = (Learner("q", LAYERS, b, None) for b in (counted_arrays, paced_arrays))
    adam, tau = (0.9, 0.99, 1e-6), 0.1
    for step in range(1, 5):
        grad = torch.linspace(-1, step, counted.params.numel())
        counted.move(grad.clone(), adam, clip_norm)
        counted.follow(step, tau, every)
        follows = float(step % every == 0) if every else tau
        paced.pace = torch.tensor([*paced.count_step(adam), follows])
        paced.move(grad.clone(), adam, clip_norm)
        paced.follow(step, tau, every)
        assert paced.taken == step
        for name in ("learner.q", "learner.q.m", "learner.q.v", "learner.q.target"):
            assert paced_arrays[name] == pytest.approx(counted_arrays[name], rel=1e-5, abs=1e-7)
    assert counted.taken == 0
    assert counted_arrays["learner.q.steps"][0] == paced_arrays["learner.q.steps"][0] == 4
