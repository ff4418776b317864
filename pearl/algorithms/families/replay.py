"""The task graph of algorithms with a replay: act, step, store, sample, learn, sync.

The rates and tokens are those of the table in `docs/theory.md`. With N environments and replay
ratio rho = gradient steps per env step, rho·N = n/d in lowest terms: an iteration is d
vector steps and n gradient steps, or the least multiple of both with `train_every` vector steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd

from pearl.algorithms.networks import own_networks
from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl_devices import Kernel, kernel
from pearl_devices.buffers import specs
from pearl_devices.kernel import Arg, Dim
from pearl_devices.kernels import KINDS
from pearl_devices.kernels.counting import size as size_of

LEARNING = ("sample", "learn", "priorities", "sync")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the loop: environment, replay and batch.

    act: components of an action, 0 for discrete actions. actions: number of discrete actions, 0 for
    continuous ones. normalise: normalisations of step, as its sizes; step is then never
    split, because the statistics are one state. groups: a firing acts in envs / groups of the
        environments, in
    turn. network: program that builds networks other than dense layers. shape: of an observation.
    frames: `stack` and `ends`, for observations that are stacks of frames (see
    `pearl_devices.primitives.replay.frames`). train_every: least vector steps of an iteration.
    scheduled: whether a learning rate has a schedule. scaled: whether images are scaled to 0 … 1.
    units: the uint8 of an observation per 1.0, if the replay stores these; 0 if it stores float32.
    """

    program: str
    env_args: dict[str, str | int | float | bool]
    envs: int
    obs: int
    act: int
    capacity: int
    prioritised: bool
    fanout: int
    batch: int
    n_step: int
    replay_ratio: Fraction
    normalise: Mapping[str, int] = field(default_factory=dict)
    groups: int = 1
    network: str | None = None
    shape: tuple[int, ...] = ()
    frames: Mapping[str, int] = field(default_factory=dict)
    train_every: int = 1
    scheduled: bool = False
    scaled: bool = False
    actions: int = 0
    units: int = 0


