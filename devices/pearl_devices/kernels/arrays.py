"""The names of the arrays that kernels share, and shapes that several kinds have.

Everything that a run is made of lies in these arrays: parameters, optimiser moments, replay, the
environments' states, random counters, hyper-parameters. So a checkpoint is these arrays and nothing
else, and a variant of a kernel (native, torch) is another function over the same memory.

Sizes: N environments, O observation and A action components, C replay rows, k gradient steps a firing,
B batch size, P parameters of a network. Discrete actions are int64 without the A axis.

| name | shape | what |
|---|---|---|
| env.obs | N, O | what the policy acts on next (after an automatic reset) |
| env.state, env.elapsed, env.return | N, 8; N; N | native environments: state, steps and return of the running episode |
| episode.returns, episode.lengths, episode.count | 4096; 4096; 1 | ring of finished episodes, and how many there were |
| act.action | N[, A] | chosen actions; act.low, act.high (A): their bounds |
| act.choices | A | of a factored action, how many choices each component has; such actions are int64 (N, A), and have no bounds |
| explore | 4 | discrete actions: epsilon at first, at last, env steps between, env steps of random action at the start; continuous ones: noise standard deviation as a share of half the action range (0 for inference.sac, which draws from its policy), 0, 0, env steps of random action |
| step.obs, step.action, step.reward, step.next_obs, step.terminated, step.truncated | N, … | the transition of this step; next_obs is the true successor, not the reset; truncated has bit 1 (value 2) where the environment was started anew just before |
| replay.obs … replay.truncated | C, … | the same, stored; row = time · N + environment, modulo C |
| replay.frame, replay.depth, replay.ahead, replay.last, replay.last_row, replay.clock | C + (stack - 1) · N, F; …; N, F; ends, F; ends; 2 | instead of replay.obs and replay.next_obs where observations are stacks of frames of F uint8 (see `primitives.frames`); env.*, step.* and batch.* hold whole stacks, float32 of 0 … 255, flattened |
| replay.cursor | 2 | next row to write; rows filled |
| replay.tree | T | K-ary sum tree over priorities, root first |
| replay.priority | 3 | alpha; constant added to |td|; largest priority so far |
| replay.beta | 3 | first and last importance exponent; sample firings between |
| batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight, batch.index | k, B, … | reward is the n-step return; discount is gamma^m · (1 − terminated) for the m steps it spans |
| batch.td | k, B | absolute TD error of each sample |
| learner.X, learner.X.target, learner.X.m, learner.X.v | P | network X, its target (where it has one), Adam's moments; one flat vector, per layer the weights (in, out) row by row, then the biases; the actor of PPO and A2C then has the logarithm of the deviation of each component of a continuous action |
| learner.X.steps | 1 | steps of Adam that network X has taken |
| learners.I.X | as learner.X | of several learners what learner I has as its own, I from 1; the first has learner.X |
| gradient.I.X, gradient.I.loss.X, gradient.I.td | P; 1; B / learners | gradient of network X by learner I on its rows of the batch, with the loss and the absolute TD errors of these rows |
| mean.X | P | the mean of all learners' gradients |
| gradient.I.X.S, mean.X.S | P / learners | shard S of these, where the mean is computed in shards |
| learner.step | 1 | gradient steps done, or left out by target_kl |
| loss.X | 1 | the last loss of network X |
| policy.X | P | the copy that inference reads |
| act.log_prob, act.sample | N; N, A | of inference.ppo: log densities of the actions, and continuous ones as drawn, scaled to bounds of -1 and 1 and not clipped |
| rollout.obs … rollout.truncated, rollout.log_prob | T, N, … | on-policy algorithms: T vector steps; continuous actions as drawn |
| rollout.at | 1 | the vector step that is stored next |
| rollout.value, rollout.advantage, rollout.returns | T, N | values of the observations, advantages, and their sums |
| rollout.follows, rollout.judged | T, N; 2 | of n-step returns: values of the true successors where an episode or the rollout was cut; the vector step judged next, and its row. Where each vector step is learnt from as soon as it is judged, the n + 1 that are still to be read are kept, in a circle, and one of advantages and returns |
| learner.at, learner.X.sum | 2; P + 1 | there: the vector step learnt from next, and its row; the sum of network X's gradients so far, and of its losses |
| hyper.X | 1 or more | lr.X per network (with a schedule 4: first and last rate, steps of Adam between, 1 where it falls along half a cosine), adam (beta1, beta2, eps), tau, target_every, clip_norm (0: off), huber (0: half the squared error, else delta), discount; of update.td3 smoothing (noise standard deviation and its limit, as shares of half the action range); of update.sac target_entropy; of PPO and A2C gae_lambda, clip and value_clip (0: off), entropy and value_weight (their parts in the loss), normalise (1: advantages), target_kl (where it is given: gradient steps end before the policy is further from the one that acted), anneal (gradient steps over which the learning rates fall to 0; 0: they stay), rmsprop (decay, 0: Adam is used; constant in the root) |
| policy.q, learner.q.visits | states, actions | of the tabular algorithms: the table (float64), and how often each entry was updated; observations are then the numbers of states, and hyper.lr.q has the first step size and the power of the visits that it falls with |
| loop.more | 1 | iterations beyond the first that one call of iteration.* runs; once it has returned, those it has not begun |
| loop.stop | 2 | not 0: a call of gradient steps is to return after the one in hand; gradient steps done of the firing that is amid them |
| normalise.obs, normalise.reward | 2, O; 2, 1 | mean and variance of the observations, of the discounted return; normalise.obs.count and normalise.reward.count: of how many |
| normalise.return, normalise.options | N; 3 | discounted return so far; limit of what is normalised (0: none), constant in the variance, discount |
| rng.TASK | 2 | key of the task's random stream; firings done |
| evaluation.policy, evaluation.statistics | as policy.X; 2, O | of an evaluation, with R rows of the E episodes in lock-step: the copies of parameters and normalise.obs that it plays |
| evaluation.interface.X | as X | of an array X of a kernel of the user's own between environments and network: the copy that is played with |
| evaluation.obs, evaluation.state | R, O; R, 8 | of the episodes under way: observations as the environment gives them, flat; as env.state |
| evaluation.episode, evaluation.elapsed, evaluation.return | R | number, steps and return of the episode under way in each row |
| evaluation.first, evaluation.returns, evaluation.cut | E, 8; E; E | first states of native environments; returns of the episodes; 1 where one was cut at max_steps |
| evaluation.at | 2 | rows under way; episodes begun |
| evaluation.seed | 1 | the seed that a firing has its episodes from |
"""

