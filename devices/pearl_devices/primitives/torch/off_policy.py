"""The torch variants of update and inference, over the same arrays as the native ones.

An update's loss is a generator function named by `kernel.program` (`module:callable`):

    def losses(nets, batch, hyper):
        …
        yield "q", loss      # a scalar; one step of Adam on network q is taken here
        return td            # absolute TD errors, (B,)

`nets.q(obs)` is the output (B, width), `nets.target.q(obs)` the target's, without gradient. A
network whose name begins with critic returns (B,); one called actor with as many outputs as an
action has components returns actions between `hyper.act_low` and `hyper.act_high`. Several inputs
are joined: `nets.critic(obs, action)`; one called q gives the values of the actions, (B, actions),
also where it is a duelling one (`primitives.dqn`); a network without inputs is a learned constant,
(1,). `batch` has obs, action, reward, next_obs, discount, weight. `hyper` has every integer size of
the kernel (`hyper.double`), every constant (`hyper.huber`; a tuple where there are several
numbers), `hyper.step`, the number of this gradient step from 1, `hyper.noise` (`Noise`), and for
continuous actions act_low and act_high. `kernel.args` are passed on as keyword arguments. After the
last loss all targets move, with a delayed policy in every `policy_delay`-th step.

An inference may have a program too: `act(nets, obs, explore, noise)` returns actions, int64 (N,) or
float32 (N, A). explore: the share of random actions, or for continuous actions the noise, at this
env step; None where the greedy action is asked for, and noise is then None as well. Env steps of
random action at the start are taken without it. The number of torch's threads is left as it is.

Arrays are numpy's or tensors, on any device; counters, constants and random streams are numpy's
(`Variant.on_host`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pearl_devices.base import Buffers, Call
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import CLIP_EPS
from pearl_devices.primitives.native import bound
from pearl_devices.primitives.torch import modules
from pearl_devices.primitives.torch.programs import Noise, loss_of, resolve
from pearl_devices.primitives.updates import ddpg, dqn, sac

Forward = Callable[..., Tensor]
Split = Callable[[Tensor], list[Tensor]]
Run = Callable[[Sequence[Tensor], Tensor], Tensor]


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


def run_bfloat16(parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """As `run`, with the products from one hidden layer to the next in bfloat16, and their
    gradients too. What they add to, the first layer and the output stay float32."""
    for layer in range(0, len(parts), 2):
        if 0 < layer < len(parts) - 2:
            x = parts[layer + 1] + (x.bfloat16() @ parts[layer].bfloat16()).float()
        else:
            x = torch.addmm(parts[layer + 1], x, parts[layer])
        if layer < len(parts) - 2:
            x = torch.relu(x)
    return x


def structure(kernel: Kernel, name: str) -> tuple[Split, Run]:
    """How network `name` splits its flat vector into parts, and what it computes from (parts,
    rows): dense layers, or the user's own module."""
    own = kernel.modules.get(name)
    if own is None:
        return partial(views, layers=kernel.layers(name)), run
    return modules.structure(own)


def squash(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    half = 0.5 * (high - low)
    return low + half + half * torch.tanh(z)


def network(
    name: str, parts: Sequence[Tensor], hyper: SimpleNamespace, outputs: int, run: Run = run
) -> Forward:
    """The function that a loss calls, over the parameters `parts`."""
    duels = name == "q" and bool(getattr(hyper, "duelling", 0))
    squashes = name == "actor" and outputs == len(getattr(hyper, "act_low", ()))

    def call(*inputs: Tensor) -> Tensor:
        if not inputs:
            return run(parts, torch.zeros(1, 0, device=parts[0].device)).squeeze(0)
        out = run(parts, inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1))
        if squashes:
            return squash(out, hyper.act_low, hyper.act_high)
        if duels:
            return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)
        return out.squeeze(1) if name.startswith("critic") else out

    return call


def shrinking(norm: Tensor, limit: float, *, waits: bool) -> float | Tensor:
    """The factor that clips a gradient of this norm. waits: as a number; else it is computed where
    the norm lies, and the host goes on."""
    if waits:
        return min(1.0, limit / (float(norm) + CLIP_EPS))
    exact = norm.double() if norm.device.type != "mps" else norm  # which has no float64
    return (limit / (exact + CLIP_EPS)).clamp(max=1.0)


