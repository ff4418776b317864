"""Gradient steps that several learners share: the gradient of a part of the batch, the mean of all
gradients, and the optimiser step with the mean (`kernels.data_parallel`).

The loss is that of update.X on a learner's rows, a mean over the rows. So the mean of the learners'
gradients is the gradient of the whole batch, except for rounding. They are always added in the
order of the learners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pearl_devices.base import Buffers, Call
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import KINDS
from pearl_devices.kernels.data_parallel import (
    full_kernel,
    learner_array,
    rows,
    shard_name,
    shard_range,
    shards,
)
from pearl_devices.primitives.math.rng import stream_base
from pearl_devices.primitives.replay.observations import unit_of
from pearl_devices.primitives.torch import off_policy, on_policy
from pearl_devices.primitives.torch.learner import Learner
from pearl_devices.primitives.torch.programs import loss_of, normal
from pearl_devices.primitives.updates import ppo


def _update(kernel: Kernel, buffers: Buffers) -> tuple[Kernel, Buffers]:
    """Return the kernel that the learners share, and this learner's arrays: its parameters under
    the names of learner 0, and room for losses."""
    of = full_kernel(kernel, f"update.{KINDS[kernel.kind].algorithm}")
    number = kernel.dim("learner")
    seen = dict(buffers)
    for name, (shape, dtype) in specs(of).items():
        if name.startswith("learner."):
            seen[name] = buffers[learner_array(name, number)]
        elif name.startswith("loss."):
            seen[name] = buffers.get(f"gradient.{number}.{name}", np.zeros(1))
        elif name == "batch.td":
            seen[name] = np.zeros(shape, dtype)
    return of, seen


def bind_gradient(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learner_gradient.*: gradient.I.* ← the gradient on this learner's rows of the batch."""
    return (_of_rollout if _rolls(kernel) else _of_replay)(kernel, buffers)


def _rolls(kernel: Kernel) -> bool:
    """Whether the learners learn from rollouts."""
    return "hyper.rmsprop" in specs(kernel)


def _shards(kernel: Kernel, buffers: Buffers, array: str) -> list[Tensor]:
    """The shards of an array as large as a network."""
    return [torch.as_tensor(buffers[shard_name(kernel, array, s)]) for s in shards(kernel)]


def _give_gradient(kernel: Kernel, buffers: Buffers, name: str) -> Callable[[Tensor], None]:
    """A function that writes the gradient of a network for all reductions."""
    outs = _shards(kernel, buffers, f"gradient.{kernel.dim('learner')}.{name}")
    size = sum(out.numel() for out in outs)
    parts = [shard_range(size, s, len(outs)) for s in shards(kernel)]

    def give(gradient: Tensor) -> None:
        for out, numbers in zip(outs, parts, strict=True):
            out.copy_(gradient[numbers])

    return give


def _of_replay(kernel: Kernel, buffers: Buffers) -> Call:
    of, seen = _update(kernel, buffers)
    steps, share = off_policy.GradientSteps(of, seen), slice(*rows(kernel))
    ((name, learner),) = steps.learners.items()
    batches = [SimpleNamespace(**{f: x[share] for f, x in vars(b).items()}) for b in steps.batches]
    give = _give_gradient(kernel, buffers, name)
    td = None
    if kernel.dims.get("td"):
        td = torch.as_tensor(buffers[f"gradient.{kernel.dim('learner')}.td"])
    hyper, done = steps.hyper, seen["learner.step"]

    def call() -> None:
        steps.begin()
        hyper.step = int(done[0]) + 1
        batch = batches[int(done[0]) % len(batches)]
        found = steps.losses(steps.nets, batch, hyper, **kernel.args)
        loss, errors = _only(kernel, found, name)
        give(learner.gradient(loss))
        learner.record_loss(loss)
        if td is not None:
            td.copy_(errors.detach())

    return call


def _only(kernel: Kernel, steps: Any, name: str) -> tuple[Tensor, Tensor]:
    """The only loss that a generator yields, and its return value."""
    if isinstance(steps, Iterator):
        given = next(steps, None)
        try:
            next(steps)
        except StopIteration as end:
            if isinstance(given, tuple) and len(given) == 2 and given[0] == name:
                return given[1], end.value
    raise ValueError(
        f"kernel {kernel.kind}: {kernel.program} must yield ({name!r}, loss) once and return the "
        "absolute TD errors: learners share one step of the optimiser"
    )


