"""The variant `graph`: all gradient steps of a firing, recorded once and replayed as one launch.

Numbers that change between firings lie in tensors that are written before a replay: the batches or
the order of a rollout's rows, the random numbers, and a row per step for the optimiser and the
target (`Learner.pace`). All other numbers
of the loss are those of the recording. A loss may read `hyper.step` only modulo `policy_delay`;
each remainder has its own graph. If a loss cannot be recorded, firings run operator by operator, as
`eager`, and the call's `note` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pearl_devices.base import Call
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.streams import Graph, streams_of
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math import rng
from pearl_devices.primitives.torch import off_policy, on_policy
from pearl_devices.primitives.torch.off_policy import GradientSteps
from pearl_devices.primitives.torch.on_policy import RolloutSteps, count_step, rates_of


class Remainder:
    """`hyper.step` while a graph is recorded; only its value modulo `period` is known."""

    def __init__(self, value: int, period: int) -> None:
        self._value, self._period = value, period

    def __mod__(self, other: int) -> int:
        if self._period % other:
            raise TypeError(
                f"the loss reads hyper.step modulo {other}, and a graph knows it modulo "
                f"{self._period} alone"
            )
        return self._value % other


class RecordedNoise:
    """`hyper.noise` of a graph: tensors that are filled before each replay. A trial of the steps
    makes them; the recording then finds them in the same order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._draws: list[tuple[int, int, Callable[..., None], Tensor]] = []
        self._step = self._drawn = self._at = 0

    def rewind(self) -> None:
        """Begin the steps again from the first draw."""
        self._at = 0

    def begin(self, step: int) -> None:
        """Begin the draws of gradient step `step` of a firing."""
        self._step, self._drawn = step, 0

    def _draw(self, numbers: Callable[..., None], shape: tuple[int, ...]) -> Tensor:
        if self._at == len(self._draws):
            tensor = torch.zeros(shape, device=self._device)
            self._draws.append((self._step, self._drawn, numbers, tensor))
        made = self._draws[self._at][3]
        self._at += 1
        self._drawn += made.numel() + made.numel() % 2
        return made

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal float32 numbers."""
        return self._draw(rng.normals, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform float32 in [0, 1)."""
        return self._draw(rng.uniforms, shape)

    def fill(self, counter: Any, steps: int) -> None:
        """Write the numbers of the next firing."""
        bases = [
            np.uint64(rng.stream_base(counter[0], counter[1] + np.uint64(s))) for s in range(steps)
        ]
        counter[1] += np.uint64(steps)
        for step, drawn, numbers, made in self._draws:
            out = np.empty(tuple(made.shape), np.float32)
            numbers(bases[step], drawn, out.reshape(-1))
            made.copy_(torch.from_numpy(out))


class Recording:
    """The gradient steps of a firing as a graph. first: number of the first, modulo `period`."""

    def __init__(
        self, kernel: Kernel, arrays: Arrays, first: int, period: int, device: torch.device
    ) -> None:
        self._arrays, self._steps = arrays, GradientSteps(kernel, dict(arrays))
        hyper, learners = self._steps.hyper, self._steps.learners
        self._count = kernel.dim("steps")
        self._noise = RecordedNoise(device) if "rng.update" in arrays else None
        self._paces = torch.ones(self._count, len(learners), 3, device=device)
        self._taken: list[list[int]] = []
        self._graph = streams_of(device).make_graph()

        def work() -> None:
            self._taken.clear()
            if self._noise is not None:
                self._noise.rewind()
            for number in range(self._count):
                hyper.step = Remainder(first + number, period)
                if self._noise is not None:
                    self._noise.begin(number)
                for row, learner in zip(self._paces[number], learners.values(), strict=True):
                    learner.pace, learner.taken = row, 0
                self._steps.step(number)
                self._taken.append([learner.taken for learner in learners.values()])

        hyper.noise = self._noise
        self._steps.begin()
        _record(self._graph, work, arrays)

    def fire(self) -> None:
        """Begin all gradient steps."""
        arrays, learners = self._arrays, self._steps.learners.values()
        count, every = arrays["learner.step"], int(arrays["hyper.target_every"][0])
        paces = np.ones(tuple(self._paces.shape), np.float32)
        for number, taken in enumerate(self._taken):
            count[0] += 1
            follows = every > 0 and int(count[0]) % every == 0
            for at, learner in enumerate(learners):
                for _ in range(taken[at]):
                    paces[number, at, :2] = learner.count_step(arrays["hyper.adam"])
                paces[number, at, 2] = follows
        self._paces.copy_(torch.from_numpy(paces))
        if self._noise is not None:
            self._noise.fill(arrays["rng.update"], self._count)
        self._graph.replay()


