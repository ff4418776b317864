"""Runs over two hosts: `python -m benchmarks.distribution [learners] [choice] [waiting] [links]
[--carrier tcp|ray] [--quick] [--json FILE]`.

The hosts are two raylets of this machine; the extra [ray] is needed. What a real network adds is
not shown here. Tests hold bits, messages and bytes (`tests/runtime/test_islands.py`).

learners: env steps a second of one learner and of two with averaged gradients, a host each, where
    the network is wide and the batch large, measured and predicted.
choice: env steps a second of the planner's choice beside one host and every policy, interleaved,
    where a step of an environment takes microseconds, 1 ms and 8 ms (16 of them, which sleep).
waiting: env steps a second of PPO with 16 and 64 environments that sleep 8 ms each, on one host, on
    the other host, and as the planner has them with two copies of the actors. No number of hosts
    gives more than all environments in 8 ms, which the table tells.
links: a link is measured as `pearl calibrate --on ray` does, by each carrier. In turns with its
    sizes 20 are timed that the fit does not see, and each is compared with its prediction. The
    repeat error is that of a second timing of all: no prediction is nearer.
carrier: what carries the messages of all runs, by default that of the product.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
from dataclasses import asdict
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.bars import ABSENT, Bar, Part, at_least, at_most
from benchmarks.run import main
from pearl.cluster.transport import CARRIERS
from pearl.formatting import si

NODES = ("a", "b")
SEED = 3
QUIET: dict[str, Any] = {"evaluate_every": 0, "final_episodes": 0, "seed": SEED}
"""Keys of `train` in every run; --carrier adds its own."""
SOURCES: dict[str, dict[str, Any]] = {
    "dqn": {
        "name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [64, 64], "batch_size": 64,
        "replay_ratio": "1/4", "learning_starts": 256,
        "replay": {"capacity": 10_000, "kind": "uniform"},
    },
    "ppo": {
        "name": "ppo", "env": "CartPole-v1", "num_envs": 8, "rollout_steps": 32, "minibatches": 4,
        "epochs": 2, "hidden": [64, 64],
    },
}  # fmt: skip
LEARNERS: dict[str, Any] = {"distribution": "data_parallel_learners", "learners": 2}
ONE_HOST: dict[str, Any] = {"distribution": "one_host"}
COPIES = {"replicas": dict.fromkeys(("step", "act"), 2)}
"""Limits of the planner's choice."""
PAIRS = 3
WIDE: dict[str, Any] = {"hidden": [512, 512], "batch_size": 1024, "learning_starts": 1024}
"""Changes of DQN's source with which a gradient step takes longer than a reduction."""
WAITING = {"env": "benchmarks.slow_env:sleeping", "learning_starts": 64, "replay_ratio": "1/16"}
WAITS: dict[str, tuple[dict[str, Any], int]] = {
    "microseconds": ({}, 40_000),
    "1 ms, 16 environments": ({**WAITING, "env_args": {"ms": 1.0}, "num_envs": 16}, 4_000),
    "8 ms, 16 environments": ({**WAITING, "env_args": {"ms": 8.0}, "num_envs": 16}, 800),
}
"""What a step takes → changes of DQN's source, env steps of a run."""
UNSEEN, LEAST, MOST = 20, 64, 1 << 20
"""Messages of the links: sizes, log-uniform between these bytes."""
INLINE = 100_000
"""Bytes from which Ray hands an array over by its object store."""
ASKED = 0.15
"""Of the median error of a link."""


def planned(
    name: str, limits: dict[str, Any], steps: int, change: dict[str, Any]
) -> tuple[Any, Any]:
    """System and plan of an algorithm under limits, with other keys of its source."""
    import pearl

    train = QUIET | {"steps": steps}
    algorithm = copy.deepcopy(SOURCES[name]) | change
    system = pearl.load(
        {"algorithm": algorithm, "platform": "ray", "train": train, "limits": limits}
    )
    return system, pearl.plan(system)


def trained(system: Any, plan: Any) -> Any:
    """The run of a plan."""
    from pearl.training.trainer import Trainer

    return Trainer(system, plan, seed=SEED).train()


def prepare(cluster: Any) -> None:
    """Each node, and what runs there, has a core of its own, if there are two; links are timed."""
    from pearl.cluster import links as measuring
    from tests.ray_cluster import members

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[0]})
        for name, core in zip(NODES, cores, strict=False):
            for pid in members(cluster.nodes[name].pid):
                os.sched_setaffinity(pid, {core})
    measuring.measure()


