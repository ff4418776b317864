"""Counts the work of every kernel kind from first principles, and names the buffers it uses.

A multiply-add is two flops. A dense layer of widths i → o on a batch of B costs 2·B·i·o forward,
the same again for the gradient of its input and for the gradient of its weights. Adam costs 12
flops and moves four reads and three writes of four bytes a parameter. Checked in the tests against
hand sums and `torch.utils.flop_counter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from pearl_devices.kernel import Arg, Dim, Kernel

F32 = 4
ADAM_FLOPS = 12
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


def backward_flops(layers: tuple[int, ...], batch: int, *, inputs: bool = False) -> float:
    """Gradients of all weights and biases, and of the input of every layer but the first.

    inputs: the first layer's input too, as an actor's gradient through a critic needs it.
    """
    pairs = list(pairwise(layers))
    weights = sum(2 * i * o + o for i, o in pairs)
    through = sum(2 * i * o + i for i, o in (pairs if inputs else pairs[1:]))
    return float(batch * (weights + through))


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


def products(kernel: Kernel) -> tuple[Product, ...]:
    """The matrix products of one forward pass (inference) or one gradient step (update, learn).

    Empty for other kinds. They are the part of `flops` that a systolic array or BLAS computes.
    """
    family, _, algorithm = kernel.kind.partition(".")
    if family == "inference":
        return tuple(_forward_products(kernel.layers(), kernel.dim("envs")))
    if family not in ("update", "learn"):
        return ()
    batch = kernel.dim("batch")
    if algorithm == "ddpg":
        actor, critic = kernel.layers("actor"), kernel.layers("critic")
        return (
            *_forward_products(actor, batch) * 2,  # target action, own action
            *_forward_products(critic, batch) * 3,  # target value, value, value of the own action
            *_weight_products(critic, batch),
            *_through_products(critic[1:], batch),
            *_through_products(critic, batch),  # from the value to the own action
            *_weight_products(actor, batch),
            *_through_products(actor[1:], batch),
        )
    layers = kernel.layers()
    return (
        *_forward_products(layers, batch) * (3 if kernel.dim("double") else 2),
        *_weight_products(layers, batch),
        *_through_products(layers[1:], batch),
    )


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


def _update_dqn(k: Kernel) -> Work:
    layers, batch, steps = k.layers(), k.dim("batch"), k.dim("steps")
    size = parameters(layers)
    forwards = 3 if k.dim("double") else 2
    flops = forwards * forward_flops(layers, batch) + backward_flops(layers, batch)
    flops += (ADAM_FLOPS + 2) * size
    row = F32 * (2 * layers[0] + 5)
    return (
        steps * flops,
        float(steps * ((ADAM_BYTES_READ + F32) * size + batch * row)),
        float(steps * ((ADAM_BYTES_WRITTEN + F32) * size + F32 * batch)),
        4 * activations_bytes(layers, batch) + F32 * size,
    )


def _update_ddpg(k: Kernel) -> Work:
    actor, critic = k.layers("actor"), k.layers("critic")
    batch, steps = k.dim("batch"), k.dim("steps")
    size = parameters(actor) + parameters(critic)
    flops = (
        2 * forward_flops(actor, batch)  # target action, own action
        + 3 * forward_flops(critic, batch)  # target value, value, value of the own action
        + backward_flops(critic, batch)
        + backward_flops(actor, batch)
        + backward_flops(critic, batch, inputs=True)
        - sum(2 * batch * i * o + batch * o for i, o in pairwise(critic))  # only to its input
        + (ADAM_FLOPS + 3) * size
    )
    row = F32 * (2 * actor[0] + actor[-1] + 3)
    scratch = 4 * (activations_bytes(actor, batch) + activations_bytes(critic, batch))
    return (
        steps * flops,
        float(steps * ((ADAM_BYTES_READ + F32) * size + batch * row)),
        float(steps * ((ADAM_BYTES_WRITTEN + F32) * size + F32 * batch)),
        scratch + F32 * size,
    )


def _param_sync(k: Kernel) -> Work:
    size = float(F32 * k.dim("params"))
    return 0.0, size, size, 0.0


def _sum_of(*parts: Callable[[Kernel], Work]) -> Callable[[Kernel], Work]:
    def total(k: Kernel) -> Work:
        works = [part(k) for part in parts if part is not _replay_update or k.dim("prioritised")]
        flops, read, written, resident = (sum(column) for column in zip(*works, strict=True))
        return flops, read, written, resident

    return total


KINDS: Mapping[str, Callable[[Kernel], Work]] = {
    "env_step": _env_step,
    "inference.dqn": _inference,
    "inference.ddpg": _inference,
    "replay_insert": _replay_insert,
    "replay_sample": _replay_sample,
    "replay_update": _replay_update,
    "update.dqn": _update_dqn,
    "update.ddpg": _update_ddpg,
    "param_sync": _param_sync,
    "learn.dqn": _sum_of(_replay_sample, _update_dqn, _replay_update),
    "learn.ddpg": _sum_of(_replay_sample, _update_ddpg, _replay_update),
}
"""Kernel kind → its work. `learn.*` fuses sample, update, priorities of `steps` gradient steps."""


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
    env_step: envs, obs, act. inference.*: envs, layers (widths). replay_insert: envs, obs, act,
    capacity, prioritised (0 or 1), fanout. replay_sample: batch, steps, n_step, envs, obs, act,
    capacity, prioritised, fanout. replay_update: batch, steps, capacity, fanout. update.dqn:
    layers, batch, steps, double. update.ddpg: actor, critic (widths), batch, steps. param_sync:
    params. learn.*: those of its parts together.
    """
    if kind not in KINDS:
        raise KeyError(f"no kernel kind {kind!r}; there are {sorted(KINDS)}")
    dims = {**(sizes or {}), **dims}
    bare = Kernel(kind, dims, program=program, args=args or {})
    flops, read, written, resident = KINDS[kind](bare)
    return Kernel(kind, dims, flops, read, written, resident, program, args or {})