def rates(sizes: Sizes) -> tuple[int, int]:
    """Return (vector steps, gradient steps) of one iteration."""
    per_vector_step = sizes.replay_ratio * sizes.envs / sizes.groups
    acts, learns = per_vector_step.denominator, per_vector_step.numerator
    together = -(-sizes.train_every // acts)
    return together * acts, together * learns


def build(
    name: str,
    sizes: Sizes,
    *,
    networks: Mapping[str, tuple[int, ...]],
    policy: str,
    losses: str,
    act: str | None = None,
    acting: str | None = None,
    head: Mapping[str, int] | None = None,
    extra: Mapping[str, int] | None = None,
    options: Mapping[str, Arg] | None = None,
) -> TaskGraph:
    """Build the graph of one algorithm.

    name: of its kernels, `update.<name>` and, if there is a native one, `learn.<name>`.
    networks: name → widths, input first. policy: the acting network, copied to the acting side.
    losses: the torch loss, `module:callable`. act: a program that chooses actions,
    `module:callable`; without one `inference.<acting>` chooses them (acting is `name` by default).
    extra: further sizes of the update kernel. head: further sizes of inference and update. options:
    keyword arguments of the torch loss.

    Raises:
        SpecError: the outputs of the acting network are no values of the actions, and no program
            chooses.
    """
    check_own_name(name, losses)
    if sizes.actions and act is None:
        _one_output_an_action(networks[policy], policy, sizes.actions, dict(head or {}))
    acts, steps = rates(sizes)
    envs = sizes.envs // sizes.groups
    modules = own_networks(sizes.network, sizes.obs, sizes.shape, networks)
    networks = {n: (w[0], w[-1]) if n in modules else w for n, w in networks.items()}
    # Under uniform replay one firing may do all gradient steps of an iteration (a block).
    # Under prioritised replay this would make priorities stale, so a firing is one step.
    block = 1 if sizes.prioritised else steps
    learns = steps // block
    replay: dict[str, Dim] = {
        "envs": envs,
        "obs": sizes.obs,
        "act": sizes.act,
        "capacity": sizes.capacity,
        "prioritised": int(sizes.prioritised),
        "fanout": sizes.fanout,
    }
    if sizes.frames:
        replay |= {**sizes.frames, "apart": sizes.envs}
    elif sizes.units:
        replay["units"] = sizes.units
    stack = {"stack": sizes.frames["stack"]} if sizes.frames else {}
    # The next row of an environment is a whole round of groups later.
    drawn: dict[str, Dim] = {
        **replay, "envs": sizes.envs, "batch": sizes.batch, "n_step": sizes.n_step
    }  # fmt: skip
    learned: dict[str, Dim] = {**networks, **(head or {}), **(extra or {})}
    if sizes.scheduled:
        learned["scheduled"] = 1
    spaces: dict[str, Dim] = {"obs": sizes.obs, "act": sizes.act}
    chosen: dict[str, Dim] = {"actions": sizes.actions} if sizes.actions else {}
    env_step = kernel(
        "env_step",
        {**spaces, **sizes.normalise, **stack, **({"scaled": 1} if sizes.scaled else {})},
        program=sizes.program,
        args=sizes.env_args,
        envs=envs,
    )
    inference = kernel(
        f"inference.{acting or name}",
        {**spaces, **chosen, policy: networks[policy], **(head or {})},
        program=act,
        modules={name: own for name, own in modules.items() if name == policy},
        envs=envs,
    )
    insert = kernel("replay_insert", replay)
    sample = kernel("replay_sample", drawn, steps=block)
    learn = kernel(
        f"update.{name}",
        {**learned, **spaces},
        program=losses,
        args=options,
        modules=modules,
        batch=sizes.batch,
        steps=block,
    )
    shared = 0 if sizes.normalise else envs
    size = size_of(inference)
    sync = kernel("param_sync", args={"network": policy}, params=size)
    tasks = [
        Task("act", inference, reads=("policy",), environments=envs),
        Task("step", env_step, writes=("environments",), environments=shared),
        Task("store", insert, writes=("replay",)),
        Task("sample", sample, reads=("replay",)),
        Task("learn", learn, writes=("learner",)),
        Task("sync", sync, reads=("learner",), writes=("policy",), copies=True),
    ]
    if sizes.prioritised:
        priorities = kernel(
            "replay_update",
            batch=sizes.batch,
            steps=block,
            capacity=sizes.capacity,
            fanout=sizes.fanout,
        )
        tasks.insert(5, Task("priorities", priorities, writes=("replay",)))
    edges = _edges(
        acts,
        learns,
        sizes.prioritised,
        sizes.groups,
        action=buffer_bytes(inference, "act.action"),
        obs=buffer_bytes(inference, "env.obs"),
        transition=buffer_bytes(insert, "step."),
        batch=buffer_bytes(learn, "batch.") - buffer_bytes(learn, "batch.td"),
        td=buffer_bytes(learn, "batch.td"),
        params=4.0 * size,
    )
    members = ("sample", "learn") + (("priorities",) if sizes.prioritised else ())
    fusions = []
    # All gradient steps in one native call.
    if f"learn.{name}" in KINDS and not modules and not sizes.frames:
        fused = kernel(f"learn.{name}", {**drawn, **learned}, steps=steps)
        fusions.append(Fusion("learn", members, fused))
    # The whole iteration in one native call, in program order: it acts and then learns.
    stored_as_seen = not (sizes.normalise or sizes.frames or sizes.units)
    native = stored_as_seen and not modules and sizes.groups == 1
    if f"iteration.{name}" in KINDS and 1 in (acts, learns) and native and not sizes.scaled:
        fused = kernel(
            f"iteration.{name}",
            {**drawn, **chosen, **learned},
            program=sizes.program,
            args=sizes.env_args,
            steps=steps,
            vector_steps=acts,
        )
        fusions.append(Fusion("iteration", tuple(t.name for t in tasks), fused))
    return TaskGraph(
        name,
        tuple(tasks),
        tuple(edges),
        states={
            "environments": buffer_bytes(env_step, "env."),
            "policy": 4.0 * size,
            "learner": buffer_bytes(learn, "learner."),
            "replay": buffer_bytes(insert, "replay."),
        },
        fusions=tuple(fusions),
        env_steps=acts * envs,
        updates=steps,
        batch=sizes.batch,
    )


def _one_output_an_action(
    widths: tuple[int, ...], policy: str, actions: int, head: Mapping[str, int]
) -> None:
    outputs = widths[-1] - head.get("duelling", 0)
    if outputs != actions:
        raise SpecError(
            f"algorithm.name: network {policy!r} has {outputs} outputs for {actions} actions, and "
            "the largest output would be taken as the action; give `build` a program that chooses "
            "(act)"
        )


def check_own_name(name: str, losses: str) -> None:
    """Check that `name` is not the name of another algorithm.

    Raises:
        SpecError: The native kernels of another algorithm would run instead of `losses`.
    """
    if f"update.{name}" in KINDS and losses != f"pearl.algorithms.{name}:losses":
        raise SpecError(
            f"algorithm.name: its graph is named {name!r}, whose native kernels would run instead "
            f"of {losses}: choose another name"
        )


def buffer_bytes(of: Kernel, prefix: str) -> float:
    """Return the bytes of the kernel's buffers whose names start with `prefix`."""
    size = {"float32": 4, "float64": 8, "int64": 8, "uint64": 8, "uint8": 1}
    total = 0
    for name, (shape, dtype) in specs(of).items():
        if name.startswith(prefix):
            count = 1
            for extent in shape:
                count *= extent
            total += count * size[dtype]
    return float(total)


def _edges(
    d: int,
    u: int,
    prioritised: bool,
    groups: int,
    *,
    action: float,
    obs: float,
    transition: float,
    batch: float,
    td: float,
    params: float,
) -> list[Edge]:
    """The edges for d acting and u learning firings per iteration; gcd(d, u) = 1."""
    back = d + u - gcd(d, u)  # tokens of the state edges back to store
    edges = [
        Edge("act", "step", bytes=action),
        Edge("step", "act", tokens_seq=groups, bytes=obs),
        Edge("step", "store", bytes=transition, limit="insertion_lag"),
        Edge("store", "sample", u, d),
        Edge("sample", "store", d, u, back),
        Edge("sample", "learn", bytes=batch, limit="prefetch"),
    ]
    if prioritised:
        edges += [
            Edge("learn", "priorities", bytes=td, limit="priority_staleness"),
            Edge("sample", "priorities"),
            Edge("priorities", "sample", tokens_seq=1),
            Edge("priorities", "store", d, u, back),
        ]
    if u >= d:  # sync fires with the acting side
        edges += [
            Edge("learn", "sync", d, u, d - 1),
            Edge("sync", "act", tokens_seq=1, bytes=params, limit="policy_lag"),
            Edge("act", "sync"),
            Edge("sync", "learn", u, d, u),
        ]
    else:  # sync fires with the learning side
        edges += [
            Edge("learn", "sync"),
            Edge("sync", "act", d, u, u + d - 1, bytes=params, limit="policy_lag"),
            Edge("act", "sync", u, d),
            Edge("sync", "learn", tokens_seq=1),
        ]
    edges += [Edge(name, name, tokens_seq=1) for name in ("step", "store", "learn", "sync")]
    return edges
