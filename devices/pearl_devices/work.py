"""Counts the work of every kernel kind from first principles, and names the buffers it uses.

A multiply-add is two flops. A dense layer of widths i → o on a batch of B costs 2·B·i·o forward,
the same again for the gradient of its input and for the gradient of its weights. Adam costs 12
flops and moves four reads and three writes of four bytes a parameter, a target three flops, a read
and a write. Checked in the tests against hand sums and `torch.utils.flop_counter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pearl_devices.kernel import Arg, Dim, Kernel

F32 = 4
ADAM_FLOPS, FOLLOW_FLOPS = 12, 3
ADAM_BYTES_READ, ADAM_BYTES_WRITTEN = 16, 12

Work = tuple[float, float, float, float]
"""flops, bytes in, bytes out, resident scratch bytes."""


def parameters(layers: tuple[int, ...]) -> int:
    """Number of weights and biases of a dense network with these widths."""
    return sum(i * o + o for i, o in pairwise(layers))


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


PASSES: Mapping[str, Callable[[Kernel], Mapping[str, Passes]]] = {
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
    return family in ("update", "learn") and algorithm not in PASSES


def _period(kernel: Kernel) -> int:
    """Gradient steps after which the passes repeat."""
    return kernel.dim("policy_delay") if kernel.kind.endswith(".td3") else 1


def products(kernel: Kernel) -> tuple[Product, ...]:
    """The matrix products of one forward pass (inference) or one gradient step (update, learn).

    With a delayed policy they are those of `policy_delay` gradient steps, so that they are whole.
    Empty for other kinds. They are the part of `flops` that a systolic array or BLAS computes.
    """
    family = kernel.kind.partition(".")[0]
    if family == "inference":
        return tuple(_forward_products(kernel.layers(), kernel.dim("envs")))
    if family not in ("update", "learn"):
        return ()
    batch, period, found = kernel.dim("batch"), _period(kernel), list[Product]()
    for name, runs in passes(kernel).items():
        layers = kernel.layers(name)
        found += _forward_products(layers, batch) * round(period * runs.forward)
        back = _weight_products(layers, batch) + _through_products(layers[1:], batch)
        found += back * round(period * runs.backward)
        found += _through_products(layers, batch) * round(period * runs.through)
    return tuple(found)


def product_rounds(kernel: Kernel) -> float:
    """How often one firing computes `products`, on average."""
    return kernel.dim("steps") / _period(kernel) if "steps" in kernel.dims else 1.0


def _action_bytes(k: Kernel) -> int:
    return F32 * k.dim("act") or 8  # a discrete action is one int64


def row_bytes(k: Kernel) -> int:
    """Bytes of one stored transition: two observations, action, reward, two flags."""
    return F32 * (2 * k.dim("obs") + 1) + _action_bytes(k) + 2


def tree_depth(k: Kernel) -> int:
    """Levels of the sum tree below its root: the steps of one draw."""
    capacity, fanout, levels = k.dim("capacity"), k.dim("fanout"), 1
    while capacity > fanout:
        capacity, levels = -(-capacity // fanout), levels + 1
    return levels


def _env_step(k: Kernel) -> Work:
    n, obs, act = k.dim("envs"), k.dim("obs"), _action_bytes(k)
    # About 60 flops a state variable: classic control with a sine, a cosine and two quotients.
    return (
        60.0 * n * obs,
        float(n * ((8 + F32) * obs + act)),  # state in float64, observation, action
        float(n * ((8 + 3 * F32) * obs + act + 6)),  # both observations, the next, reward, flags
        0.0,
    )


def _inference(k: Kernel) -> Work:
    layers, n = k.layers(), k.dim("envs")
    return (
        forward_flops(layers, n),
        float(F32 * (parameters(layers) + n * layers[0])),
        float(F32 * n * layers[-1]),
        activations_bytes(layers, n),
    )


def _replay_insert(k: Kernel) -> Work:
    n, row = k.dim("envs"), row_bytes(k)
    tree = n * tree_depth(k) * k.dim("fanout") if k.dim("prioritised") else 0
    nodes = n * (tree_depth(k) + 1) if k.dim("prioritised") else 0
    return float(tree), float(n * row + F32 * tree), float(n * row + F32 * nodes), 0.0


def _replay_sample(k: Kernel) -> Work:
    draws = k.dim("batch") * k.dim("steps")
    row = row_bytes(k) + 6 * (k.dim("n_step") - 1)  # of the rows after it, reward and flags
    tree = draws * tree_depth(k) * k.dim("fanout") if k.dim("prioritised") else 0
    return (
        float(tree + 4 * draws),
        float(draws * row + F32 * tree),
        float(draws * (row_bytes(k) + 14)),  # discount, weight and index instead of the flags
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
        layers = k.layers(name)
        size = parameters(layers)
        back = backward_flops(layers, batch)
        flops += runs.forward * forward_flops(layers, batch) + runs.backward * back
        flops += runs.through * through_flops(layers, batch)
        flops += (ADAM_FLOPS * runs.adam + FOLLOW_FLOPS * runs.follow) * size
        read += (ADAM_BYTES_READ * runs.adam + F32 * runs.target) * size
        written += (ADAM_BYTES_WRITTEN * runs.adam + F32 * runs.follow) * size
        resident += 4 * activations_bytes(layers, batch) + F32 * size
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


def _learn(k: Kernel) -> Work:
    parts = [_replay_sample(k), _update(k)] + ([_replay_update(k)] if k.dim("prioritised") else [])
    flops, read, written, resident = (sum(column) for column in zip(*parts, strict=True))
    return flops, read, written, resident


KINDS: Mapping[str, Callable[[Kernel], Work]] = {
    "env_step": _env_step,
    "inference.dqn": _inference,
    "inference.ddpg": _inference,
    "inference.sac": _inference,
    "replay_insert": _replay_insert,
    "replay_sample": _replay_sample,
    "replay_update": _replay_update,
    "param_sync": _param_sync,
    **{f"update.{name}": _update for name in PASSES},
    **{f"learn.{name}": _learn for name in PASSES},
}
"""Kernel kind → its work. `learn.*` fuses sample, update, priorities of `steps` gradient steps."""

OPEN: Mapping[str, Callable[[Kernel], Work]] = {"inference": _inference, "update": _update}
"""Families that an algorithm of the user's own may have a kind of, under its own name."""


