"""Counts the work of every kernel kind from first principles, and names the buffers it uses.

A multiply-add is two flops. A dense layer of widths i → o on a batch of B costs 2·B·i·o forward,
the same again for the gradient of its input and for the gradient of its weights. Adam costs 12
flops and moves four reads and three writes of four bytes a parameter, a target three flops, a read
and a write. Checked in the tests against hand sums and `torch.utils.flop_counter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pearl_devices.kernel import Arg, Dim, Kernel, Module

F32 = 4
ADAM_FLOPS, FOLLOW_FLOPS = 12, 3
ADAM_BYTES_READ, ADAM_BYTES_WRITTEN = 16, 12

# On-policy algorithms, counted from their formulas. For each discrete action or component of a
# continuous one, a draw and its log density (exp, uniform or normal, square, logarithms); ratio,
# clipping, value error and their gradients, a row of a minibatch; delta, advantage and return of a
# step; square, sum and scale of a gradient that is clipped, a parameter.
DRAW_FLOPS, ON_POLICY_LOSS_FLOPS, GAE_FLOPS, CLIP_FLOPS = 20, 40, 9, 3
ON_POLICY = ("ppo", "a2c")

Work = tuple[float, float, float, float]
"""flops, bytes in, bytes out, resident scratch bytes."""


def parameters(layers: tuple[int, ...]) -> int:
    """Number of weights and biases of a dense network with these widths."""
    return sum(i * o + o for i, o in pairwise(layers))


def size(kernel: Kernel, name: str | None = None) -> int:
    """Number of parameters of a network of `kernel`; without a name of the only one."""
    name = name or next(iter(kernel.networks), None)
    own = kernel.modules.get(name or "")
    return own.params if own else parameters(kernel.layers(name))


def forward_flops(layers: tuple[int, ...], batch: int) -> float:
    """Products and biases of one forward pass, plus one flop a hidden unit for its activation."""
    products = sum(2 * i * o + o for i, o in pairwise(layers))
    return float(batch * (products + sum(layers[1:-1])))


def backward_flops(layers: tuple[int, ...], batch: int) -> float:
    """Gradients of all weights and biases, and of the input of every layer but the first."""
    weights = sum(2 * i * o + o for i, o in pairwise(layers))
    return batch * weights + through_flops(layers[1:], batch)


def through_flops(layers: tuple[int, ...], batch: int) -> float:
    """Gradient of the network's input, its weights left alone."""
    return float(batch * sum(2 * i * o + i for i, o in pairwise(layers)))


def activations_bytes(layers: tuple[int, ...], batch: int) -> float:
    return float(F32 * batch * sum(layers))


Product = tuple[int, int, int]
"""A matrix product: rows m, inner size k, columns n; 2·m·k·n flops."""


def _forward_products(layers: tuple[int, ...], batch: int) -> list[Product]:
    return [(batch, i, o) for i, o in pairwise(layers)]


def _weight_products(layers: tuple[int, ...], batch: int) -> list[Product]:
    return [(i, batch, o) for i, o in pairwise(layers)]


def _through_products(layers: tuple[int, ...], batch: int) -> list[Product]:
    return [(batch, o, i) for i, o in pairwise(layers)]


@dataclass(frozen=True)
class Passes:
    """How often one gradient step runs one network, on average.

    forward: passes of a batch. backward: to its weights. through: to its input, not to its weights,
    as an actor learns through a critic. adam: steps of the optimiser. follow: moves of its target;
    target: whether it has one.
    """

    forward: float
    backward: float
    through: float = 0.0
    adam: float = 1.0
    follow: float = 1.0
    target: bool = True


def _dqn(k: Kernel) -> dict[str, Passes]:
    return {"q": Passes(3 if k.dim("double") else 2, 1)}


def _ddpg(k: Kernel) -> dict[str, Passes]:
    # The actor: target action, own action. The critic: target value, value, value of the own one.
    return {"actor": Passes(2, 1), "critic": Passes(3, 1, 1)}


def _td3(k: Kernel) -> dict[str, Passes]:
    late = 1 / k.dim("policy_delay")  # only every so many gradient steps
    return {
        "actor": Passes(1 + late, late, adam=late, follow=late),
        "critic1": Passes(2 + late, 1, late, follow=late),
        "critic2": Passes(2, 1, follow=late),
    }


def _sac(k: Kernel) -> dict[str, Passes]:
    return {
        "actor": Passes(2, 1, follow=0, target=False),
        "critic1": Passes(3, 1, 1),
        "critic2": Passes(3, 1, 1),
        "alpha": Passes(0, 0, follow=0, target=False),
    }


