"""Names of the arrays that kernels share, and shapes that several kinds have.

The whole state of a run lies in these arrays: parameters, optimiser moments, replay, environment
states, random counters, hyper-parameters. So a checkpoint holds these arrays and nothing else, and
each variant of a kernel (native, torch) is another function on the same memory.

Sizes: N environments, O observation and A action components, C replay rows, k gradient steps per firing,
B batch size, P parameters of a network. Discrete actions are int64 without the A axis.

| name | shape | what |
|---|---|---|
| env.obs | N, O | observations for the next action (after an automatic reset) |
| env.state, env.elapsed, env.return | N, 8; N; N | native environments: state, steps and return of the running episode |
| episode.returns, episode.lengths, episode.count | 4096; 4096; 1 | ring of finished episodes, and their number so far |
| act.action | N[, A] | chosen actions; act.low, act.high (A): their bounds |
| act.choices | A | number of choices of each component of a factored action; such actions are int64 (N, A), without bounds |
| explore | 4 | discrete actions: first epsilon, last epsilon, env steps between them, env steps of random actions at the start; continuous ones: standard deviation of the noise as a share of half the action range (0 for inference.sac, whose policy draws), 0, 0, env steps of random actions |
| step.obs, step.action, step.reward, step.next_obs, step.terminated, step.truncated | N, … | the transition of this step; next_obs is the true successor, not the reset; the two flags are uint8, as everywhere, not bool; bit 1 (value 2) of truncated: the environment was restarted just before |
| replay.obs … replay.truncated | C, … | the same, stored; row = time · N + environment, modulo C; with a size `units`, observations are uint8, so many per 1.0 |
| replay.frame, replay.depth, replay.ahead, replay.last, replay.last_row, replay.clock | C + (stack - 1) · N, F; …; N, F; ends, F; ends; 2 | for stacks of frames of F uint8, instead of replay.obs and replay.next_obs (see `primitives.frames`); env.*, step.* and batch.* hold whole stacks, float32 of 0 … 255, flattened |
| replay.cursor | 2 | next row to write; rows filled |
| replay.tree | T | K-ary sum tree over priorities, root first |
| replay.priority | 3 | alpha; constant added to |td|; largest priority so far |
| replay.beta | 3 | first and last importance exponent; sample firings between |
| batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight, batch.index | k, B, … | reward is the n-step return; discount is gamma^m · (1 − terminated) for the m steps it spans |
| batch.td | k, B | absolute TD error of each sample |
| learner.X, learner.X.target, learner.X.m, learner.X.v | P | network X, its target (if it has one), Adam's moments; one flat vector: per layer the weights (in, out) row by row, then the biases; for PPO and A2C, the actor then has the logarithm of the standard deviation of each continuous action component |
| learner.X.steps | 1 | steps of Adam that network X has taken |
| learners.I.X | as learner.X | with several learners, the arrays of learner I, from 1; the first learner has learner.X |
| gradient.I.X, gradient.I.loss.X, gradient.I.td | P; 1; B / learners | of learner I on its rows of the batch: gradient of network X, loss, absolute TD errors |
| mean.X | P | the mean of all learners' gradients |
| gradient.I.X.S, mean.X.S | P / learners | shard S of these arrays, if the mean is computed in shards |
| learner.step | 1 | gradient steps done or skipped by target_kl |
| loss.X | 1 | the last loss of network X |
| policy.X | P | the copy of the network that inference reads |
| act.log_prob, act.sample | N; N, A | of inference.ppo: log densities of the actions; continuous actions as sampled, scaled to bounds of -1 and 1, not clipped |
| rollout.obs … rollout.truncated, rollout.log_prob | T, N, … | on-policy algorithms: T vector steps; continuous actions as sampled; observations as in a replay |
| rollout.at | 1 | index of the next vector step to store |
| rollout.value, rollout.advantage, rollout.returns | T, N | values of the observations, advantages, and value + advantage |
| rollout.follows, rollout.judged | T, N; 2 | for n-step returns: values of the true successors where an episode or the rollout was cut; the next vector step to value, and its row. If each vector step is learned from as soon as it is valued, only the next n + 1 are kept, in a ring, and one of advantages and returns |
| learner.at, learner.X.sum | 2; P + 1 | in this case: the next vector step to learn from, and its row; the sums of network X's gradients and losses so far |
| hyper.X | 1 or more | lr.X per network (with a schedule 4: first and last rate, Adam steps between, 1 for half a cosine), adam (beta1, beta2, eps), tau, target_every, clip_norm (0: off), huber (0: half the squared error, else delta), discount; of update.td3 smoothing (noise standard deviation and its limit, as shares of half the action range); of update.sac target_entropy; of PPO and A2C gae_lambda, clip and value_clip (0: off), entropy and value_weight (weights in the loss), normalise (1: advantages), target_kl (optional: gradient steps end before the policy diverges further from the acting one), anneal (gradient steps over which the learning rates fall to 0; 0: constant), rmsprop (decay, 0: Adam is used; constant in the root) |
| policy.q, learner.q.visits | states, actions | of the tabular algorithms: the table (float64), and the number of updates of each entry; observations are state numbers; hyper.lr.q has the first step size and the power of the visits by which it falls |
| loop.more | 1 | iterations beyond the first in one call of iteration.*; after the call, the number that it did not begin |
| loop.stop | 2 | not 0: gradient-step calls return after the current step; gradient steps done in an interrupted firing |
| normalise.obs, normalise.reward | 2, O; 2, 1 | mean and variance of the observations, of the discounted return; normalise.obs.count and normalise.reward.count: their sample counts |
| normalise.return, normalise.options | N; 3 | discounted return so far; limit of normalised values (0: none), constant in the variance, discount |
| rng.TASK | 2 | key of the task's random stream; firings done |
| evaluation.policy, evaluation.statistics | as policy.X; 2, O | of an evaluation with R rows of its E episodes in lock-step: copies of the parameters and of normalise.obs |
| evaluation.interface.X | as X | copy of array X of a user-defined kernel between environments and network |
| evaluation.obs, evaluation.state | R, O; R, 8 | of the running episodes: observations from the environment, flat; as env.state |
| evaluation.episode, evaluation.elapsed, evaluation.return | R | number, steps and return of the running episode of each row |
| evaluation.first, evaluation.returns, evaluation.cut | E, 8; E; E | first states of native environments; returns of the episodes; 1 where one was cut at max_steps |
| evaluation.at | 2 | running rows; episodes begun |
| evaluation.seed | 1 | seed of the episodes of a firing |
"""