def kernel(
    kind: str,
    sizes: Mapping[str, Dim] | None = None,
    /,
    *,
    program: str | None = None,
    args: Mapping[str, Arg] | None = None,
    **dims: Dim,
) -> Kernel:
    """A `Kernel` of `kind` with its work counted; an unknown kind is a KeyError naming all kinds.

    Its sizes are `sizes` and `dims` together. By kind (integers unless said; `act` is 0 for
    discrete actions):
    env_step: envs, obs, act. inference.*: envs, obs, act, one network (widths) under its own name.
    replay_insert: envs, obs, act, capacity, prioritised (0 or 1), fanout. replay_sample: batch,
    steps, n_step, envs, obs, act, capacity, prioritised, fanout. replay_update: batch, steps,
    capacity, fanout. update.*: batch, steps, obs, act, its networks (widths) under their own names;
    update.dqn has the network q and double (0 or 1), and like inference.dqn may have duelling (1: q
    has an output more than there are actions, see `primitives.dqn`), update.ddpg actor and critic,
    update.td3 actor, critic1, critic2 and policy_delay, update.sac actor (2·A outputs), critic1,
    critic2 and alpha, (0, 1). param_sync: params. learn.*: those of its parts together.

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
    bare = Kernel(kind, dims, program=program, args=args or {})
    flops, read, written, resident = count(bare)
    return Kernel(kind, dims, flops, read, written, resident, program, args or {})
