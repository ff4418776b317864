"""The torch variants of update and inference, over the same arrays as the native ones.

An update's loss is a generator function named by `kernel.program` (`module:callable`):

    def losses(nets, batch, hyper):
        …
        yield "q", loss      # a scalar; one step of Adam on network q is taken here
        return td            # absolute TD errors, (B,)

`nets.q(obs)` is the output (B, width), `nets.target.q(obs)` the target's, without gradient. A
network whose name begins with critic returns (B,). A network called actor, with as many outputs as
an action has components, returns actions between `hyper.act_low` and `hyper.act_high`. Several
inputs are joined: `nets.critic(obs, action)`. A network called q returns the values of the actions,
(B, actions), also if it is duelling (`primitives.dqn`). A network without inputs is a learned
constant, (1,). `batch` has obs, action, reward, next_obs, discount, weight. `hyper` has every
integer size of the kernel (`hyper.double`), every constant (`hyper.huber`; a tuple if it has
several numbers), `hyper.step`, the number of this gradient step from 1, `hyper.noise` (`Noise`),
and for continuous actions act_low and act_high. `kernel.args` are passed as keyword arguments.
After the last loss all targets move; with a delayed policy, in every `policy_delay`-th step.

An inference may have a program too: `act(nets, obs, explore, noise)` returns actions, int64 (N,) or
float32 (N, A). explore: the share of random actions, or for continuous actions the noise, at this
env step; explore and noise are None for the greedy action. Random env steps at the start do not
call the program. nets.act_low and nets.act_high are the bounds of continuous actions. The number of
torch's threads stays unchanged.

Arrays are numpy's or tensors, on any device; counters, constants and random streams are numpy's
(`Variant.on_host`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pearl_devices.base import Buffers, Call
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.off_policy import discrete_actions
from pearl_devices.primitives.native import bind_call
from pearl_devices.primitives.torch import modules
from pearl_devices.primitives.torch.learner import Learner, Split, views
from pearl_devices.primitives.torch.programs import Noise, loss_of, resolve
from pearl_devices.primitives.updates import ddpg, dqn, sac
from pearl_devices.primitives.updates.stop_word import call_ends

Forward = Callable[..., Tensor]
Run = Callable[[Sequence[Tensor], Tensor], Tensor]


def run(parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the network's linear output."""
    for layer in range(0, len(parts), 2):
        x = torch.addmm(parts[layer + 1], x, parts[layer])
        if layer < len(parts) - 2:
            x = torch.relu(x)
    return x


