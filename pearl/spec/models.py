"""What a spec may say, section by section, as frozen dataclasses checked by pydantic.

What `load` accepts and what editors are told (the JSON Schema) are the same declarations; the
options of an algorithm are in its module (`pearl.algorithms`), platforms in
`pearl.spec.platform_files`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

from pearl.algorithms.options import STRICT, Acting
from pearl.seeds import SEEDS
from pearl.spec.platform_files import HostsFile, PlatformFile
from pearl.spec.quantities import Bytes, PerSecond, Seconds, Watts

TASKS = (
    "env_step",
    "inference",
    "replay_insert",
    "replay_sample",
    "replay_update",
    "rollout_insert",
    "gae",
    "update",
    "param_sync",
)
"""The tasks that a spec may name in its limits."""


Names = Annotated[tuple[StrictStr, ...], Field(min_length=1)]
Pair = Annotated[tuple[StrictStr, ...], Field(min_length=2, max_length=2)]
Pairs = tuple[Pair, ...]
Copies = Annotated[StrictInt, Field(ge=1, le=64)]


def _carrier(given: object) -> object:
    if given == "gloo":
        raise ValueError(
            "allowed: tcp or ray; gloo was removed because it believed what came before any proof "
            "of the secret: write tcp, or leave the key out"
        )
    return given


Objective = Literal["throughput", "power_efficiency", "makespan", "robust", "robust_worst"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LimitsSection:
    """What a plan may do. Slack limits are 0 by default: the sequential program."""

    power: Watts | None = Field(default=None, description="Average power at most, e.g. 350 W.")
    period: Seconds | None = Field(
        default=None, description="Time of one iteration at most, e.g. 2 ms."
    )
    min_throughput: PerSecond | None = Field(
        default=None, description="Env steps per second at least, e.g. 5000 /s."
    )
    policy_lag: StrictInt = Field(
        default=0, ge=0, le=1000, description="Param syncs by which acting may lag behind."
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
        description="Gradient steps whose priorities a draw may not have seen yet.",
    )
    env_groups: StrictInt = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Groups that the environments are split in; each acts with what the last of "
        "them saw, so that one can step while another's actions are computed. With a replay only.",
    )
    learners: Copies = Field(
        default=1,
        description="Learners with averaged gradients (data parallel): each computes the gradient "
        "of an equal share of every batch, and all take the same step with the mean.",
    )
    reduction: Literal["star", "shards"] | None = Field(
        default=None,
        description="How the learners' gradients are averaged: all of them by one task at home "
        "(star), or a part of every network beside each learner (shards). The bits are the same. "
        "By default the one predicted to be quicker.",
    )
    any_order: StrictBool = Field(
        default=False,
        description="Store the transitions of whichever copy of the actors is ready, at most "
        "policy_lag param syncs old. Such runs are not reproducible.",
    )
    memory: dict[str, Bytes] = Field(
        default_factory=dict, description="Device → memory at most, e.g. {gpu: 8 GiB}."
    )
    devices: dict[str, Names] = Field(
        default_factory=dict, description="Task → the devices it may use."
    )
    variants: dict[str, Names] = Field(
        default_factory=dict, description="Task → the variants it may use."
    )
    pin: dict[str, StrictStr] = Field(default_factory=dict, description="Task → its device.")
    together: Pairs = Field(default=(), description="Pairs of tasks that share a device.")
    apart: Pairs = Field(default=(), description="Pairs of tasks that never share a lane.")
    replicas: dict[str, Copies] = Field(
        default_factory=dict,
        description="Acting task → copies at most, each on a share of the environments, e.g. "
        "{env_step: 4}.",
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
        description="A set of limits by name: where environments step, actions are chosen and the "
        "rest runs, and copies of actors on other hosts. Without it the planner chooses.",
    )
    max_lanes: StrictInt | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Lanes of the plan at most. By default as many as the devices have, but 1 on "
        "platform host with one learner: a plan of one lane there needs no kernel timed before it "
        "is trained.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Train:
    """How long to train, and what to do meanwhile. Env steps count over all environments."""

    steps: StrictInt = Field(
        default=50_000, ge=1, le=10**12, description="Env steps, rounded up to an iteration."
    )
    seed: StrictInt = Field(default=0, ge=0, lt=SEEDS, description="Seed of every random stream.")
    evaluate_every: StrictInt = Field(
        default=5000, ge=0, le=10**12, description="Env steps between evaluations; 0 is never."
    )
    evaluate_episodes: StrictInt = Field(
        default=5, ge=1, le=10_000, description="Greedy episodes of one evaluation."
    )
    final_episodes: StrictInt = Field(
        default=20,
        ge=0,
        le=10_000,
        description="Greedy episodes that judge the best policy; 0 judges none.",
    )
    evaluate_max_steps: StrictInt | None = Field(
        default=None,
        ge=1,
        le=10**12,
        description="Env steps after which an evaluation cuts an episode; by default the limit of "
        "the environment, or 10,000 where it has none.",
    )
    evaluate_in: Literal["auto", "pauses", "lane"] = Field(
        default="auto",
        description="Where evaluations are played: while the lanes wait (pauses), or in a process "
        "of their own beside them (lane), one interval later known. auto is lane where they would "
        "else take over 5 % of the time, a core is free and the run is long enough.",
    )
    checkpoint_every: StrictInt | None = Field(
        default=None,
        ge=0,
        le=10**12,
        description="Env steps between checkpoints; 0 writes one at the end only. By default "
        "10000, or more where the run would wait for them for over 2 % of its time.",
    )
    checkpoint_replay: StrictBool = Field(
        default=True,
        description="Whether checkpoints hold the replay. Without it a run that goes on fills it "
        "anew before it learns on, and does not equal one that went through.",
    )
    lanes: Literal["one", "threads", "processes", "ray"] | None = Field(
        default=None,
        description="Where lanes beside the one that updates run: in processes or threads of their "
        "own, or one after the other in one thread, all on this machine; or those of other hosts "
        "in Ray actors there and the rest in processes (ray). The results are the same. By default "
        "ray where the plan has lanes on other hosts, else processes.",
    )
    carrier: Annotated[Literal["tcp", "ray"], BeforeValidator(_carrier)] | None = Field(
        default=None,
        description="What carries messages to lanes on other hosts: TCP connections between the "
        "nodes, or calls of Ray. The results are the same. By default tcp, or ray where "
        "Ray encrypts what crosses (RAY_USE_TLS).",
    )
    on_env_failure: Literal["restart", "stop"] = Field(
        default="stop",
        description="What to do once an environment has raised an error, given NaN or a wrong "
        "shape, or not answered: restart it, or stop with a checkpoint.",
    )
    env_time_limit: Seconds | None = Field(
        default=None,
        description="What one step of an environment may take at most, by default 60 s; native "
        "ones are not timed.",
    )
    calibrate_after: StrictBool = Field(
        default=True,
        description="Whether `pearl train` times the kernels of a run that were never timed here, "
        "once its report is printed and its files are written, for at most 5 s.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """A system: an algorithm, a platform, an objective, limits, and how long to train."""

    algorithm: Acting = Field(description="What is trained, and on which environment.")
    name: StrictStr | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Name of the system in reports; the file's name by default.",
    )
    platform: StrictStr | PlatformFile | HostsFile = Field(
        default="host",
        description="Where: host (this machine), ray (the running cluster), a shipped name, "
        "a path, or a platform inline.",
    )
    objective: Objective = Field(
        default="throughput",
        description="What the plan is best at: env steps per second, env steps per joule, or the "
        "time until the first iteration is complete; robust, robust_worst: env steps per second "
        "within the bands of the estimates, by least mean and least worst regret.",
    )
    limits: LimitsSection = Field(
        default_factory=LimitsSection, description="What the plan may do."
    )
    train: Train = Field(
        default_factory=Train, description="How long to train, and what to do meanwhile."
    )