from __future__ import annotations

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import Spec

EPISODES = 4096
"""Finished episodes that are kept."""
ANEW = 2
"""Added to a transition's `truncated` where its environment was started anew amid an episode: the
one before it is not its predecessor, though nothing says that it ended."""
STOP: dict[str, Spec] = {"loop.stop": ((2,), "int64")}
"""The word by which a call of gradient steps is cut short, and how far that one came."""
STATE = 8
"""Numbers that a native environment keeps of its state, at most."""


def transition(prefix: str, lead: tuple[int, ...], k: Kernel) -> dict[str, Spec]:
    """Observation, action, reward and next observation; lead: the axes before their own."""
    obs = k.dim("obs")
    return {
        f"{prefix}.obs": ((*lead, obs), "float32"),
        f"{prefix}.action": action(lead, k),
        f"{prefix}.reward": (lead, "float32"),
        f"{prefix}.next_obs": ((*lead, obs), "float32"),
    }


def action(lead: tuple[int, ...], k: Kernel) -> Spec:
    """Actions: discrete, continuous, or factored (a size `choices`, the sum over components)."""
    act = k.dim("act")
    return ((*lead, act) if act else lead, "float32" if continuous(k) else "int64")


def continuous(k: Kernel) -> int:
    """Components of a continuous action; 0 where actions are whole numbers."""
    return 0 if k.dims.get("choices") else k.dim("act")


def flags(prefix: str, rows: int) -> dict[str, Spec]:
    """Whether an episode ended with this row."""
    return {f"{prefix}.terminated": ((rows,), "uint8"), f"{prefix}.truncated": ((rows,), "uint8")}


def step(k: Kernel) -> dict[str, Spec]:
    """The transitions of one vector step."""
    n = k.dim("envs")
    return {**transition("step", (n,), k), **flags("step", n)}


def bounds(k: Kernel) -> dict[str, Spec]:
    """Least and largest value of each component of a continuous action; of a factored one, how many
    choices each has."""
    names, act = (("act.low", "act.high") if continuous(k) else ()), k.dim("act")
    found: dict[str, Spec] = dict.fromkeys(names, ((act,), "float32"))
    return found | ({"act.choices": ((act,), "int64")} if k.dims.get("choices") else {})


def actions(k: Kernel) -> dict[str, Spec]:
    """The actions of all environments."""
    return {"act.action": action((k.dim("envs"),), k)}


def learner(k: Kernel, name: str, size: int, *, target: bool) -> dict[str, Spec]:
    """A network that learns: parameters, Adam's moments and steps, learning rate (with a size
    `scheduled` a schedule of it) and loss."""
    suffixes = ("", ".target", ".m", ".v") if target else ("", ".m", ".v")
    return {
        **{f"learner.{name}{suffix}": ((size,), "float32") for suffix in suffixes},
        f"learner.{name}.steps": ((1,), "int64"),
        f"hyper.lr.{name}": ((4 if k.dims.get("scheduled") else 1,), "float64"),
        f"loss.{name}": ((1,), "float64"),
    }