def run_bfloat16(parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """Compute `run` with the products from one hidden layer to the next, and their gradients, in
    bfloat16. Biases, the first layer and the output layer stay float32."""
    for layer in range(0, len(parts), 2):
        if 0 < layer < len(parts) - 2:
            x = parts[layer + 1] + (x.bfloat16() @ parts[layer].bfloat16()).float()
        else:
            x = torch.addmm(parts[layer + 1], x, parts[layer])
        if layer < len(parts) - 2:
            x = torch.relu(x)
    return x


def structure(kernel: Kernel, name: str) -> tuple[Split, Run]:
    """Return how network `name` splits its flat vector into parts, and its function of (parts,
    rows): dense layers, or the user-defined module."""
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
    """Return the function that a loss calls, over the parameters `parts`."""
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


def _without_gradient(function: Forward) -> Forward:
    def call(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    return call


def _gradient_step(
    kernel: Kernel, steps: Iterator[Any], step: int, learners: dict[str, Learner], buffers: Buffers
) -> Tensor:
    """Run one loss generator to its end; return the absolute TD errors."""
    size = kernel.dim("batch")
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


class GradientSteps:
    """The gradient steps of a firing of update.*, over its arrays.

    dense: function that computes networks of dense layers.
    hyper: the object that the loss gets; `step` and `noise` are set before each step.
    """

    def __init__(self, kernel: Kernel, buffers: Buffers, dense: Run = run) -> None:
        self.kernel, self.buffers, self.losses = kernel, buffers, loss_of(kernel)
        own, networks = specs(kernel), kernel.networks
        made = {name: structure(kernel, name) for name in networks}
        self.learners = {
            name: Learner(name, widths, buffers, made[name][0]) for name, widths in networks.items()
        }
        sizes = {name: size for name, size in kernel.dims.items() if isinstance(size, int)}
        bounds = _bounds(buffers) if kernel.dim("act") else {}
        self.hyper = hyper = SimpleNamespace(**sizes, **bounds, step=0, noise=None)
        self._constants = [n for n in own if n.startswith("hyper.") and ".lr." not in n]
        self.td = torch.as_tensor(buffers["batch.td"])
        self.nets = SimpleNamespace(target=SimpleNamespace())
        for name, learner in self.learners.items():
            split, forward = made[name]
            forward = dense if forward is run else forward
            outputs = networks[name][-1]
            setattr(self.nets, name, network(name, learner.parts, hyper, outputs, forward))
            if learner.target is not None:
                frozen = network(name, split(learner.target), hyper, outputs, forward)
                setattr(self.nets.target, name, _without_gradient(frozen))
        fields = ("obs", "action", "reward", "next_obs", "discount", "weight")
        self.batches = [
            SimpleNamespace(**{f: torch.as_tensor(buffers[f"batch.{f}"])[s] for f in fields})
            for s in range(kernel.dim("steps"))
        ]

    def begin(self) -> None:
        """Read the constants."""
        for name in self._constants:
            values = self.buffers[name].tolist()
            value = values[0] if len(values) == 1 else tuple(values)
            setattr(self.hyper, name[len("hyper.") :], value)

    def step(self, number: int) -> None:
        """Take the gradient step on batch `number`."""
        steps = self.losses(self.nets, self.batches[number], self.hyper, **self.kernel.args)
        found = _gradient_step(self.kernel, steps, self.hyper.step, self.learners, self.buffers)
        self.td[number].copy_(found.detach())


def bind_update(kernel: Kernel, buffers: Buffers, dense: Run = run) -> Call:
    """Bind update.*: `steps` runs of the loss generator that kernel.program names. dense: function
    that computes networks of dense layers."""
    steps, stop = GradientSteps(kernel, buffers, dense), buffers["loop.stop"]
    hyper, count, noise = steps.hyper, buffers["learner.step"], None
    if "rng.update" in specs(kernel):
        hyper.noise = noise = Noise(buffers["rng.update"], steps.td.device)

    def call() -> None:
        steps.begin()
        for number in range(stop[1], len(steps.batches)):
            count[0] += 1
            hyper.step = int(count[0])
            if noise is not None:
                noise.begin()
            steps.step(number)
            if call_ends(stop, number + 1, len(steps.batches)):
                return

    return call


def bind_update_bfloat16(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind like `bind_update`, with `run_bfloat16`."""
    return bind_update(kernel, buffers, run_bfloat16)


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.*: the network in torch, the choice with the native variant's random numbers.

    Without a program: epsilon-greedy on the outputs for discrete actions, else the first A outputs
    through tanh with Gaussian noise; inference.sac samples from its policy.
    """
    (name,) = kernel.networks
    split, forward = structure(kernel, name)
    parts = split(torch.as_tensor(buffers[f"policy.{name}"]))
    obs = torch.as_tensor(buffers["env.obs"])
    counter, explore = buffers["rng.inference"], buffers["explore"]
    action, act = buffers["act.action"], kernel.dim("act")
    if kernel.program is not None:
        return _with_program(kernel, buffers)
    out = np.zeros((obs.shape[0], kernel.layers()[-1]), np.float32)
    shared = torch.from_numpy(out)
    if act:
        low, high = buffers["act.low"], buffers["act.high"]
        if kernel.kind == "inference.sac":
            pick = bind_call(
                sac.draw_actions, counter, out, explore, low, high, action, sac.noise(out)
            )
        else:
            pick = bind_call(ddpg.explore_around, counter, out[:, :act], low, high, explore, action)
    else:
        values = out[:, kernel.dims.get("duelling", 0) :]
        pick = bind_call(dqn.choose, counter, values, explore, action)

    @torch.no_grad()
    def call() -> None:
        shared.copy_(forward(parts, obs))
        pick()

    return call


def _policy(kernel: Kernel, params: Any, hyper: SimpleNamespace) -> Any:
    """`nets` of an acting program: its only network, and act_low and act_high of continuous
    actions."""
    (name,) = kernel.networks
    split, forward = structure(kernel, name)
    parts = split(torch.as_tensor(params))
    chosen = network(name, parts, hyper, kernel.layers()[-1], forward)
    return SimpleNamespace(**{name: chosen}, **vars(hyper))


def _random_actions(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind uniform actions, drawn as in native variants: the choice before `learning_starts`, which
    ignores the network's outputs."""
    counter, explore, action = (buffers[n] for n in ("rng.inference", "explore", "act.action"))
    act, rows = kernel.dim("act"), buffers["env.obs"].shape[0]
    if act:
        low, high = buffers["act.low"], buffers["act.high"]
        no_outputs = np.zeros((rows, act), np.float32)
        return bind_call(ddpg.explore_around, counter, no_outputs, low, high, explore, action)
    no_values = np.zeros((rows, discrete_actions(kernel)), np.float32)
    return bind_call(dqn.choose, counter, no_values, explore, action)


def _with_program(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind an inference whose actions a program chooses."""
    program, (name,) = resolve(kernel), kernel.networks
    start = _random_actions(kernel, buffers)
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
    """Return the program's result if it is valid actions.

    Raises ValueError.
    """
    if not isinstance(chosen, Tensor) or tuple(chosen.shape) != tuple(shape):
        got = tuple(chosen.shape) if isinstance(chosen, Tensor) else type(chosen).__name__
        raise ValueError(
            f"kernel {kernel.kind}: {kernel.program} returned {got}; it must return actions, "
            f"shape {tuple(shape)}"
        )
    if (actions := discrete_actions(kernel)) and chosen.numel():
        least, most = int(chosen.min()), int(chosen.max())
        if least < 0 or most >= actions:
            raise ValueError(
                f"kernel {kernel.kind}: {kernel.program} returned actions {least} … {most}; those "
                f"of the environment are 0 … {actions - 1}"
            )
    return chosen


@torch.no_grad()
def outputs(
    kernel: Kernel, params: npt.NDArray[np.float32], obs: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the outputs of an inference's network for these rows, (rows, outputs)."""
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
    """Return the actions of an inference's program without exploration; see `cpu.greedy`."""
    hyper, act = SimpleNamespace(), kernel.dim("act")
    if act and low is not None and high is not None:
        hyper = SimpleNamespace(act_low=torch.from_numpy(low), act_high=torch.from_numpy(high))
    chosen = resolve(kernel)(_policy(kernel, params, hyper), torch.from_numpy(obs), None, None)
    shape = (len(obs), act) if act else (len(obs),)
    return _checked(kernel, chosen, shape).numpy().astype(np.float32 if act else np.int64)
