"""Task graph, first values and logs of tabular algorithms that learn from a log of transitions.

An iteration is `limits.averaging` sweeps over the log (task learn) and one average of the tables
of all chunks (task average). The edge from average to learn holds as many tokens as an iteration
has sweeps. Env steps count the transitions that sweeps visit.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from pearl.errors import SpecError
from pearl.files import irregular
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl_devices import Buffers, kernel
from pearl_devices.kernels.offline import table_bytes

if TYPE_CHECKING:
    from pearl.spec.system import System

Log = dict[str, npt.NDArray[Any]]
"""Field of a transition → array (N,): state, action, next_state and, where known, next_action are
whole numbers, terminated is 0 or 1."""

FIELDS = ("state", "action", "reward", "next_state", "terminated")
ORDERS = ("seq", "str", "ran")
MOST = 2**31 - 1
"""The largest number of an int32."""


def build(name: str, system: System) -> TaskGraph:
    """The graph of one algorithm, whose sweep is offline.<name>.

    Raises:
        SpecError: the log cannot be read, does not fit the environment, or is shorter than chunks.
    """
    a, env, sweeps = system.algorithm, system.env, system.limits.averaging
    offline = a.offline
    rows = offline.collect or len(_of_file(name, system)["state"])
    rows -= rows % offline.chunks
    sizes = {"states": env.states, "actions": env.actions, "obs": 1, "act": 0, "batch": rows}
    sizes |= {"chunks": offline.chunks, "bits": offline.bits, "order": ORDERS.index(offline.order)}
    sweep, average = kernel(f"offline.{name}", sizes), kernel("offline.average", sizes)
    tables = float(offline.chunks * table_bytes(average))
    return TaskGraph(
        name,
        (
            Task("learn", sweep, reads=("log",), writes=("tables",)),
            Task("average", average, writes=("tables",)),
        ),
        (
            Edge("learn", "average", 1, sweeps),
            Edge("average", "learn", sweeps, 1, tokens_seq=sweeps),
            Edge("learn", "learn", tokens_seq=1),
        ),
        states={"log": 21.0 * rows, "tables": tables + 2 * table_bytes(average)},
        env_steps=sweeps * rows,
        updates=sweeps,
        batch=rows,
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run: the log, the tables and every constant.

    Raises:
        SpecError: numbers of the log do not fit a table of int32.
    """
    a = system.algorithm
    if a.offline.data is not None:
        log = _of_file(a.name, system)
    else:
        env_args = tuple(sorted(system.env.args.items()))
        log = collected(system.env.id, env_args, a.offline.collect, seed)
    scale = 2.0**a.offline.bits
    if a.offline.bits:
        _check_scale(a, log["reward"])
    for field, numbers in log.items():
        array = buffers[f"log.{field}"]
        times = scale if field == "reward" else 1.0
        scaled = numbers[: len(array)] * times
        array[:] = np.rint(scaled) if array.dtype.kind == "i" else scaled
    start = np.float64(a.initial_value) * scale
    buffers["learner.tables"][:] = np.rint(start) if a.offline.bits else start
    buffers["policy.q"][:] = a.initial_value
    buffers["hyper.lr.q"][:] = a.learning_rate
    buffers["hyper.discount"][:] = a.discount


def _check_scale(a: Any, reward: npt.NDArray[Any]) -> None:
    """Raise SpecError unless every number that learning can reach fits an int32."""
    least, most = float(reward.min()), float(reward.max())
    reach = partial(_largest, a, max(abs(least), abs(most)))
    if reach(a.offline.scale) > MOST:
        fits = next((2**bits for bits in range(30, 0, -1) if reach(2**bits) <= MOST), None)
        way = f"take scale {fits}, or" if fits else "scale the rewards down, or take"
        raise SpecError(
            f"algorithm.offline.scale: given {a.offline.scale}; with rewards from {least:g} to "
            f"{most:g} and discount {a.discount} a table may reach {reach(a.offline.scale):.4g}, "
            f"above the largest int32, {MOST}: {way} format fp32"
        )


def _largest(a: Any, reward: float, scale: int) -> float:
    """The largest number that a table of int32 can reach.

    A step size of at most 1 keeps a value between its target and itself, so no value passes the
    first one and the discounted sum of the largest reward. One more unit is left for rounding.
    """
    discount = np.rint(a.discount * scale) / scale
    value = reward / (1 - discount) if discount < 1 else np.inf
    return float(scale * (max(value, abs(a.initial_value)) + 1))


# Logs