from __future__ import annotations

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import Spec

EPISODES = 4096
"""Number of finished episodes that are kept."""
ANEW = 2
"""Added to `truncated` of the first transition after an environment was restarted within an
episode: the transition before it is not its predecessor, though it has no flag of an end."""
STOP: dict[str, Spec] = {"loop.stop": ((2,), "int64")}
"""The array that interrupts a call of gradient steps and counts the steps it has done."""
STATE = 8
"""Largest number of state variables of a native environment."""


def transition(prefix: str, lead: tuple[int, ...], k: Kernel) -> dict[str, Spec]:
    """Observation, action, reward and next observation; `lead` gives the first axes."""
    obs = k.dim("obs")
    return {
        f"{prefix}.obs": ((*lead, obs), "float32"),
        f"{prefix}.action": action(lead, k),
        f"{prefix}.reward": (lead, "float32"),
        f"{prefix}.next_obs": ((*lead, obs), "float32"),
    }


def stored(prefix: str, lead: tuple[int, ...], k: Kernel) -> dict[str, Spec]:
    """The same as a replay or a rollout stores it: with a size `units`, the stored numbers per 1.0,
    observations are uint8."""
    found = transition(prefix, lead, k)
    if k.dims.get("units"):
        found |= {n: (s, "uint8") for n, (s, _) in found.items() if n.endswith("obs")}
    return found


def action(lead: tuple[int, ...], k: Kernel) -> Spec:
    """Actions: discrete, continuous, or factored (a size `choices`, the sum over components)."""
    act = k.dim("act")
    return ((*lead, act) if act else lead, "float32" if continuous(k) else "int64")


def continuous(k: Kernel) -> int:
    """Components of a continuous action; 0 for discrete actions."""
    return 0 if k.dims.get("choices") else k.dim("act")


def flags(prefix: str, rows: int) -> dict[str, Spec]:
    """Flags of each row: whether its episode ended there."""
    return {f"{prefix}.terminated": ((rows,), "uint8"), f"{prefix}.truncated": ((rows,), "uint8")}


def step(k: Kernel) -> dict[str, Spec]:
    """The transitions of one vector step."""
    n = k.dim("envs")
    return {**transition("step", (n,), k), **flags("step", n)}


def bounds(k: Kernel) -> dict[str, Spec]:
    """Bounds of each component of a continuous action; choices of each component of a factored
    one."""
    names, act = (("act.low", "act.high") if continuous(k) else ()), k.dim("act")
    found: dict[str, Spec] = dict.fromkeys(names, ((act,), "float32"))
    return found | ({"act.choices": ((act,), "int64")} if k.dims.get("choices") else {})


def actions(k: Kernel) -> dict[str, Spec]:
    """The actions of all environments."""
    return {"act.action": action((k.dim("envs"),), k)}


def learner(k: Kernel, name: str, size: int, *, target: bool) -> dict[str, Spec]:
    """The arrays of a learning network: parameters, Adam's moments and steps, loss, and the learning
    rate (its schedule if a size `scheduled` is 1)."""
    suffixes = ("", ".target", ".m", ".v") if target else ("", ".m", ".v")
    return {
        **{f"learner.{name}{suffix}": ((size,), "float32") for suffix in suffixes},
        f"learner.{name}.steps": ((1,), "int64"),
        f"hyper.lr.{name}": ((4 if k.dims.get("scheduled") else 1,), "float64"),
        f"loss.{name}": ((1,), "float64"),
    }
