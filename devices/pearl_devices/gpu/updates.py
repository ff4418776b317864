"""The variant `fused`: all gradient steps of a firing in one launch of one block.

The block keeps its data in shared memory as far as they fit, in the order of `_place`; the others
lie in scratch memory of the device. Sizes are constants of the programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pearl_devices.base import Call, UnsupportedError
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.program import Program
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.fused import DEEPEST, misfit
from pearl_devices.primitives import LOG_STD

STATIC_BYTES = 4096
"""Most shared memory that the sources declare themselves."""
STAND_IN_BYTES = 227 * 1024
"""Shared memory of a block if the GPU gives none: that of the H100 (NVIDIA, "CUDA C++ Programming
Guide", compute capability 9.0)."""
ROWS = (64, 32, 16)
"""Row counts of a pass, in order of preference; the first that leaves room for the parameters is
used."""

Pieces = Mapping[str, int]
"""Name in the source → number of floats."""


def _up4(count: int) -> int:
    return -(-count // 4) * 4


def _pitch(width: int) -> int:
    """Floats from one row of a matrix to the next, as in block_nets.cuh."""
    return _up4(width) + 4 * (_up4(width) // 4 % 2 == 0)


def _size(layers: Sequence[int]) -> int:
    """Return the number of floats of padded parameters."""
    return sum((_up4(i) + 1) * _pitch(o) for i, o in pairwise(layers))


def _flat(layers: Sequence[int]) -> int:
    return sum((i + 1) * o for i, o in pairwise(layers))


def _acts(layers: Sequence[int], rows: int) -> int:
    """Floats of the outputs of all layers."""
    return rows * sum(_pitch(o) for o in layers[1:])


def _net(name: str, layers: Sequence[int], rows: int) -> dict[str, int]:
    """Constants that describe a network."""
    widths = (*layers, *[0] * (DEEPEST + 1 - len(layers)))
    return {
        **{f"{name}_{i}": width for i, width in enumerate(widths)},
        f"{name}_SIZE": _size(layers),
        f"{name}_ACTS_SIZE": _acts(layers, rows),
    }


def _learns(name: str, layers: Sequence[int], *, target: bool = True, copies: int = 1) -> Pieces:
    """The arrays of a learning network beyond its parameters."""
    flat, size = copies * _flat(layers), copies * _size(layers)
    return {
        f"{name}_GRAD": size,
        **({f"{name}_TARGET": size} if target else {}),
        f"{name}_M": flat,
        f"{name}_V": flat,
    }


def _place(pieces: Pieces, limit: int) -> tuple[dict[str, int], int, int]:
    """Constants with the place of each piece, floats of shared memory, floats of scratch memory.

    In the given order, each piece goes to shared memory if it still fits there.
    """
    constants: dict[str, int] = {}
    used = {1: 0, 0: 0}
    for name, count in pieces.items():
        floats = _up4(count)
        shared = int(4 * (used[1] + floats) <= limit)
        constants |= {f"{name}_SHARED": shared, f"{name}_AT": used[shared]}
        used[shared] += floats
    return constants, used[1], used[0]


def _limit(driver: Driver) -> int:
    """Bytes of dynamic shared memory that a block may use."""
    if driver.device.type == "cuda":
        import torch

        properties: Any = torch.cuda.get_device_properties(driver.device)
        return int(properties.shared_memory_per_block_optin) - STATIC_BYTES
    return STAND_IN_BYTES - STATIC_BYTES


def _bind_launch(
    kernel: Kernel,
    driver: Driver,
    pieces: Any,
    constants: Mapping[str, int],
    nets: Mapping[str, Sequence[int]],
    arguments: Iterable[Any],
    last: Sequence[float],
    source: str = "",
) -> Call:
    """The launch of `update_X` in X.cu; X is the algorithm unless `source` gives another.

    pieces: rows of a pass → (pieces of a pass, then parameters; further pieces for shared memory).
    nets: name in the source → widths. last: arguments after the scratch memory.

    Raises:
        UnsupportedError: one block cannot take these networks.
    """
    import torch

    if wrong := misfit(kernel):
        raise UnsupportedError(
            f"kernel {kernel.kind}, variant 'fused': {wrong}; one block of GPU threads does all of "
            "it, so take the variant 'eager' instead"
        )
    limit, batch = _limit(driver), kernel.dim("batch")
    choices = [min(rows, _up4(batch)) for rows in ROWS]
    needed = {rows: 4 * sum(map(_up4, pieces(rows)[0].values())) for rows in choices}
    rows = next((rows for rows in choices if needed[rows] <= limit), choices[-1])
    first, rest = pieces(rows)
    places, shared, scratch = _place({**first, **rest}, limit)
    widest = max(width for layers in nets.values() for width in layers[1:])
    described = {n: c for name, layers in nets.items() for n, c in _net(name, layers, rows).items()}
    name = source or kernel.kind.partition(".")[2]
    threads = 256 if widest <= 64 else 512
    program = Program(
        f"{name}.cu",
        {
            "THREADS": threads,
            "ROWS": rows,
            "BATCH": batch,
            "SHARED_FLOATS": shared,
            "SCRATCH_FLOATS": scratch,
            **constants,
            **described,
            **places,
        },
    )
    room = torch.zeros(max(scratch, 1), dtype=torch.float32, device=driver.device)
    return driver.prepare_launch(
        program, f"update_{name}", (1,), (threads,), (*arguments, room, *last), 4 * shared
    )


def _stored(name: str, arrays: Arrays, *, target: bool = True) -> list[Any]:
    """The arguments of STORED in block_nets.cuh."""
    parts = ("", ".target", ".m", ".v", ".steps") if target else ("", ".m", ".v", ".steps")
    learner = [arrays[f"learner.{name}{part}"] for part in parts]
    return [*learner, arrays[f"hyper.lr.{name}"], arrays[f"loss.{name}"]]


def _batch(arrays: Arrays) -> list[Any]:
    names = ("obs", "action", "reward", "next_obs", "discount", "weight", "td")
    return [arrays[f"batch.{name}"] for name in names]


def _given(arrays: Arrays) -> list[Any]:
    """The arguments of GIVEN in critics.cuh."""
    return [*_batch(arrays), arrays["act.low"], arrays["act.high"]]


def _rules(arrays: Arrays) -> list[Any]:
    names = ("adam", "tau", "target_every", "clip_norm", "huber")
    return [arrays["learner.step"], *(arrays[f"hyper.{name}"] for name in names)]


def bind_dqn(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind update.dqn: `steps` gradient steps on batch.*, absolute TD errors to batch.td."""
    layers = kernel.layers()

    def pieces(rows: int) -> tuple[Pieces, Pieces]:
        inputs = rows * _pitch(layers[0])
        first = {"X": inputs, "AHEAD": inputs, "ACTS": _acts(layers, rows)}
        return {**first, "Q_PARAMS": _size(layers)}, _learns("Q", layers)

    constants = {
        "DOUBLE": kernel.dim("double"),
        "DUELLING": int("duelling" in kernel.dims and kernel.dim("duelling")),
    }
    arguments = [*_batch(arrays), *_stored("q", arrays), *_rules(arrays)]
    return _bind_launch(
        kernel, driver, pieces, constants, {"Q": layers}, arguments, [kernel.dim("steps")]
    )


def _actor_and_critics(
    kernel: Kernel,
    driver: Driver,
    constants: Mapping[str, int],
    arguments: Iterable[Any],
    last: Sequence[float],
    critics: Sequence[str],
    *,
    actor_target: bool = True,
    passes: int = 1,
) -> Call:
    """Bind like `_bind_launch`. critics: names of the critics, which are adjacent in memory.
    passes: number of critic passes whose outputs are stored at the same time."""
    actor, critic, copies = kernel.layers("actor"), kernel.layers(critics[0]), len(critics)

    def pieces(rows: int) -> tuple[Pieces, Pieces]:
        first = {
            "X": rows * _pitch(actor[0]),
            "JOINED": rows * _pitch(critic[0]),
            "SLOPE": passes * rows * _pitch(critic[0] - actor[0]),
            "CRITIC_ACTS": passes * _acts(critic, rows),
            "ACTOR_ACTS": _acts(actor, rows),
            "CRITIC_PARAMS": copies * _size(critic),
            "ACTOR_PARAMS": _size(actor),
        }
        rest = {
            **_learns("CRITIC", critic, copies=copies),
            **_learns("ACTOR", actor, target=actor_target),
        }
        return first, rest

    nets = {"ACTOR": actor, "CRITIC": critic}
    return _bind_launch(kernel, driver, pieces, constants, nets, arguments, last)


def bind_ddpg(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind update.ddpg: `steps` gradient steps on batch.*, absolute TD errors to batch.td."""
    nets = [*_stored("actor", arrays), *_stored("critic", arrays)]
    arguments = [*_given(arrays), *nets, *_rules(arrays)]
    return _actor_and_critics(kernel, driver, {}, arguments, [kernel.dim("steps")], ["critic"])


def _noise(kernel: Kernel, driver: Driver, draws: int) -> Any:
    """Room for the normals of all gradient steps."""
    import torch

    numbers = kernel.dim("steps") * draws * kernel.dim("batch") * kernel.dim("act")
    return torch.empty(numbers, dtype=torch.float32, device=driver.device)


TWINS = ("critic1", "critic2")


def bind_td3(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind update.td3: `steps` gradient steps on batch.*, mean absolute TD errors of both critics
    to batch.td."""
    nets = [x for name in ("actor", *TWINS) for x in _stored(name, arrays)]
    own = [arrays["hyper.smoothing"], arrays["rng.update"], _noise(kernel, driver, 1)]
    arguments = [*_given(arrays), *nets, *_rules(arrays), *own]
    constants = {"POLICY_DELAY": kernel.dim("policy_delay")}
    return _actor_and_critics(kernel, driver, constants, arguments, [kernel.dim("steps")], TWINS)


def bind_sac(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind update.sac, as `bind_td3`."""
    nets = [x for name in TWINS for x in _stored(name, arrays)]
    alpha = _stored("alpha", arrays, target=False)
    own = [arrays["hyper.target_entropy"], arrays["rng.update"], _noise(kernel, driver, 2)]
    actor = _stored("actor", arrays, target=False)
    arguments = [*_given(arrays), *actor, *nets, *alpha, *_rules(arrays), *own]
    return _actor_and_critics(
        kernel,
        driver,
        {},
        arguments,
        [kernel.dim("steps"), *LOG_STD],
        TWINS,
        actor_target=False,
        passes=2,
    )


def bind_ppo(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind update.ppo or update.a2c: all epochs and minibatches of one rollout.*."""
    import torch

    actor, critic, act = kernel.layers("actor"), kernel.layers("critic"), kernel.dim("act")
    rollout = kernel.dim("envs") * kernel.dim("horizon")

    def pieces(rows: int) -> tuple[Pieces, Pieces]:
        first = {
            "X": rows * _pitch(actor[0]),
            "ACTS": max(_acts(actor, rows), _acts(critic, rows)),
            "SPREAD": rows * act,
            "ACTOR_PARAMS": _size(actor),
            "CRITIC_PARAMS": _size(critic),
        }
        nets = {**_learns("ACTOR", actor, target=False), **_learns("CRITIC", critic, target=False)}
        return first, {**nets, **dict.fromkeys(("ORDER", "OTHERS", "CLAIMS"), rollout)}

    names = (
        "adam", "rmsprop", "anneal", "clip_norm", "clip", "value_clip", "entropy", "value_weight",
        "normalise",
    )  # fmt: skip
    taken, none = arrays["rollout.action"], torch.empty(0, device=driver.device)
    arguments = [
        arrays["rollout.obs"],
        *((taken, none) if act else (none, taken)),
        *(arrays[f"rollout.{name}"] for name in ("log_prob", "value", "advantage", "returns")),
        *_stored("actor", arrays, target=False),
        *_stored("critic", arrays, target=False),
        arrays["learner.step"],
        arrays["rng.update"],
        *(arrays[f"hyper.{name}"] for name in names),
    ]
    constants = {
        "BENT": kernel.dim("tanh"),
        "ROLLOUT": rollout,
        "STEPS": kernel.dim("steps"),
        "ACT": act,
    }
    nets = {"ACTOR": actor, "CRITIC": critic}
    return _bind_launch(kernel, driver, pieces, constants, nets, arguments, [], "ppo")
