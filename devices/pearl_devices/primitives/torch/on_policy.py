"""The torch variants of kernels that learn from rollouts, over the arrays of the native variants.

The loss is a generator function named by `kernel.program` (`module:callable`), as in `off_policy`:

    def losses(nets, batch, hyper):
        yield ("actor", "critic"), (policy_loss, value_loss)

A loss that yields None instead ends the firing: no further gradient step is taken. Gradients of the
sum of both losses are clipped by their common norm; then the optimiser takes one step on each
network. The loss is called once per minibatch. `nets.actor(obs)` are logits (B, actions) or means
(B, A), `nets.log_std()` the logarithms of the standard deviations (A,), `nets.critic(obs)` values
(B,), `nets.choices` the number of choices of each component of a factored action. `batch` has the
arrays rollout.X of the kernel under the names X: obs, action (the sample of a continuous one),
log_prob, value, advantage, returns; for a user-defined loss also reward, next_obs, terminated,
truncated. If there is one minibatch, its rows are the rollout in the order of time: row t · envs +
n is step t of environment n. `hyper` has every integer size of the kernel and every constant;
`kernel.args` are passed as keyword arguments. Minibatches are those of the native variant; results
agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pearl_devices.base import Buffers, Call
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import continuous
from pearl_devices.kernels.rollouts import judged_steps
from pearl_devices.primitives.math.rng import stream_base
from pearl_devices.primitives.native import bind_call
from pearl_devices.primitives.replay import observations, rollouts
from pearl_devices.primitives.torch import modules
from pearl_devices.primitives.torch.learner import Learner, Split, clip_scale, views
from pearl_devices.primitives.torch.programs import loss_of
from pearl_devices.primitives.updates import policies, ppo, ppo_descent
from pearl_devices.primitives.updates.stop_word import call_ends, is_under_way

SEEN = ("obs", "next_obs")

Run = Callable[[Sequence[Tensor], Tensor], Tensor]


def run(parts: Sequence[Tensor], x: Tensor, curved: bool) -> Tensor:
    """Return the network's linear output. curved: hidden layers use tanh instead of ReLU."""
    for layer in range(0, len(parts), 2):
        x = torch.addmm(parts[layer + 1], x, parts[layer])
        if layer < len(parts) - 2:
            x = torch.tanh(x) if curved else torch.relu(x)
    return x


def count_step(learner: Learner, rate: float, buffers: Buffers) -> tuple[float, float]:
    """Count an optimiser step; return the factors of the second moment and of the step (with
    sign)."""
    learner.steps[0] += 1
    step, (beta1, beta2, _) = int(learner.steps[0]), buffers["hyper.adam"].tolist()
    if buffers["hyper.rmsprop"][0] > 0:
        return 1.0, -rate
    return 1 - beta2**step, -rate / (1 - beta1**step)


def descend(learner: Learner, grad: Tensor, rate: float, buffers: Buffers) -> None:
    """Take one optimiser step: RMSprop if its decay is above 0, else Adam."""
    pace, (decay, eps) = learner.pace, buffers["hyper.rmsprop"].tolist()
    share, scale = count_step(learner, rate, buffers) if pace is None else (pace[0], pace[1])
    if decay > 0:
        learner.v.mul_(decay).addcmul_(grad, grad, value=1 - decay)
        moved, root = grad, (learner.v + eps).sqrt_()
    else:
        beta1, beta2, eps = buffers["hyper.adam"].tolist()
        learner.m.mul_(beta1).add_(grad, alpha=1 - beta1)
        learner.v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        moved, root = learner.m, (learner.v / share).sqrt_().add_(eps)
    if isinstance(scale, Tensor):
        learner.params.add_(moved * scale / root)
    else:
        learner.params.addcdiv_(moved, root, value=scale)


def _checked(kernel: Kernel, given: Any, learners: dict[str, Learner]) -> Any:
    try:
        names, losses = given
        good = tuple(names) == tuple(learners) and all(loss.numel() == 1 for loss in losses)
    except (TypeError, ValueError, AttributeError):
        good = False
    if not good:
        raise ValueError(
            f"kernel {kernel.kind}: {kernel.program} yielded {' '.join(repr(given).split()):.80}; "
            f"it must yield {tuple(learners)} and a scalar loss of each"
        )
    return losses


def gradients(losses: Any, learners: dict[str, Learner]) -> list[Tensor]:
    """Return the gradients of the sum of the losses, for each network as flat as its parameters."""
    parts = [part for learner in learners.values() for part in learner.parts]
    pieces = iter(torch.autograd.grad(sum(losses), parts))
    return [
        torch.cat([next(pieces).reshape(-1) for _ in learner.parts])
        for learner in learners.values()
    ]