def learners(cluster: Any, *, quick: bool) -> Part:
    """One learner and two, each host with a core of its own."""
    prepare(cluster)
    found, rows, bars = {}, [], []
    steps = WIDE["learning_starts"] + (320 if quick else 800)
    for limits in (ONE_HOST, LEARNERS):
        found[limits["distribution"]] = planned("dqn", limits, steps, WIDE)
    rates: dict[str, list[float]] = {policy: [] for policy in found}
    for _ in range(1 if quick else PAIRS):
        for policy, (system, plan) in found.items():
            rates[policy].append(1 / trained(system, plan).drift.measured_s)
    for policy, (_, plan) in found.items():
        seen, told = median(rates[policy]), 1 / plan.period_s
        rows.append([policy, f"{told:.2f}", f"{seen:.2f}"])
        bars.append(near(policy, seen / told))
    return Part("learners", ["policy", "iterations/s predicted", "measured"], rows, bars)


def near(what: str, ratio: float) -> Bar:
    close = abs(ratio - 1) <= 0.15
    return Bar(f"{what}: measured over predicted", f"{ratio:.2f}", "0.85 … 1.15", close)


def choice(cluster: Any, *, quick: bool) -> Part:
    """The planner's choice beside every policy, each host with a core of its own."""
    prepare(cluster)
    rows, bars = [], []
    for what, (change, steps) in WAITS.items():
        systems = {}
        for policy in ("chosen", "one_host", "synchronous_actors", "central_inference"):
            limits = COPIES if policy == "chosen" else {"distribution": policy}
            systems[policy] = planned("dqn", limits, steps, change)
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(1 if quick else PAIRS):
            for name, (system, plan) in systems.items():
                rates[name].append(trained(system, plan).env_steps_per_s)
        plan = systems["chosen"][1]
        hosts = sorted({t.device.partition("/")[0] for t in plan.tasks})
        best = max((median(r), name) for name, r in rates.items() if name != "chosen")
        mine = median(rates["chosen"])
        spread = max(max(r) / min(r) for r in rates.values()) - 1
        allowed = max(0.05, spread)
        predicted = plan.rates["env_steps_per_s"]
        rows.append([what, ", ".join(hosts), *(f"{median(r):,.0f}" for r in rates.values())])
        bars.append(at_least(f"{what}: the choice over {best[1]}", mine / best[0], 1 - allowed))
        bars.append(near(what, mine / predicted))
        if "8 ms" in what:
            gain = mine / median(rates["one_host"])
            bars.append(at_least(f"{what}: beside one host", gain, 1.7, "{:.2f}×"))
    columns = ["step", "hosts chosen", *(f"{n}, env steps/s" for n in rates)]
    return Part("choice", columns, rows, bars)


def waiting(cluster: Any, *, quick: bool) -> Part:
    """Environments that wait, in processes of their own, on one host and on two."""
    from pearl.cluster import links as measuring

    measuring.measure()
    load = os.getloadavg()[0]
    rows, bars = [], []
    rates: dict[tuple[int, str], float] = {}
    for envs in (16,) if quick else (16, 64):
        most = envs / 8e-3
        for policy in ("one_host", "synchronous_actors", "chosen"):
            change = {
                "env": "benchmarks.slow_env:sleeping", "env_args": {"ms": 8.0}, "num_envs": envs,
            }  # fmt: skip
            limits = COPIES if policy == "chosen" else {"distribution": policy}
            system, plan = planned("ppo", limits, 320 * envs, change)
            run = trained(system, plan)
            seen, told = run.env_steps_per_s or 0.0, plan.rates["env_steps_per_s"]
            rates[envs, policy] = seen
            steps = [t for t in plan.tasks if t.task == "step"]
            where = ", ".join(sorted(f"{t.device} {t.variant}" for t in steps))
            shown = [f"{told:,.0f}", f"{seen:,.0f}", f"{seen / most:.0%}"]
            rows.append([str(envs), policy, where, *shown])
            what, ratio = f"{envs} environments, {policy}", seen / told
            close = abs(ratio - 1) <= 0.25
            bars.append(
                Bar(f"{what}: measured over predicted", f"{ratio:.2f}", "0.75 … 1.25", close)
            )
        gain = max(r for (n, p), r in rates.items() if n == envs and p != "one_host")
        gain /= rates[envs, "one_host"]
        bars.append(
            Bar(f"{envs} environments: two hosts", f"{gain:.2f}×", "at least 1.6×", gain >= 1.6)
        )
    columns = ["environments", "policy", "step", "env steps/s predicted", "measured"]
    values = {"load": load}
    return Part("waiting", [*columns, "of all in 8 ms"], rows, bars, values=values)