@lru_cache(maxsize=1)
def collected(program: str, args: tuple[tuple[str, Any], ...], count: int, seed: int) -> Log:
    """Return a log of `count` env steps of one environment with uniformly random actions.

    The action after the end of an episode is also drawn: sarsa needs it if the episode was
    truncated.

    Raises:
        SpecError: the environment returned something that is not read.
    """
    from pearl_devices.primitives.envs.border import Reader, Unfit, read_step, reset
    from pearl_devices.primitives.envs.gym_episodes import make_env
    from pearl_devices.primitives.envs.spaces import parts
    from pearl_devices.primitives.math.rng import key

    env: Any = make_env(program, dict(args), 0)
    reader, row = Reader(parts(env.observation_space), table=True), np.zeros(1)

    def number(seen: Any) -> int:
        reader.read(seen, row)
        return int(row[0])

    first = int(env.action_space.start)
    draws = np.random.default_rng(key(seed, "log"))
    actions = draws.integers(0, env.action_space.n, count + 1)
    found: Log = {field: np.zeros(count, np.int64) for field in ("state", "next_state")}
    found["reward"], found["terminated"] = np.zeros(count), np.zeros(count, np.bool_)
    i = 0
    try:
        state = number(reset(env, seed=key(seed, "log of environment") >> 33)[0])
        for i in range(count):
            seen, reward, terminated, truncated = read_step(env.step(first + actions[i]))
            if not np.isfinite(reward):
                raise Unfit(f"reward {reward} is not finite")
            ahead = number(seen)
            found["state"][i], found["next_state"][i] = state, ahead
            found["reward"][i], found["terminated"][i] = reward, terminated
            state = number(reset(env)[0]) if terminated or truncated else ahead
    except Unfit as error:
        raise SpecError(f"environment {program!r}, step {i} of its log: {error}") from None
    env.close()
    return {**found, "action": actions[:-1], "next_action": actions[1:]}


def _of_file(name: str, system: System) -> Log:
    """Read and check the log `algorithm.offline.data`.

    Raises:
        SpecError: the log cannot be read, or does not fit the environment; the text gives the
            reason.
    """
    offline, env = system.algorithm.offline, system.env
    where = f"algorithm.offline.data: {offline.data}"
    needed = (*FIELDS, "next_action") if name == "sarsa" else FIELDS
    try:
        status = Path(offline.data).stat()
        if what := irregular(status):
            raise ValueError(f"it is {what}, not a file")
        whole = _read(offline.data, status.st_mtime_ns)
        if missing := [field for field in needed if field not in whole]:
            raise ValueError(f"it lacks {', '.join(missing)}")
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        what = f"{name} needs a .npz file with {', '.join(needed)}"
        raise SpecError(f"{where}: {error}; {what}") from None
    log = {field: whole[field] for field in needed}
    shapes = {field: numbers.shape for field, numbers in log.items()}
    if len({*shapes.values()}) > 1 or len(shapes["state"]) != 1:
        raise SpecError(
            f"{where}: its arrays have shapes {shapes}; one axis of one length is needed"
        )
    if len(log["state"]) < offline.chunks:
        raise SpecError(
            f"{where}: it has {len(log['state'])} transitions, and algorithm.offline.chunks is "
            f"{offline.chunks}: each chunk needs one; take fewer chunks, or a longer log"
        )
    allowed = {"state": env.states, "next_state": env.states, "terminated": 2}
    allowed |= {"action": env.actions, "next_action": env.actions}
    for field, numbers in log.items():
        if field == "reward" and not (numbers.dtype.kind in "fiu" and np.isfinite(numbers).all()):
            raise SpecError(f"{where}: a reward is not finite; give finite numbers")
        whole_numbers = field == "reward" or numbers.dtype.kind in "iub"
        least, most = numbers.min(), numbers.max()
        if not whole_numbers or (field in allowed and not 0 <= least <= most < allowed[field]):
            raise SpecError(
                f"{where}: {field} has {numbers.dtype} numbers from {least} to {most}; allowed for "
                f"{env.id} are whole numbers from 0 to {allowed[field] - 1}: log this environment, "
                "and count from 0"
            )
    return log


@lru_cache(maxsize=1)
def _read(path: str, modified_ns: int) -> Log:
    """The arrays of a file, read once for each time that it was modified."""
    found = np.load(path, allow_pickle=False)
    if not isinstance(found, np.lib.npyio.NpzFile):
        raise ValueError("it holds one array")
    with found as file:
        return {field: file[field] for field in file.files}