def move(
    learners: dict[str, Learner], grads: Sequence[Tensor], rates: Sequence[float], b: Buffers
) -> None:
    """Take one step on each network with these gradients, clipped in place by their common norm."""
    limit = float(b["hyper.clip_norm"][0])
    if limit > 0:
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))
        kept = clip_scale(norm, limit, waits=all(n.waits for n in learners.values()))
        for grad in grads:
            grad *= kept
    if all(n.pace is None for n in learners.values()):
        b["learner.step"][0] += 1
    for learner, grad, rate in zip(learners.values(), grads, rates, strict=True):
        descend(learner, grad, rate, b)


def _network(kernel: Kernel, name: str) -> tuple[Split, Run]:
    """Return the parts of a network's flat vector, and the network's function of the parts."""
    own, layers = kernel.modules.get(name), kernel.layers(name)
    if own is not None:
        return modules.structure(own)
    curved = bool(kernel.dim("tanh"))
    return partial(views, layers=layers), partial(run, curved=curved)


def learners_of(kernel: Kernel, buffers: Buffers) -> tuple[dict[str, Learner], SimpleNamespace]:
    """Return both networks, and the `nets` that a loss gets."""
    act = continuous(kernel)
    found = {name: _network(kernel, name) for name in ("actor", "critic")}
    learners = {n: Learner(n, kernel.layers(n), buffers, found[n][0]) for n in found}
    actor, critic = learners["actor"], learners["critic"]
    weights, (act_run, value_run) = list(actor.parts), (forward for _, forward in found.values())
    nets = SimpleNamespace(
        actor=lambda obs: act_run(weights, obs),
        critic=lambda obs: value_run(critic.parts, obs).squeeze(1),
    )
    if kernel.dims.get("choices"):
        nets.choices = tuple(torch.as_tensor(buffers["act.choices"]).tolist())
    if act:
        log_std = actor.params[-act:].detach().requires_grad_()
        actor.parts.append(log_std)
        nets.log_std = lambda: log_std
    return learners, nets


def constants_of(kernel: Kernel) -> list[str]:
    """Return the names of the constants that a loss gets in `hyper`."""
    return [n for n in specs(kernel) if n.startswith("hyper.") and ".lr." not in n]


def read(constants: Sequence[str], buffers: Buffers, hyper: SimpleNamespace) -> None:
    """Set the constants that a loss gets in `hyper`."""
    for name in constants:
        values = buffers[name].tolist()
        setattr(hyper, name[len("hyper.") :], values[0] if len(values) == 1 else tuple(values))


def rollout_of(kernel: Kernel, buffers: Buffers) -> dict[str, Tensor]:
    """Return the arrays of a rollout, one row per step and environment."""
    return {
        name.partition(".")[2]: torch.as_tensor(buffers[name]).flatten(0, 1)
        for name in specs(kernel)
        if name.startswith("rollout.")
    }


def observed(stored: Tensor, unit: float) -> Tensor:
    """Return the observations (float32) that a rollout stores, as such or as uint8 with a unit."""
    return stored.float().mul_(unit) if stored.dtype == torch.uint8 else stored


def batch_of(rollout: dict[str, Tensor], chosen: Any, unit: float) -> SimpleNamespace:
    """Return the rows of a rollout at these places."""
    batch = SimpleNamespace(**{n: x[chosen] for n, x in rollout.items()})
    for name in SEEN:
        if name in rollout:
            setattr(batch, name, observed(getattr(batch, name), unit))
    return batch


def rates_of(learners: dict[str, Learner], buffers: Buffers, done: int) -> list[float]:
    """Return the learning rates of a rollout that follows `done` gradient steps."""
    share = ppo_descent.anneal(float(done), float(buffers["hyper.anneal"][0]))
    return [share * learner.rate(done) for learner in learners.values()]