def _of_rollout(kernel: Kernel, buffers: Buffers) -> Call:
    of, seen = _update(kernel, buffers)
    losses, (first, end) = loss_of(of), rows(kernel)
    learners, nets = on_policy.learners_of(of, seen)
    gives = [_give_gradient(kernel, buffers, name) for name in learners]
    hyper = SimpleNamespace(**{n: s for n, s in of.dims.items() if isinstance(s, int)})
    constants = on_policy.constants_of(of)
    rollout = on_policy.rollout_of(of, seen)
    drawn, done = _minibatches(of, seen["rng.update"]), seen["learner.step"]
    unit = float(unit_of(of))

    def call() -> None:
        on_policy.read(constants, seen, hyper)
        chosen = torch.from_numpy(drawn(int(done[0])))
        batch = on_policy.batch_of(rollout, chosen[first:end], unit)
        if hyper.normalise:  # over the whole minibatch, as with one learner
            batch.advantage = normal(rollout["advantage"][chosen])[first:end]
            hyper.normalise = 0.0
        ((_, found),) = losses(nets, batch, hyper, **kernel.args)
        for give, grad in zip(gives, on_policy.gradients(found, learners), strict=True):
            give(grad)
        for learner, loss in zip(learners.values(), found, strict=True):
            learner.record_loss(loss)

    return call


def _minibatches(kernel: Kernel, counter: Any) -> Callable[[int], Any]:
    """Gradient step of the run → the rows of its minibatch, in the order in which one learner reads
    the rollouts."""
    size, steps = kernel.dim("batch"), kernel.dim("steps")
    order = np.arange(steps * size // kernel.dim("epochs"))
    each = order.size // size
    at = [-1, -1]  # rollout and epoch that the order is for

    def drawn(step: int) -> Any:
        rollout, number = divmod(step, steps)
        epoch, part = divmod(number, each)
        if at[0] != rollout or at[1] > epoch:
            order[:] = np.arange(order.size)
            at[:] = rollout, -1
        base = np.uint64(stream_base(counter[0], np.uint64(rollout)))
        while at[1] < epoch:
            at[1] += 1
            if each > 1:
                ppo.shuffle(base, at[1], order)
        return order[part * size : (part + 1) * size]

    return drawn


def bind_reduction(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind all_reduce.*: mean.X and loss.X ← means of the learners' gradients and losses, or one
    shard of the mean; batch.td ← their TD errors in a row."""
    numbers, found = range(kernel.dim("learners")), specs(kernel)
    averaged = [n for n in found if n.startswith(("mean.", "loss."))]
    pairs = [
        (buffers[n], [buffers[f"gradient.{i}.{n.removeprefix('mean.')}"] for i in numbers])
        for n in averaged
    ]
    errors = [buffers[f"gradient.{i}.td"] for i in numbers] if "batch.td" in found else []

    def call() -> None:
        for mean, given in pairs:
            np.copyto(mean, given[0])
            for other in given[1:]:
                mean += other
            mean /= len(given)
        if errors:
            np.concatenate(errors, out=buffers["batch.td"].reshape(-1))

    return call


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learner_step.*: an optimiser step on the learner's networks with mean.*."""
    of, seen = _update(kernel, buffers)
    step, clip = seen["learner.step"], seen["hyper.clip_norm"]
    if _rolls(kernel):
        learners, _ = on_policy.learners_of(of, seen)
        means = [_shards(kernel, buffers, f"mean.{name}") for name in learners]
        steps = kernel.dim("steps")

        def on_rollout() -> None:
            begun = int(step[0]) // steps * steps  # gradient steps before this rollout
            rates = on_policy.rates_of(learners, seen, begun)
            on_policy.move(learners, [torch.cat(mean) for mean in means], rates, seen)

        return on_rollout
    layers = of.networks
    split = {n: off_policy.structure(of, n)[0] for n in layers}
    ((name, learner),) = {n: Learner(n, w, seen, split[n]) for n, w in layers.items()}.items()
    mean = _shards(kernel, buffers, f"mean.{name}")

    def on_batch() -> None:
        step[0] += 1
        learner.move(torch.cat(mean), seen["hyper.adam"], float(clip[0]))
        tau, every = float(seen["hyper.tau"][0]), int(seen["hyper.target_every"][0])
        learner.follow(int(step[0]), tau, every)

    return on_batch
