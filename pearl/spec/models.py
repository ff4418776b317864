"""The sections of a spec as frozen dataclasses that pydantic checks.

The same declarations define what `load` accepts and the JSON Schema for editors. The options of an
algorithm are in its module (`pearl.algorithms`), platforms in `pearl.spec.platform_files`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, StrictBool, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

from pearl.algorithms.options import STRICT, Acting
from pearl.graph.limits import ADDED
from pearl.seeds import SEEDS
from pearl.spec.platform_files import HostsFile, PlatformFile
from pearl.spec.quantities import Bytes, PerSecond, Seconds, Watts

Names = Annotated[tuple[StrictStr, ...], Field(min_length=1)]
Pair = Annotated[tuple[StrictStr, ...], Field(min_length=2, max_length=2)]
Pairs = tuple[Pair, ...]
Copies = Annotated[StrictInt, Field(ge=1, le=64)]


T = TypeVar("T")
Objective = Literal["throughput", "power_efficiency", "makespan", "robust", "robust_worst"]


def _open_to_added(cls: type[T]) -> type[T]:
    """Give the section a key for each limit of `pearl.graph.limits.ADDED`."""
    for limit in ADDED:
        cls.__annotations__[limit.key] = StrictInt | None
        setattr(cls, limit.key, Field(default=None, ge=limit.least, description=limit.description))
    return cls


@dataclass(frozen=True, kw_only=True, config=STRICT)
@_open_to_added
class LimitsSection:
    """The limits of a plan. Slack limits are 0 by default: the sequential program."""

    power: Watts | None = Field(default=None, description="Maximum average power, e.g. 350 W.")
    period: Seconds | None = Field(
        default=None, description="Maximum time of one iteration, e.g. 2 ms."
    )
    min_throughput: PerSecond | None = Field(
        default=None, description="Minimum env steps per second, e.g. 5000 /s."
    )
    policy_lag: StrictInt = Field(
        default=0, ge=0, le=1000, description="Maximum param syncs by which actors lag."
    )
    prefetch: StrictInt = Field(
        default=0, ge=0, le=1000, description="Batches drawn ahead of the gradient step."
    )
    insertion_lag: StrictInt = Field(
        default=0, ge=0, le=1000, description="Vector steps that may wait for insertion."
    )
    priority_staleness: StrictInt = Field(
        default=0,
        ge=0,
        le=1000,
        description="Gradient steps whose new priorities a replay sample may miss.",
    )
    env_groups: StrictInt = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Number of groups of environments. One group steps while PEARL computes the "
        "actions of another. Only for algorithms with a replay.",
    )
    learners: Copies = Field(
        default=1,
        description="Learners with averaged gradients (data parallel). Each computes the gradient "
        "of an equal share of every batch; all take the same step with the mean.",
    )
    averaging: StrictInt = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Sweeps over the log between two averages of the tables "
        "(algorithm.offline). Each table learns on its own in between.",
    )
    reduction: Literal["star", "shards"] | None = Field(
        default=None,
        description="How gradients of learners are averaged: all by one task on the local host "
        "(star), or a part of every network at each learner (shards). The bits are the same. "
        "Default: the one that is predicted to be faster.",
    )
    any_order: StrictBool = Field(
        default=False,
        description="Store transitions of any actor replica that is ready, at most policy_lag "
        "param syncs old. Such runs are not reproducible.",
    )
    memory: dict[str, Bytes] = Field(
        default_factory=dict,
        description="Device → maximum memory, for arrays and messages, e.g. {gpu: 8 GiB}.",
    )
    devices: dict[str, Names] = Field(
        default_factory=dict, description="Task → the devices it may use."
    )
    variants: dict[str, Names] = Field(
        default_factory=dict,
        description="Task → the variants it may use. torch-bf16, eager-bf16, host-rows, "
        "integer-tree and envpool are used only if named here; processes (each environment in its "
        "own process) also if the environments wait.",
    )
    pin: dict[str, StrictStr] = Field(default_factory=dict, description="Task → its device.")
    together: Pairs = Field(default=(), description="Pairs of tasks that share a device.")
    apart: Pairs = Field(default=(), description="Pairs of tasks that never share a lane.")
    replicas: dict[str, Copies] = Field(
        default_factory=dict,
        description="Acting task → maximum number of replicas, each with a share of the "
        "environments, e.g. {step: 4}.",
    )
    distribution: (
        Literal[
            "one_host",
            "synchronous_actors",
            "asynchronous_actors",
            "central_inference",
            "accelerated_networks",
            "data_parallel_learners",
        ]
        | None
    ) = Field(
        default=None,
        description="A named set of limits: where environments step, where actions are chosen, "
        "where the rest runs, and actor replicas on other hosts. Default: the planner chooses.",
    )
    max_lanes: StrictInt | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Maximum number of lanes of the plan. Default: as many as the devices have, "
        "but 1 on platform host with one learner, because such a plan needs no kernel timings "
        "before training. One call takes at most so many cores; with 1 a plan runs in one thread.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Train:
    """Options of training and of evaluation during training. Env steps count over all
    environments."""

    steps: StrictInt = Field(
        default=50_000, ge=1, le=10**12, description="Env steps, rounded up to an iteration."
    )
    seed: StrictInt = Field(default=0, ge=0, lt=SEEDS, description="Seed of every random stream.")
    evaluate_every: StrictInt = Field(
        default=5000, ge=0, le=10**12, description="Env steps between evaluations; 0: never."
    )
    evaluate_episodes: StrictInt = Field(
        default=5, ge=1, le=10_000, description="Greedy episodes of one evaluation."
    )
    final_episodes: StrictInt = Field(
        default=20,
        ge=0,
        le=10_000,
        description="Greedy episodes of the final evaluation; 0: none.",
    )
    evaluate_max_steps: StrictInt | None = Field(
        default=None,
        ge=1,
        le=10**12,
        description="Env steps after which an evaluation cuts an episode. Default: the limit of "
        "the environment, or 10,000 if the environment has none.",
    )
    evaluate_in: Literal["auto", "pauses", "lane"] = Field(
        default="auto",
        description="Where evaluations run: while the lanes wait (pauses), or in another process "
        "(lane), with the result one interval later. auto is lane if pauses would take over 5 % of "
        "the time, a core is free and the run is long enough.",
    )
    checkpoint_every: StrictInt | None = Field(
        default=None,
        ge=0,
        le=10**12,
        description="Env steps between checkpoints; 0: only one, at the end. Default: 10000, or "
        "more if the run would wait for checkpoints for over 2 % of its time.",
    )
    checkpoint_replay: StrictBool = Field(
        default=True,
        description="Whether checkpoints hold the replay. Without the replay, a resumed run "
        "refills it before learning continues, and differs from an uninterrupted run.",
    )
    lanes: Literal["one", "threads", "processes", "ray"] | None = Field(
        default=None,
        description="Where all lanes except the one that updates run: in processes, in threads, or "
        "in turn in one thread, all on this machine; or in Ray actors on other hosts and in "
        "processes here (ray). The results are the same. Default: ray if the plan has lanes on "
        "other hosts, else processes.",
    )
    carrier: Literal["tcp", "ray"] | None = Field(
        default=None,
        description="The carrier of messages to lanes on other hosts: TCP connections between the "
        "nodes, or calls of Ray. The results are the same. Default: tcp, or ray if Ray encrypts "
        "its traffic (RAY_USE_TLS).",
    )
    on_env_failure: Literal["restart", "stop"] = Field(
        default="stop",
        description="Reaction to an environment that raises an error, returns NaN or a wrong "
        "shape, or does not answer: restart it, or stop with a checkpoint.",
    )
    env_time_limit: Seconds | None = Field(
        default=None,
        description="Maximum time of one step of an environment. Default: 60 s. Native "
        "environments are not timed.",
    )
    calibrate_after: StrictBool = Field(
        default=True,
        description="Whether `pearl train` times untimed kernels of a run for at most 5 s, after "
        "its report is printed and its files are written.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """A system: an algorithm, a platform, an objective, limits, and how long to train."""

    algorithm: Acting = Field(description="The algorithm and its environment.")
    name: StrictStr | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Name of the system in reports. Default: the name of the file.",
    )
    platform: StrictStr | PlatformFile | HostsFile = Field(
        default="host",
        description="The machine: host (this machine), ray (the running cluster), a shipped name, "
        "a path, or an inline platform.",
    )
    objective: Objective = Field(
        default="throughput",
        description="What the plan maximises: env steps per second, or env steps per joule; "
        "makespan minimises the time of the first iteration. robust and robust_worst: env steps "
        "per second within the bands of the estimates, by the least mean or the least worst "
        "regret.",
    )
    limits: LimitsSection = Field(
        default_factory=LimitsSection, description="What the plan may do."
    )
    train: Train = Field(
        default_factory=Train, description="How long to train, and what to do meanwhile."
    )