class RolloutRecording:
    """All gradient steps on a rollout as a graph."""

    def __init__(self, kernel: Kernel, arrays: Arrays, device: torch.device) -> None:
        self._arrays = dict(arrays)
        self._steps = RolloutSteps(kernel, self._arrays)
        learners, epochs = self._steps.learners, kernel.dim("epochs")
        count, rows = self._steps.count, self._steps.epoch_rows
        self._orders = torch.arange(rows, device=device).repeat(epochs, 1)
        self._paces = torch.ones(count, len(learners), 2, device=device)
        self._graph = streams_of(device).make_graph()
        minibatches = [c for order in self._orders for c in order.split(self._steps.size)]

        def work() -> None:
            for number, chosen in enumerate(minibatches):
                for row, learner in zip(self._paces[number], learners.values(), strict=True):
                    learner.pace, learner.taken = row, 0
                whole = self._steps.step(chosen, [0.0] * len(learners))
                if not whole or any(learner.taken != 1 for learner in learners.values()):
                    raise ValueError("a minibatch of its loss is not one step of the optimiser")

        self._steps.begin()
        _record(self._graph, work, arrays)

    def fire(self) -> None:
        """Begin all gradient steps."""
        arrays, learners, steps = self._arrays, self._steps.learners, self._steps
        rates = rates_of(learners, arrays, int(arrays["learner.step"][0]))
        paces = np.ones(tuple(self._paces.shape), np.float32)
        for number in range(steps.count):
            arrays["learner.step"][0] += 1
            for at, (learner, rate) in enumerate(zip(learners.values(), rates, strict=True)):
                paces[number, at] = count_step(learner, rate, arrays)
        self._paces.copy_(torch.from_numpy(paces))
        self._orders.copy_(torch.from_numpy(np.stack([o.copy() for o in steps.orders()])))
        arrays["rng.update"][1] += np.uint64(1)
        self._graph.replay()


def _record(graph: Graph, work: Callable[[], None], arrays: Arrays) -> None:
    """Record `work` after a trial, which finds the draws and makes everything that a first use
    makes; the arrays stay as they were."""
    kept = {n: a.clone() for n, a in arrays.items() if isinstance(a, Tensor)}
    try:
        work()
        graph.capture(work)
    finally:
        for name, array in kept.items():
            arrays[name].copy_(array)


class GraphedUpdate:
    """The call of update.* by graphs. note: the reason if it has no graph; else empty."""

    def __init__(self, kernel: Kernel, arrays: Arrays, device: torch.device) -> None:
        self.note = ""
        self._kernel, self._arrays, self._device = kernel, arrays, device
        self._period = kernel.dim("policy_delay") if "policy_delay" in kernel.dims else 1
        self._graphs: dict[int, Recording | RolloutRecording] = {}
        self._eager: Call | None = None

    def _recorded(self, first: int) -> Recording | RolloutRecording:
        if "horizon" in self._kernel.dims:
            return RolloutRecording(self._kernel, self._arrays, self._device)
        return Recording(self._kernel, self._arrays, first, self._period, self._device)

    def _bind_eager(self) -> Call:
        if "horizon" in self._kernel.dims:
            return on_policy.bind_update(self._kernel, dict(self._arrays))
        return off_policy.bind_update(self._kernel, dict(self._arrays))

    def __call__(self) -> None:
        if self._eager is not None:
            self._eager()
            return
        if self._arrays["loop.stop"][1] > 0:  # a part of this firing has run before
            self._bind_eager()()
            return
        first = (int(self._arrays["learner.step"][0]) + 1) % self._period
        if first not in self._graphs:
            try:
                self._graphs[first] = self._recorded(first)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                why = " ".join(str(error).split())
                self.note = (
                    f"kernel {self._kernel.kind} runs as eager in place of graph: its gradient "
                    f"steps cannot be recorded ({why:.300})"
                )
                self._eager = self._bind_eager()
                self._eager()
                return
        self._graphs[first].fire()


def bind_update(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind update.* of an algorithm with a replay or a rollout."""
    return GraphedUpdate(kernel, arrays, driver.device)