def _on_policy(k: Kernel) -> dict[str, Passes]:
    return dict.fromkeys(("actor", "critic"), Passes(1, 1, follow=0, target=False))


PASSES: Mapping[str, Callable[[Kernel], Mapping[str, Passes]]] = {
    "ppo": _on_policy,
    "a2c": _on_policy,
    "dqn": _dqn,
    "ddpg": _ddpg,
    "td3": _td3,
    "sac": _sac,
}
"""Algorithm → the passes of one gradient step, counted from its losses."""


def passes(kernel: Kernel) -> Mapping[str, Passes]:
    """The passes of one gradient step of an `update.*` or `learn.*` kernel, by network.

    Of an algorithm that is not in PASSES nobody has counted them. Then they are assumed: each
    network runs forward twice (its loss, its target) and backward once.
    """
    known = PASSES.get(kernel.kind.partition(".")[2])
    return known(kernel) if known else dict.fromkeys(kernel.networks, Passes(2, 1))


def passes_assumed(kernel: Kernel) -> bool:
    """Whether the work of this kernel rests on the assumption of `passes`."""
    family, _, algorithm = kernel.kind.partition(".")
    return family in ("update", "learn", "iteration") and algorithm not in PASSES


def _period(kernel: Kernel) -> int:
    """Gradient steps after which the passes repeat."""
    return kernel.dim("policy_delay") if kernel.kind.endswith(".td3") else 1


def products(kernel: Kernel) -> tuple[Product, ...]:
    """The matrix products of one forward pass (inference, rollout) or one gradient step (update,
    learn, iteration).

    With a delayed policy they are those of `policy_delay` gradient steps, so that they are whole.
    Empty for other kinds. They are the part of `flops` that a systolic array or BLAS computes.
    """
    family = kernel.kind.partition(".")[0]
    if family in ("inference", "rollout"):
        if kernel.modules:
            return ()
        return tuple(_forward_products(kernel.layers(), kernel.dim("envs")))
    if family not in ("update", "learn") and kernel.kind not in ("iteration.ppo", "iteration.a2c"):
        return ()
    batch, period, found = kernel.dim("batch"), _period(kernel), list[Product]()
    for name, runs in passes(kernel).items():
        if name in kernel.modules:
            continue  # its products are not known, only its flops
        layers = kernel.layers(name)
        found += _forward_products(layers, batch) * round(period * runs.forward)
        back = _weight_products(layers, batch) + _through_products(layers[1:], batch)
        found += back * round(period * runs.backward)
        found += _through_products(layers, batch) * round(period * runs.through)
    return tuple(found)


def product_rounds(kernel: Kernel) -> float:
    """How often one firing computes `products`, on average."""
    if kernel.kind.startswith("rollout."):
        return float(kernel.dim("horizon"))
    return kernel.dim("steps") / _period(kernel) if "steps" in kernel.dims else 1.0


def _action_bytes(k: Kernel) -> int:
    return F32 * k.dim("act") or 8  # a discrete action is one int64


def row_bytes(k: Kernel) -> int:
    """Bytes of one stored transition: two observations, action, reward, two flags; where it is made
    of frames one frame, and how many belong to its stack, instead of the observations."""
    stack = k.dims.get("stack", 0)
    seen = k.dim("obs") // k.dim("stack") + 1 if stack else 2 * F32 * k.dim("obs")
    return seen + F32 + _action_bytes(k) + 2