class RolloutSteps:
    """The gradient steps of a firing of update.* on one rollout.*, over its arrays.

    epoch_rows: rows of the rollout, which each epoch reads once. count: minibatches of a firing.
    """

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        self.kernel, self.buffers, self.losses = kernel, buffers, loss_of(kernel)
        self.learners, self.nets = learners_of(kernel, buffers)
        self.hyper = SimpleNamespace(**{n: s for n, s in kernel.dims.items() if isinstance(s, int)})
        self._constants, self.rollout = constants_of(kernel), rollout_of(kernel, buffers)
        self.size, epochs = kernel.dim("batch"), kernel.dim("epochs")
        self.epoch_rows = self.size * kernel.dim("steps") // epochs
        self.count = epochs * -(-self.epoch_rows // self.size)
        self._unit = float(observations.unit_of(kernel))

    def begin(self) -> None:
        """Read the constants."""
        read(self._constants, self.buffers, self.hyper)

    def orders(self) -> Iterator[Any]:
        """Yield the rows in the order of each epoch; the array is one and the same."""
        counter, order = self.buffers["rng.update"], np.arange(self.epoch_rows)
        base = np.uint64(stream_base(counter[0], counter[1]))
        for epoch in range(self.kernel.dim("epochs")):
            if self.size < order.size:
                ppo.shuffle(base, epoch, order)
            yield order

    def step(self, chosen: Tensor, rates: Sequence[float]) -> bool:
        """Take the gradient steps on these rows; return False if the loss ends the firing."""
        batch = batch_of(self.rollout, chosen, self._unit)
        for given in self.losses(self.nets, batch, self.hyper, **self.kernel.args):
            if given is None:
                return False
            found = _checked(self.kernel, given, self.learners)
            move(self.learners, gradients(found, self.learners), rates, self.buffers)
            for learner, loss in zip(self.learners.values(), found, strict=True):
                learner.taken += 1
                learner.record_loss(loss)
        return True


def bind_update(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind update.ppo or update.a2c: all epochs and minibatches of one rollout.*."""
    descent = RolloutSteps(kernel, buffers)
    device, stop = descent.rollout["obs"].device, buffers["loop.stop"]
    counter, steps = buffers["rng.update"], buffers["learner.step"]

    def call() -> None:
        descent.begin()
        before, number = int(stop[1]), 0
        done = int(steps[0]) - before
        rates = rates_of(descent.learners, buffers, done)
        for order in descent.orders():
            for chosen in torch.from_numpy(order).to(device).split(descent.size):
                number += 1
                if number <= before:
                    continue
                if not descent.step(chosen, rates):
                    steps[0], stop[1] = done + kernel.dim("steps"), 0
                    counter[1] += np.uint64(1)
                    return
                if call_ends(stop, number, descent.count):
                    counter[1] += np.uint64(not is_under_way(stop))
                    return

    return call


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind update.* by vector steps: each firing adds the gradient of one, and the last firing of a
    rollout takes the optimiser's step with the mean of all."""
    losses = loss_of(kernel)
    learners, nets = learners_of(kernel, buffers)
    hyper = SimpleNamespace(**{n: s for n, s in kernel.dims.items() if isinstance(s, int)})
    constants, steps = constants_of(kernel), kernel.dim("horizon")
    names = [n for n in specs(kernel) if n.startswith("rollout.")]
    rollout = {n.partition(".")[2]: torch.as_tensor(buffers[n]) for n in names}
    sums = [torch.as_tensor(buffers[f"learner.{name}.sum"]) for name in learners]
    at, taken = buffers["learner.at"], buffers["learner.step"]
    unit = float(observations.unit_of(kernel))

    def call() -> None:
        t, row = at.tolist()
        read(constants, buffers, hyper)
        kept = {n: x[row % len(x)] for n, x in rollout.items()}
        batch = batch_of(kept, ..., unit)
        given = list(losses(nets, batch, hyper, **kernel.args))
        found = _checked(kernel, given[0] if len(given) == 1 else given, learners)
        for total, grad, loss in zip(sums, gradients(found, learners), found, strict=True):
            total[:-1].add_(grad, alpha=1 / steps)
            total[-1].add_(loss.detach(), alpha=1 / steps)
        if t == steps - 1:
            means = [total[:-1].clone() for total in sums]
            move(learners, means, rates_of(learners, buffers, int(taken[0])), buffers)
            for learner, total in zip(learners.values(), sums, strict=True):
                learner.record_loss(total[-1])
                total.zero_()
        at[0], at[1] = (t + 1) % steps, (row + 1) % kernel.dim("kept")

    return call


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.ppo: the network in torch, the draw with the native variant's random
    numbers."""
    given = policies.arguments(kernel, buffers)
    action, _, _, params, _, size, _, low, high, sample, log_prob, _, choices = given
    split, forward = _network(kernel, "actor")
    parts = split(torch.as_tensor(params)[:size])
    deviations = torch.as_tensor(params)[size:]
    own = isinstance(params, Tensor)
    log_std = np.zeros(len(deviations), np.float32) if own else params[size:]
    obs, counter = torch.as_tensor(buffers["env.obs"]), buffers["rng.inference"]
    out = np.zeros((obs.shape[0], kernel.layers("actor")[-1]), np.float32)
    shared = torch.from_numpy(out)
    factored = policies.draw_factored if kernel.dims.get("choices") else policies.draw_discrete
    draw = policies.draw_gaussian if continuous(kernel) else factored
    pick = bind_call(draw, action, counter, out, log_std, low, high, sample, log_prob, choices)

    @torch.no_grad()
    def call() -> None:
        shared.copy_(forward(parts, obs))
        if own:
            torch.from_numpy(log_std).copy_(deviations)
        pick()

    return call


def _pack(obs: Tensor, units: float) -> Tensor:
    """Return whole numbers from 0 to 255, as `observations.pack`."""
    numbers = obs * units
    whole = numbers.round().clamp_(0, 255)
    if not float((whole - numbers).abs().max()) <= observations.CLOSE:
        raise ValueError(observations.NO_BYTES)
    return whole


def bind_insert(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind rollout_insert: rollout.* at rollout.at ← step.*, act.log_prob (and act.sample)."""
    step, rollout = rollouts.step_of(buffers), rollouts.rollout_of(buffers)
    columns = [
        (torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(step, rollout, strict=False)
    ]
    at, steps = buffers["rollout.at"], kernel.dim("horizon")
    units = 1 / float(observations.unit_of(kernel))

    def call() -> None:
        t = int(at[0])
        for source, target in columns:
            if target.dtype != source.dtype:
                source = _pack(source, units)
            target[t].copy_(source)
        at[0] = (t + 1) % steps

    return call


def bind_advantages(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind gae: rollout.value, advantage and returns ← a whole rollout, or with `kept` its next
    vector step, and policy.critic."""
    split, forward = _network(kernel, "critic")
    parts = split(torch.as_tensor(buffers["policy.critic"]))
    names = ("obs", "next_obs", "reward", "terminated", "truncated", "value", "advantage")
    r = SimpleNamespace(**{n: torch.as_tensor(buffers[f"rollout.{n}"]) for n in names})
    unit = float(observations.unit_of(kernel))

    def values(obs: Tensor) -> Tensor:
        return forward(parts, observed(obs, unit))

    returns = torch.as_tensor(buffers["rollout.returns"])
    steps = kernel.dim("horizon")
    gamma, trace = buffers["hyper.discount"], buffers["hyper.gae_lambda"]
    if kernel.dims.get("ahead"):
        r.returns, r.follows = returns, torch.as_tensor(buffers["rollout.follows"])
        return _n_step(kernel, r, buffers["rollout.judged"], values, gamma)

    @torch.no_grad()
    def call() -> None:
        r.value.copy_(values(r.obs.flatten(0, 1)).view_as(r.value))
        going = 1.0 - (r.terminated | r.truncated).float()
        cut = r.truncated.bool()
        cut[-1] = True
        after = torch.cat((r.value[1:], r.value[-1:]))
        after[cut] = values(r.next_obs[cut]).squeeze(1)
        discount = float(gamma[0])
        delta = r.reward + discount * (1.0 - r.terminated.float()) * after - r.value
        carry = torch.zeros(r.value.shape[1], device=r.value.device)
        for t in range(steps - 1, -1, -1):
            carry = delta[t] + discount * float(trace[0]) * going[t] * carry
            r.advantage[t] = carry
        torch.add(r.advantage, r.value, out=returns)

    return call


def _n_step(
    kernel: Kernel, r: Any, at: Any, values: Callable[[Tensor], Tensor], gamma: Any
) -> Call:
    """Returns of `ahead` rewards, as in `rollouts.n_step_returns`."""
    steps, ahead, kept = kernel.dim("horizon"), kernel.dim("ahead"), len(r.value)

    @torch.no_grad()
    def call() -> None:
        for _ in range(judged_steps(kernel)):
            t, row = at.tolist()
            last, end = min(t + ahead, steps - 1), min(t + ahead, steps) - 1
            for k in range(t + ahead if t else 0, last + 1):  # not valued before
                here = (row + k - t) % kept
                r.value[here] = values(r.obs[here]).squeeze(1)
                if k == steps - 1 or r.truncated[here].any():
                    r.follows[here] = values(r.next_obs[here]).squeeze(1)
            total = (r.value if last > end else r.follows)[(row + last - t) % kept]
            for k in range(end, t - 1, -1):
                here = (row + k - t) % kept
                total = torch.where(r.truncated[here] > 0, r.follows[here], total)
                total = torch.where(r.terminated[here] > 0, torch.zeros_like(total), total)
                total = r.reward[here] + float(gamma[0]) * total
            r.returns[t % len(r.returns)] = total
            r.advantage[t % len(r.advantage)] = total - r.value[row]
            at[0], at[1] = (t + 1) % steps, (row + 1) % kept

    return call