class Learner:
    """One network's parameters, moments and target (if it has one), and the step of Adam.

    waits: its arrays are numpy's, and numbers that are computed are waited for.
    """

    def __init__(
        self, name: str, layers: tuple[int, ...], buffers: Buffers, split: Split | None = None
    ) -> None:
        """split: into the parts of a network that is not dense layers of these widths."""
        self.name, split = name, split or partial(views, layers=layers)
        flat = {p: torch.as_tensor(buffers[f"learner.{name}{p}"]) for p in ("", ".m", ".v")}
        self.params, self.m, self.v = flat[""], flat[".m"], flat[".v"]
        self.steps = buffers[f"learner.{name}.steps"]
        self.parts = [part.detach().requires_grad_() for part in split(self.params)]
        copy = buffers.get(f"learner.{name}.target")
        self.target = None if copy is None else torch.as_tensor(copy)
        self.lr, self.loss = buffers[f"hyper.lr.{name}"], buffers[f"loss.{name}"]
        self.waits = not isinstance(self.loss, Tensor)

    def descend(self, loss: Tensor, adam: Any, clip_norm: float) -> None:
        """One step of Adam, bias corrections as in torch.optim.Adam."""
        self.steps[0] += 1
        step = int(self.steps[0])
        beta1, beta2, eps = (float(value) for value in adam)
        pieces = torch.autograd.grad(loss, self.parts)
        grad = torch.cat([piece.reshape(-1) for piece in pieces])
        if clip_norm > 0:
            grad *= shrinking(grad.norm(), clip_norm, waits=self.waits)
        self.m.mul_(beta1).add_(grad, alpha=1 - beta1)
        self.v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (self.v / (1 - beta2**step)).sqrt_().add_(eps)
        self.params.addcdiv_(self.m, root, value=-float(self.lr[0]) / (1 - beta1**step))
        self.note(loss)

    def note(self, loss: Tensor) -> None:
        """Keep the loss, on a device without waiting for it."""
        if self.waits:
            self.loss[0] = float(loss.detach())
        else:
            self.loss.copy_(loss.detach())

    def follow(self, step: int, tau: float, every: int) -> None:
        if self.target is None:
            return
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
    kernel: Kernel, steps: Iterator[Any], learners: dict[str, Learner], buffers: Buffers
) -> Tensor:
    """Runs one loss generator to its end and returns the absolute TD errors."""
    step, size = int(buffers["learner.step"][0]), kernel.dim("batch")
    if not isinstance(steps, Iterator):
        raise ValueError(
            f"kernel {kernel.kind}: {kernel.program} returned a {type(steps).__name__}; it must be "
            "a generator that yields (network, loss) and returns the absolute TD errors"
        )
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
        learners[name].descend(loss, buffers["hyper.adam"], float(buffers["hyper.clip_norm"][0]))
    if not isinstance(td, Tensor) or tuple(td.shape) != (size,):
        raise ValueError(
            f"kernel {kernel.kind}: {kernel.program} returned "
            f"{tuple(td.shape) if isinstance(td, Tensor) else type(td).__name__}; "
            f"it must return the absolute TD errors, shape ({size},)"
        )
    tau, every = float(buffers["hyper.tau"][0]), int(buffers["hyper.target_every"][0])
    if every > 0 or step % int(kernel.dims.get("policy_delay", 1)) == 0:  # type: ignore[arg-type]
        for learner in learners.values():
            learner.follow(step, tau, every)
    return td


def _bounds(buffers: Buffers) -> dict[str, Tensor]:
    return {f"act_{end}": torch.as_tensor(buffers[f"act.{end}"]) for end in ("low", "high")}


def bind_update(kernel: Kernel, buffers: Buffers, dense: Run = run) -> Call:
    """update.*: `steps` runs of the loss generator that kernel.program names. dense: how networks
    of dense layers are computed."""
    losses = loss_of(kernel)
    own, networks = specs(kernel), kernel.networks
    made = {name: structure(kernel, name) for name in networks}
    learners = {
        name: Learner(name, widths, buffers, made[name][0]) for name, widths in networks.items()
    }
    sizes = {name: size for name, size in kernel.dims.items() if isinstance(size, int)}
    hyper = SimpleNamespace(**sizes, **(_bounds(buffers) if kernel.dim("act") else {}), step=0)
    constants = [n for n in own if n.startswith("hyper.") and not n.startswith("hyper.lr.")]
    td = torch.as_tensor(buffers["batch.td"])
    noise = Noise(buffers["rng.update"], td.device) if "rng.update" in own else None
    hyper.noise = noise
    nets = SimpleNamespace(target=SimpleNamespace())
    for name, learner in learners.items():
        split, forward = made[name]
        forward = dense if forward is run else forward
        outputs = networks[name][-1]
        setattr(nets, name, network(name, learner.parts, hyper, outputs, forward))
        if learner.target is not None:
            frozen = network(name, split(learner.target), hyper, outputs, forward)
            setattr(nets.target, name, _without_gradient(frozen))
    fields = ("obs", "action", "reward", "next_obs", "discount", "weight")
    batches = [
        SimpleNamespace(**{f: torch.as_tensor(buffers[f"batch.{f}"])[s] for f in fields})
        for s in range(kernel.dim("steps"))
    ]
    count = buffers["learner.step"]

    def call() -> None:
        for name in constants:
            values = buffers[name].tolist()
            setattr(hyper, name[len("hyper.") :], values[0] if len(values) == 1 else tuple(values))
        for s, batch in enumerate(batches):
            count[0] += 1
            hyper.step = int(count[0])
            if noise is not None:
                noise.begin()
            steps = losses(nets, batch, hyper, **kernel.args)
            td[s].copy_(_gradient_step(kernel, steps, learners, buffers).detach())

    return call