def tree_depth(k: Kernel) -> int:
    """Levels of the sum tree below its root: the steps of one draw."""
    capacity, fanout, levels = k.dim("capacity"), k.dim("fanout"), 1
    while capacity > fanout:
        capacity, levels = -(-capacity // fanout), levels + 1
    return levels


def _env_step(k: Kernel) -> Work:
    n, obs, act = k.dim("envs"), k.dim("obs"), _action_bytes(k)
    # To normalise: about 12 flops and 12 bytes read and written for each number (float32 and the
    # mean and variance of its column).
    numbers = n * (2 * obs * bool(k.dims.get("normalise_obs")))
    numbers += n * bool(k.dims.get("normalise_reward"))
    # About 60 flops a state variable: classic control with a sine, a cosine and two quotients.
    return (
        60.0 * n * obs + 12.0 * numbers,
        float(n * ((8 + F32) * obs + act) + 12 * numbers),  # state in float64, observation, action
        # Both observations, the next one, reward, flags.
        float(n * ((8 + 3 * F32) * obs + act + 6) + F32 * numbers),
        0.0,
    )


def _inference(k: Kernel) -> Work:
    layers, n = k.layers(), k.dim("envs")
    own = next(iter(k.modules.values()), None)
    return (
        n * own.flops if own else forward_flops(layers, n),
        float(F32 * (size(k) + n * layers[0])),
        float(F32 * n * layers[-1]),
        float(F32 * n * own.numbers) if own else activations_bytes(layers, n),
    )


def _replay_insert(k: Kernel) -> Work:
    n, row = k.dim("envs"), row_bytes(k)
    tree = n * tree_depth(k) * k.dim("fanout") if k.dim("prioritised") else 0
    nodes = n * (tree_depth(k) + 1) if k.dim("prioritised") else 0
    return float(tree), float(n * row + F32 * tree), float(n * row + F32 * nodes), 0.0


def _replay_sample(k: Kernel) -> Work:
    draws = k.dim("batch") * k.dim("steps")
    row = row_bytes(k) + 6 * (k.dim("n_step") - 1)  # of the rows after it, reward and flags
    whole = F32 * (2 * k.dim("obs") + 1) + _action_bytes(k) + 2
    if k.dims.get("stack"):  # as many frames as in its stack, and one more
        row += k.dim("obs")
    tree = draws * tree_depth(k) * k.dim("fanout") if k.dim("prioritised") else 0
    return (
        float(tree + 4 * draws),
        float(draws * row + F32 * tree),
        float(draws * (whole + 14)),  # discount, weight and index instead of the flags
        0.0,
    )


def _replay_update(k: Kernel) -> Work:
    draws = k.dim("batch") * k.dim("steps")
    tree = draws * tree_depth(k) * k.dim("fanout")
    nodes = draws * (tree_depth(k) + 1)
    # About 30 flops for the power of a priority; an index of eight bytes and a TD error each.
    return float(tree + 30 * draws), float(F32 * tree + 12 * draws), float(F32 * nodes), 0.0


def _update(k: Kernel) -> Work:
    batch, steps = k.dim("batch"), k.dim("steps")
    flops = read = written = resident = 0.0
    for name, runs in passes(k).items():
        layers, own, params = k.layers(name), k.modules.get(name), size(k, name)
        if own:  # assumed: each of the two gradients costs what a forward pass costs
            once = batch * own.flops
            flops += (runs.forward + 2 * runs.backward + runs.through) * once
            stored = float(F32 * batch * own.numbers)
        else:
            back = backward_flops(layers, batch)
            flops += runs.forward * forward_flops(layers, batch) + runs.backward * back
            flops += runs.through * through_flops(layers, batch)
            stored = activations_bytes(layers, batch)
        flops += (ADAM_FLOPS * runs.adam + FOLLOW_FLOPS * runs.follow) * params
        read += (ADAM_BYTES_READ * runs.adam + F32 * runs.target) * params
        written += (ADAM_BYTES_WRITTEN * runs.adam + F32 * runs.follow) * params
        resident += 4 * stored + F32 * params
    row = F32 * (2 * k.dim("obs") + 3) + _action_bytes(k)
    return (
        steps * flops,
        float(steps * (read + batch * row)),
        float(steps * (written + F32 * batch)),
        resident,
    )


def _param_sync(k: Kernel) -> Work:
    size = float(F32 * k.dim("params"))
    return 0.0, size, size, 0.0


ACTING: Mapping[str, tuple[str, str]] = {
    "dqn": ("q", "dqn"),
    "ddpg": ("actor", "ddpg"),
    "td3": ("actor", "ddpg"),
    "sac": ("actor", "sac"),
}
"""Algorithm → the network that acts, and the kind of its inference."""


def parts(k: Kernel) -> tuple[tuple[Kernel, int], ...]:
    """The kernels that a fused one runs as one call, each with its firings; empty for others.

    learn.*: replay_sample, update.* and, prioritised, replay_update, each for all its gradient
    steps. iteration.*: inference.*, env_step, replay_insert, learn.* and param_sync.
    """
    family, _, name = k.kind.partition(".")
    if name in ON_POLICY and family in ("rollout", "iteration"):
        return _on_policy_parts(k, family, name)
    if family == "learn":
        tail = ("replay_update",) if k.dim("prioritised") else ()
        kinds = ("replay_sample", f"update.{name}", *tail)
        return tuple((kernel(kind, k.dims), 1) for kind in kinds)
    if family != "iteration":
        return ()
    network, how = ACTING[name]
    vector_steps = k.dim("vector_steps")
    acting = {n: k.dims[n] for n in ("envs", "obs", "act", network, "duelling") if n in k.dims}
    size = parameters(k.layers(network))
    return (
        (kernel(f"inference.{how}", acting), vector_steps),
        (kernel("env_step", k.dims, program=k.program, args=k.args), vector_steps),
        (kernel("replay_insert", k.dims), vector_steps),
        (kernel(f"learn.{name}", k.dims), 1),
        (kernel("param_sync", args={"network": network}, params=size), 1),
    )


def cuts(k: Kernel) -> tuple[tuple[tuple[Kernel, int], ...], ...]:
    """The ways to cut a fused kernel into others: `parts`, and an iteration of PPO or A2C with its
    whole rollout in one."""
    family, _, name = k.kind.partition(".")
    if family != "iteration" or name not in ON_POLICY:
        return (parts(k),) if parts(k) else ()
    acting = {n: k.dims[n] for n in ("envs", "obs", "act", "horizon", "tanh", "actor")}
    rollout = kernel("rollout.ppo", acting, program=k.program, args=k.args)
    return parts(k), ((rollout, 1), *parts(k)[len(parts(rollout)) :])


def _on_policy_parts(k: Kernel, family: str, name: str) -> tuple[tuple[Kernel, int], ...]:
    """The same of rollout.* and iteration.* of PPO and A2C."""
    steps, args = k.dim("horizon"), {"network": "actor+critic"}
    acting = {n: k.dims[n] for n in ("envs", "obs", "act", "tanh", "actor")}
    rollout = (
        (kernel("inference.ppo", acting), steps),
        (kernel("env_step", k.dims, program=k.program, args=k.args), steps),
        (kernel("rollout_insert", k.dims), steps),
    )
    if family == "rollout":
        return rollout
    sizes = {"actor": parameters(k.layers("actor")) + k.dim("act")}
    sizes["critic"] = parameters(k.layers("critic"))
    sync = kernel("param_sync", sizes, args=args, params=sum(sizes.values()))
    judging = {n: size for n, size in k.dims.items() if n != "actor"}
    return (
        *rollout,
        (kernel("gae", judging), 1),
        (kernel(f"update.{name}", k.dims), 1),
        (sync, 1),
    )


def _fused(k: Kernel) -> Work:
    """The sum over the parts; scratch stays allocated for all of them."""
    flops = read = written = resident = 0.0
    for part, firings in parts(k):
        flops += firings * part.flops
        read += firings * part.bytes_in
        written += firings * part.bytes_out
        resident += part.resident_bytes
    return flops, read, written, resident


def _tabular(k: Kernel) -> Work:
    # A row of the table read and one entry written for each environment; about 10 flops beside the
    # comparisons. Choosing draws and compares likewise.
    n, actions = k.dim("envs"), k.dim("actions")
    transition = F32 * (2 * k.dim("obs") + 1) + 8 + 2
    return float(n * (actions + 10)), float(n * (8 * actions + transition)), float(24 * n), 0.0


def _choices(k: Kernel) -> int:
    """Discrete actions, or components of a continuous one."""
    return k.layers("actor")[-1]


def _draw(k: Kernel) -> Work:
    flops, read, written, resident = _inference(k)
    n = k.dim("envs")
    more = F32 + (F32 * k.dim("act") or 8)  # density, and what was drawn
    return flops + DRAW_FLOPS * n * _choices(k), read, written + n * more, resident


def _rollout_insert(k: Kernel) -> Work:
    moved = float(k.dim("envs") * (row_bytes(k) + F32))
    return 0.0, moved, moved, 0.0


def _gae(k: Kernel) -> Work:
    layers, envs = k.layers(), k.dim("envs")
    rows = envs * k.dim("horizon")
    # Values of every row, and of what follows the last ones.
    return (
        forward_flops(layers, rows + envs) + GAE_FLOPS * rows,
        float(F32 * parameters(layers) + rows * (F32 * (layers[0] + 1) + 2)),
        float(3 * F32 * rows),
        activations_bytes(layers, min(rows, 128)),
    )


def _rollout_update(k: Kernel) -> Work:
    """All gradient steps on a rollout; their number is `steps`."""
    flops, _, _, resident = _update(k)
    rows, steps = k.dim("batch") * k.dim("steps"), k.dim("steps")
    size = sum(parameters(k.layers(name)) for name in ("actor", "critic"))
    flops += rows * (ON_POLICY_LOSS_FLOPS + DRAW_FLOPS * _choices(k)) + CLIP_FLOPS * steps * size
    row = F32 * (k.dim("obs") + 4) + _action_bytes(k)  # log density, value, advantage, return
    read = float(rows * row + steps * ADAM_BYTES_READ * size)
    return flops, read, float(steps * ADAM_BYTES_WRITTEN * size), resident


KINDS: Mapping[str, Callable[[Kernel], Work]] = {
    "inference.ppo": _draw,
    "rollout_insert": _rollout_insert,
    "gae": _gae,
    "rollout.ppo": _fused,
    "tabular.choose": _tabular,
    "tabular.q_learning": _tabular,
    "tabular.sarsa": _tabular,
    "env_step": _env_step,
    "inference.dqn": _inference,
    "inference.ddpg": _inference,
    "inference.sac": _inference,
    "replay_insert": _replay_insert,
    "replay_sample": _replay_sample,
    "replay_update": _replay_update,
    "param_sync": _param_sync,
    **{f"update.{name}": _update for name in PASSES if name not in ON_POLICY},
    **{f"learn.{name}": _fused for name in ACTING},
    **{f"iteration.{name}": _fused for name in ACTING},
    **{f"update.{name}": _rollout_update for name in ON_POLICY},
    **{f"iteration.{name}": _fused for name in ON_POLICY},
}
"""Kernel kind → its work. `learn.*` fuses sample, update, priorities of `steps` gradient steps,
`iteration.*` all of one iteration (see `parts`),
`rollout.*` acting, env steps and their insertion, `iteration.*` a whole iteration."""

OPEN: Mapping[str, Callable[[Kernel], Work]] = {"inference": _inference, "update": _update}
"""Families that an algorithm of the user's own may have a kind of, under its own name."""


def kernel(
    kind: str,
    sizes: Mapping[str, Dim] | None = None,
    /,
    *,
    program: str | None = None,
    args: Mapping[str, Arg] | None = None,
    modules: Mapping[str, Module] | None = None,
    **dims: Dim,
) -> Kernel:
    """A `Kernel` of `kind` with its work counted; an unknown kind is a KeyError naming all kinds.

    Its sizes are `sizes` and `dims` together. By kind (integers unless said; `act` is 0 for
    discrete actions):
    env_step: envs, obs, act; normalise_obs and normalise_reward (1) where it normalises
    (`primitives.normalise`); states where observations are the numbers of so many states.
    tabular.*: envs, obs (1), act (0), states, actions. inference.*: envs, obs, act, one network
    (widths) under its own name.
    replay_insert: envs, obs, act, capacity, prioritised (0 or 1), fanout; of frames
    (`primitives.frames`) also stack, apart (environments of all groups) and ends, as replay_sample.
    replay_sample: batch, steps, n_step, envs, obs, act, capacity, prioritised, fanout.
    replay_update: batch, steps, capacity, fanout.
    update.*: batch, steps, obs, act, its networks (widths) under their own names;
    update.dqn has the network q and double (0 or 1), and like inference.dqn may have duelling (1: q
    has an output more than there are actions, see `primitives.dqn`), update.ddpg actor and critic,
    update.td3 actor, critic1, critic2 and policy_delay, update.sac actor (2·A outputs), critic1,
    critic2 and alpha, (0, 1). param_sync: params, and where `args` name two networks as X+Y the
    sizes X and Y of both. learn.*: those of its parts together. iteration.*: likewise, with
    vector_steps, the firings of acting; its program is the environment.
    Of PPO and A2C: inference.ppo: envs, obs, act, tanh (hidden layers of tanh: 0 or 1), actor.
    rollout_insert: envs, obs, act, horizon (vector steps of a rollout). gae: envs, obs, act,
    horizon, tanh, critic. update.ppo, update.a2c: envs, obs, act, horizon, tanh, actor, critic,
    epochs, batch (of a minibatch), steps (all epochs together). rollout.ppo, iteration.ppo,
    iteration.a2c: those of their parts together.

    `inference.NAME` and `update.NAME` of any other name are an algorithm of the user's own, with
    any networks; see `passes` for what is assumed of its work.
    """
    family, _, name = kind.partition(".")
    count = KINDS.get(kind) or (OPEN.get(family) if name else None)
    if count is None:
        raise KeyError(
            f"no kernel kind {kind!r}; there are {sorted(KINDS)}, and "
            f"{' and '.join(f'{f}.NAME' for f in OPEN)} of any algorithm"
        )
    dims = {**(sizes or {}), **dims}
    bare = Kernel(kind, dims, program=program, args=args or {}, modules=modules or {})
    flops, read, written, resident = count(bare)
    return replace(bare, flops=flops, bytes_in=read, bytes_out=written, resident_bytes=resident)