def sizes(seed: int) -> list[int]:
    """Sizes of messages, none of which the fit has seen."""
    from pearl.cluster.links import SIZES

    r, found = random.Random(seed), set[int]()
    while len(found) < UNSEEN:
        size = round(LEAST * (MOST / LEAST) ** r.random())
        found |= {size} - set(SIZES)
    return sorted(found)


def links(cluster: Any, *, quick: bool) -> Part:
    """A row a round and carrier."""
    from pearl.cluster import connection
    from pearl.cluster import links as measuring
    from pearl.cluster.timing import time_messages

    ray = connection.connect()
    here = ray.get_runtime_context().get_node_id()
    home, other = sorted(connection.nodes(), key=lambda node: node.id != here)
    rows: list[list[str]] = []
    kept: list[dict[str, Any]] = []
    for seed, carrier in product(range(1 if quick else 3), CARRIERS):
        all_sizes = [*measuring.SIZES, *sizes(seed)]
        first, second = (time_messages(home, other, carrier, all_sizes) for _ in range(2))
        seen = len(measuring.SIZES)
        link = measuring.measure_link(home, other, carrier, first[:seen])
        first, second = first[seen:], second[seen:]
        off = link.errors(first)
        small = link.errors([t for t in first if t.size_bytes < INLINE])
        large = link.errors([t for t in first if t.size_bytes >= INLINE])
        again = [
            abs(a / b - 1)
            for x, y in zip(first, second, strict=True)
            for a, b in ((x.one_way_s, y.one_way_s), (x.pipelined_s, y.pipelined_s))
        ]
        cut = quantiles(off, n=20)
        kept.append(
            {
                "link": asdict(link), "unseen": [asdict(t) for t in first],
                "error": median(off), "small": median(small), "large": median(large),
                "low": cut[0], "high": cut[-1], "repeat": median(again),
            },
        )  # fmt: skip
        rows.append(
            [
                carrier, si(link.latency_s, "s"), si(link.per_message_s, "s"),
                si(link.bytes_per_s, "B/s"), f"{median(off):.1%}",
                f"{median(small):.1%}, {median(large):.1%}", f"{cut[0]:.1%} to {cut[-1]:.1%}",
                f"{median(again):.1%}",
            ],
        )  # fmt: skip
    bars = []
    for carrier in CARRIERS:
        found = sorted(each["error"] for each in kept if each["link"]["carrier"] == carrier)
        over = f"{found[0]:.1%} to {found[-1]:.1%} over rounds"
        what = f"median error of {UNSEEN} unseen sizes, both ways, by {carrier} ({over})"
        bars.append(at_most(what, median(found), ASKED, "{:.1%}"))
    columns = ["by", "latency", "a message", "bandwidth", "median error", "below, above 100 kB"]
    return Part("links", [*columns, "5 to 95 %", "repeat"], rows, bars, [], {"rounds": kept})


MAKES: dict[str, Any] = {
    "learners": learners, "choice": choice, "waiting": waiting, "links": links,
}  # fmt: skip
PARTS = {
    "learners": "one learner and two, predicted and measured",
    "choice": "the planner's choice beside every policy",
    "waiting": "environments that wait, on one host and on two",
    "links": "messages of unseen sizes beside the fits, by each carrier",
}


def command() -> int:
    """The command; --carrier is of all parts."""
    if find_spec("ray") is None:
        print("absent: Ray; pip install 'pearl-toolkit[ray]'")
        return ABSENT
    from tests.ray_cluster import ray_cluster

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--carrier", choices=("tcp", "ray"))
    given, rest = parser.parse_known_args()
    if given.carrier:
        QUIET["carrier"] = given.carrier
    with ray_cluster(cores=(2, 2)) as cluster:

        def run(name: str, quick: bool, data: Path | None) -> Part:
            made: Part = MAKES[name](cluster, quick=quick)
            return made

        return main("distribution", PARTS, rest, run)


if __name__ == "__main__":
    sys.exit(command())
