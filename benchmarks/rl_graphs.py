"""The task graph of PPO with its costs, for the solver benchmark.

It is a graph only. No kernel of its own exists, so it is no algorithm that a spec may name, and
nothing here can train. What its kernels would take is counted here from first principles, as
`pearl_devices.work` counts those that exist, and timed by the datasheet roofline for three ways of
running them: one compiled call on a CPU core, eager torch on a CPU core, eager torch on a GPU. The
simulated FPGA has no design for them.

PPO: Schulman et al. 2017, with generalised advantages (Schulman et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pearl.costs import CostTable, Mode
from pearl.graph import Edge, Task, TaskGraph
from pearl_devices import Device, Kernel, Platform, backend, kernel
from pearl_devices.work import (
    ADAM_BYTES_READ,
    ADAM_BYTES_WRITTEN,
    ADAM_FLOPS,
    F32,
    activations_bytes,
    backward_flops,
    forward_flops,
    parameters,
)
from pearl_estimators import estimate
from pearl_estimators.power import dynamic_energy_j
from pearl_estimators.roofline import roofline

Layers = tuple[int, ...]

OWN = ("inference.ppo", "gae", "update.ppo")
"""The kinds that are counted here."""

# A draw and its log density: exp, normal or uniform, product and sum, square, logarithms; for each
# component of a continuous action, or each of the discrete ones. Counted from the formulas.
DRAW_FLOPS = 20
# Ratio, clipping, entropy, value error and their gradients; a sample. Counted likewise.
PPO_LOSS_FLOPS = 40
# delta = r + gamma·v' - v; advantage = delta + gamma·lambda·advantage'; return; a step and env.
GAE_FLOPS = 9
# Clipping by the norm of the gradients: square, sum, scale; a parameter.
CLIP_FLOPS = 3


@dataclass(frozen=True)
class Rollouts:
    """PPO's loop: `steps` vector steps of `envs` environments, then `epochs` passes over them in
    `minibatches` parts each. act: components of a continuous action, 0 if discrete; actions: how
    many discrete ones, 0 if continuous."""

    program: str
    envs: int
    steps: int
    epochs: int
    minibatches: int
    obs: int
    actions: int
    act: int
    hidden: Layers

    @property
    def updates(self) -> int:
        return self.epochs * self.minibatches

    @property
    def minibatch(self) -> int:
        return self.envs * self.steps // self.minibatches

    @property
    def actor(self) -> Layers:
        return (self.obs, *self.hidden, self.actions or self.act)

    @property
    def critic(self) -> Layers:
        return (self.obs, *self.hidden, 1)

    @property
    def params(self) -> int:
        """Of both networks, and a deviation for each component of a continuous action."""
        return parameters(self.actor) + parameters(self.critic) + self.act

    @property
    def action_bytes(self) -> int:
        return F32 * self.act or 8  # a discrete action is one int64


def ppo_inference(r: Rollouts) -> Kernel:
    """Actions, their log densities and the values of one vector step."""
    return Kernel(
        "inference.ppo",
        {"envs": r.envs, "actor": r.actor, "critic": r.critic},
        forward_flops(r.actor, r.envs)
        + forward_flops(r.critic, r.envs)
        + r.envs * (r.actions or r.act) * DRAW_FLOPS,
        F32 * (r.params + r.envs * r.obs),
        r.envs * (r.action_bytes + 2 * F32),
        activations_bytes(r.actor, r.envs) + activations_bytes(r.critic, r.envs),
    )


def ppo_gae(r: Rollouts) -> Kernel:
    """Advantages and returns of a rollout, from its last step to its first; first the value of the
    observation that follows it."""
    n = r.envs * r.steps
    return Kernel(
        "gae",
        {"envs": r.envs, "steps": r.steps, "critic": r.critic},
        GAE_FLOPS * n + forward_flops(r.critic, r.envs),
        n * (2 * F32 + 2) + F32 * (parameters(r.critic) + r.envs * r.obs),
        2 * F32 * n,
        activations_bytes(r.critic, r.envs),
    )


def ppo_update(r: Rollouts) -> Kernel:
    """One gradient step of both networks on one minibatch."""
    b = r.minibatch
    flops = (
        forward_flops(r.actor, b)
        + forward_flops(r.critic, b)
        + backward_flops(r.actor, b)
        + backward_flops(r.critic, b)
        + b * (PPO_LOSS_FLOPS + (r.actions or r.act) * DRAW_FLOPS)
        + (ADAM_FLOPS + CLIP_FLOPS) * r.params
    )
    row = F32 * (r.obs + 4) + r.action_bytes  # log density, value, advantage, return
    return Kernel(
        "update.ppo",
        {"actor": r.actor, "critic": r.critic, "batch": b, "steps": 1},
        flops,
        ADAM_BYTES_READ * r.params + b * row,
        ADAM_BYTES_WRITTEN * r.params,
        3 * (activations_bytes(r.actor, b) + activations_bytes(r.critic, b)) + F32 * r.params,
    )


def ppo(r: Rollouts) -> TaskGraph:
    """An iteration is one rollout and its gradient steps.

    The rollout lives where the gradient steps are; every vector step sends its part there. All T
    actions of a rollout come from one copy of the parameters: param_sync → inference has T tokens
    and no slack.
    """
    t, u = r.steps, r.updates
    step = kernel("env_step", program=r.program, envs=r.envs, obs=r.obs, act=r.act)
    sync = kernel("param_sync", args={"network": "actor"}, params=r.params)
    copy = F32 * r.params
    seen = r.envs * (F32 * (r.obs + 1) + 2)  # observation, reward, flags
    chosen = r.envs * (r.action_bytes + 2 * F32)
    tasks = (
        Task("inference", ppo_inference(r), reads=("policy",)),
        Task("env_step", step, writes=("environments",)),
        Task("gae", ppo_gae(r), writes=("rollout",)),
        Task("update", ppo_update(r), reads=("rollout",), writes=("learner",)),
        Task("param_sync", sync, reads=("learner",), writes=("policy",), copies=True),
    )
    edges = (
        Edge("inference", "env_step", bytes=r.envs * r.action_bytes),
        Edge("env_step", "inference", tokens_seq=1, bytes=r.envs * F32 * r.obs),
        Edge("env_step", "gae", 1, t, bytes=seen),
        Edge("inference", "gae", 1, t, bytes=chosen),
        Edge("gae", "update", u, 1),
        Edge("update", "gae", 1, u, u),
        Edge("update", "param_sync", 1, u),
        Edge("param_sync", "update", u, 1, u),
        Edge("param_sync", "inference", t, 1, t, bytes=copy),
        Edge("inference", "param_sync", 1, t),
        *(Edge(n, n, tokens_seq=1) for n in ("env_step", "update", "param_sync")),
    )
    rows = r.envs * r.steps * (F32 * (r.obs + 5) + r.action_bytes + 2)
    states = {
        "environments": r.envs * (8.0 + F32) * r.obs,
        "policy": float(copy),
        "learner": 12.0 * r.params,
        "rollout": float(rows),
    }
    return TaskGraph("ppo", tasks, edges, states, (), r.envs * t, u, r.minibatch)


# Costs


def launches(k: Kernel) -> int:
    """Operations that one firing starts in eager torch, counted from the algorithm."""
    if k.kind == "inference.ppo":
        return _forward(k.layers("actor")) + _forward(k.layers("critic")) + _DRAW + 3
    if k.kind == "gae":
        return _forward(k.layers("critic")) + 6 * k.dim("steps") + 1
    actor, critic = k.layers("actor"), k.layers("critic")
    once = _forward(actor) + _forward(critic) + _backward(actor) + _backward(critic)
    return once + _LOSS + _OPTIMISER + _CLIP


def _forward(layers: Layers) -> int:
    """A product with bias each layer, an activation between two."""
    return 2 * (len(layers) - 1) - 1


def _backward(layers: Layers) -> int:
    """Gradient of weights and of biases each layer; of input and activation between two."""
    return 2 * (len(layers) - 1) + 2 * (len(layers) - 2)


_OPTIMISER = 10  # Adam on one flat vector
_CLIP = 4
_DRAW = 8  # soft-max or normal: draw and log density
_LOSS = 68  # ratio, clipping, entropy, value, and their gradients


def modes(graph: TaskGraph, platform: Platform) -> CostTable:
    """Costs of PPO: what the devices offer for the kernels that exist, and the roofline of the
    three ways in this module's head for those that do not."""
    found: list[Mode] = []
    for task in graph.tasks:
        k = task.kernel
        for device in platform.devices:
            if k.kind not in OWN:
                for variant, width in backend(device.kind).offers(k, device):
                    cost = estimate(k, device, variant=variant, width=width)
                    found.append(Mode((task.name,), device.name, variant, width, cost))
            elif device.kind == "cpu":
                found.append(_mode(task, device, "native", 1, 1))
                found.append(_mode(task, device, "torch", 1, launches(k)))
            elif device.kind == "gpu":
                found.append(_mode(task, device, "torch", device.width, launches(k)))
    return CostTable(platform, tuple(found))


def _mode(task: Task, device: Device, variant: str, width: int, starts: int) -> Mode:
    cost = roofline(task.kernel, device, variant, width, starts=starts)
    energy = dynamic_energy_j(device, width, cost.occupancy_s)
    return Mode((task.name,), device.name, variant, width, replace(cost, energy_j=energy))