def bind_update_bfloat16(kernel: Kernel, buffers: Buffers) -> Call:
    """As `bind_update`, by `run_bfloat16`."""
    return bind_update(kernel, buffers, run_bfloat16)


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """inference.*: the network in torch; the choice with the native variant's random numbers.

    Without a program: epsilon-greedy on the outputs where actions are discrete, else the first A
    outputs through tanh with Gaussian noise; inference.sac draws from its policy.
    """
    (name,) = kernel.networks
    split, forward = structure(kernel, name)
    parts = split(torch.as_tensor(buffers[f"policy.{name}"]))
    obs = torch.as_tensor(buffers["env.obs"])
    counter, explore = buffers["rng.inference"], buffers["explore"]
    action, act = buffers["act.action"], kernel.dim("act")
    out = np.zeros((obs.shape[0], kernel.layers()[-1]), np.float32)
    shared = torch.from_numpy(out)
    if act:
        low, high = buffers["act.low"], buffers["act.high"]
        if kernel.kind == "inference.sac":
            pick = bound(sac.draw_actions, counter, out, explore, low, high, action, sac.noise(out))
        else:
            pick = bound(ddpg.explore_around, counter, out[:, :act], low, high, explore, action)
    else:
        values = out[:, kernel.dims.get("duelling", 0) :]
        pick = bound(dqn.choose, counter, values, explore, action)
    if kernel.program is not None:
        return _with_program(kernel, buffers, pick)

    @torch.no_grad()
    def call() -> None:
        shared.copy_(forward(parts, obs))
        pick()

    return call


def _policy(kernel: Kernel, params: Any, hyper: SimpleNamespace) -> Any:
    """`nets` of an acting program: its only network."""
    (name,) = kernel.networks
    split, forward = structure(kernel, name)
    parts = split(torch.as_tensor(params))
    return SimpleNamespace(**{name: network(name, parts, hyper, kernel.layers()[-1], forward)})


def _with_program(kernel: Kernel, buffers: Buffers, start: Call) -> Call:
    """An inference that a program chooses; `start` takes the random actions of the start."""
    program, (name,) = resolve(kernel), kernel.networks
    obs, action = (torch.as_tensor(buffers[n]) for n in ("env.obs", "act.action"))
    bounds = _bounds(buffers) if kernel.dim("act") else {}
    hyper = SimpleNamespace(**{n: bound.to(obs.device) for n, bound in bounds.items()})
    nets = _policy(kernel, buffers[f"policy.{name}"], hyper)
    counter, explore = buffers["rng.inference"], buffers["explore"]
    noise = Noise(counter, obs.device)

    @torch.no_grad()
    def call() -> None:
        env_steps = float(counter[1]) * obs.shape[0]
        if env_steps < explore[3]:
            start()
            return
        share = explore[0] if kernel.dim("act") else dqn.epsilon(explore, env_steps)
        noise.begin()
        action.copy_(_checked(kernel, program(nets, obs, float(share), noise), action.shape))

    return call


def _checked(kernel: Kernel, chosen: Any, shape: Sequence[int]) -> Tensor:
    if not isinstance(chosen, Tensor) or tuple(chosen.shape) != tuple(shape):
        got = tuple(chosen.shape) if isinstance(chosen, Tensor) else type(chosen).__name__
        raise ValueError(
            f"kernel {kernel.kind}: {kernel.program} returned {got}; it must return actions, "
            f"shape {tuple(shape)}"
        )
    return chosen


@torch.no_grad()
def outputs(
    kernel: Kernel, params: npt.NDArray[np.float32], obs: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """What the network of an inference gives for these rows, (rows, outputs)."""
    (name,) = kernel.networks
    split, forward = structure(kernel, name)
    found: npt.NDArray[np.float32] = forward(
        split(torch.from_numpy(params)), torch.from_numpy(obs)
    ).numpy()
    return found


@torch.no_grad()
def act_greedily(
    kernel: Kernel,
    params: npt.NDArray[np.float32],
    obs: npt.NDArray[np.float32],
    low: npt.NDArray[np.float32] | None,
    high: npt.NDArray[np.float32] | None,
) -> Any:
    """What the program of an inference chooses without exploration; see `cpu.act`."""
    hyper, act = SimpleNamespace(), kernel.dim("act")
    if act and low is not None and high is not None:
        hyper = SimpleNamespace(act_low=torch.from_numpy(low), act_high=torch.from_numpy(high))
    chosen = resolve(kernel)(_policy(kernel, params, hyper), torch.from_numpy(obs), None, None)
    shape = (len(obs), act) if act else (len(obs),)
    return _checked(kernel, chosen, shape).numpy().astype(np.float32 if act else np.int64)
