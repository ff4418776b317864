"""Plans over two hosts: `python -m benchmarks.distribution [policies] [kills] [learners] [choice]
[handled] [--carrier tcp|ray] [--quick] [--json FILE]`.

Two raylets of this machine stand for two hosts, each with a core of its own; the extra [ray] is
needed. What a real network adds is not shown here.

policies: one DQN and one PPO source under six ways to share out their tasks, each a set of limits.
    Parameters are those of the same plan in one thread, bit for bit, and without slack those of the
    sequential program; messages and bytes are the plan's. With averaged gradients they are those of
    one learner but for rounding.
kills: actors of Ray, a raylet and the process that trains are killed with signal 9 at drawn moments
    of runs; those end with the bits of runs that were never killed, the last gone on with from its
    checkpoint, over the nodes and on this host alone.
learners: env steps a second of one learner and of two with averaged gradients, a host each, where
    the network is wide and the batch large, measured and predicted.
choice: env steps a second of the planner's choice beside one host and every policy, interleaved,
    where a step of an environment takes microseconds, 1 ms and 8 ms (16 of them, which sleep).
handled: CPU time that a run takes for a message beside carrying it, at home.
carrier: what carries the messages of all runs, by default that of the product.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.bars import Bar, Part, show, verdict
from pearl.formatting import si

NODES = ("a", "b")
HOME, AWAY = "a/cpu", "b/cpu"
KILLS = 30
PAIRS = 3
SEED = 3

STORED = ("replay_insert", "replay_sample", "replay_update", "rollout_insert", "gae")
"""Tasks of a replay or a rollout, of which an algorithm has some."""

SOURCES: dict[str, dict[str, Any]] = {
    "dqn": {
        "name": "dqn",
        "env": "CartPole-v1",
        "num_envs": 8,
        "hidden": [64, 64],
        "batch_size": 64,
        "replay_ratio": "1/4",
        "learning_starts": 256,
        "replay": {"capacity": 10_000, "kind": "uniform"},
    },
    "ppo": {
        "name": "ppo",
        "env": "CartPole-v1",
        "num_envs": 8,
        "rollout_steps": 32,
        "minibatches": 4,
        "epochs": 2,
        "hidden": [64, 64],
    },
}
STEPS = {"dqn": 8_000, "ppo": 16_384}

LEARNERS = "data_parallel_learners"
FEW_STEPS = {"dqn": 800, "ppo": 3_328}
"""Env steps with 100 gradient steps or a few more, after which parameters are compared with those
of one learner: later two runs act differently, and have nothing to do with each other."""
WIDE: dict[str, Any] = {"hidden": [512, 512], "batch_size": 1024, "learning_starts": 1024}
"""Changes of DQN's source with which a gradient step takes longer than a reduction."""

ONE_COPY = {"replicas": {"env_step": 1, "inference": 1}}
"""Copies of actors draw from streams of their own, so a plan with several has other bits than the
sequential program, wherever it runs."""

POLICIES: dict[str, dict[str, Any]] = {
    "one_host": {"distribution": "one_host"},
    "synchronous_actors": {"distribution": "synchronous_actors", **ONE_COPY},
    "central_inference": {"distribution": "central_inference", **ONE_COPY},
    "networks apart": {"pin": {**dict.fromkeys(("env_step", *STORED), AWAY), "*": HOME}},
    "asynchronous_actors": {"distribution": "asynchronous_actors", "policy_lag": 4},
    LEARNERS: {"distribution": LEARNERS, "learners": 2},
}
"""Name → limits. A pin of `*` is one of every task that no other names. Without a GPU networks have
a host of their own in place of `accelerated_networks`."""


WAITING = {"env": "benchmarks.slow_env:sleeping", "learning_starts": 64, "replay_ratio": "1/16"}
WAITS: dict[str, tuple[dict[str, Any], int]] = {
    "microseconds": ({}, 40_000),
    "1 ms, 16 environments": ({**WAITING, "env_args": {"ms": 1.0}, "num_envs": 16}, 4_000),
    "8 ms, 16 environments": ({**WAITING, "env_args": {"ms": 8.0}, "num_envs": 16}, 800),
}
"""What an env_step takes → changes of DQN's source, env steps of a run."""


ALL: dict[str, Any] = {}
"""Keys of `train` in every run."""


def spec_of(name: str, policy: str, platform: Any = "ray", **train: Any) -> dict[str, Any]:
    """The spec of an algorithm under a policy. The section of the algorithm is the same in all."""
    from pearl.algorithms import algorithm
    from pearl.spec.reading import load

    quiet = {"steps": STEPS[name], "evaluate_every": 0, "final_episodes": 0, "seed": SEED}
    spec = {
        "algorithm": copy.deepcopy(SOURCES[name]),
        "platform": platform,
        "train": quiet | ALL | train,
    }
    limits = copy.deepcopy(POLICIES[policy])
    if "pin" in limits:
        system = load({**spec, "platform": "host"})
        tasks = [t.name for t in algorithm(name).graph(system).tasks]
        rest = limits["pin"].pop("*", None)
        given = limits["pin"]
        limits["pin"] = {t: given.get(t, rest) for t in tasks if given.get(t, rest)}
    return spec | {"limits": limits}


def planned(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """System and plan of a spec."""
    import pearl

    system = pearl.load(spec)
    return system, pearl.plan(system)


def trained(system: Any, plan: Any, lanes: str | None, **options: Any) -> Any:
    """A trainer after its run, with its lanes as said; by default as the plan says."""
    from pearl.training.trainer import Trainer

    train = copy.copy(system.train)
    object.__setattr__(train, "lanes", lanes)
    trainer = Trainer(replace(system, train=train), plan, seed=SEED)
    trainer.run = trainer.train(**options)  # type: ignore[attr-defined]
    return trainer


def differing(one: Any, other: Any) -> list[str]:
    """The arrays of two runs that are not equal bit for bit; what firings tell each other aside."""
    from tests.lanes import differing as found

    return found(one, other)


def crossing(trainer: Any, island: Any, *, out: bool) -> float:
    """Bytes of the edges between an island and the rest, an iteration, in one direction."""
    graph = trainer.session.compiled.replica_graph
    sent = {
        (e.src, e.bytes)
        for e in graph.edges
        if e.bytes and (e.src in island.tasks) == out and (e.dst in island.tasks) != out
    }
    return sum(size * graph.repetition[task] for task, size in sent)


def policies(*, quick: bool) -> Part:
    """The table of policies."""
    from pearl.runtime.remote import batching

    rows, bars = [], []
    for name in ("dqn",) if quick else SOURCES:
        reference = None
        for policy in POLICIES:
            if name == "ppo" and policy in ("asynchronous_actors", "networks apart"):
                continue  # a rollout lies with inference, and in order
            system, plan = planned(spec_of(name, policy))
            over = trained(system, plan, None)
            run, c = over.run, over.session.compiled
            said = f"{name}, {policy}"
            lanes = len([k for k in plan.lanes if k.width > 0])
            if "asynchronous" in policy:
                oldest = max(map(int, run.lags["policy_lag"]))
                bars.append(Bar(f"{said}: age", str(oldest), "at most 4", oldest <= 4))
                found = f"rows at most {oldest} versions old"
            else:
                same = trained(system, plan, "one")
                wrong = differing(same, over)
                beside = "one thread"
                if policy == LEARNERS:
                    bars += averaged(name, said, over)
                else:
                    beside += " and the sequential program"
                    reference = reference or same
                    others = differing(reference, same)
                    wrong += [n for n in others if "#" not in n and "@" not in n]
                bars.append(
                    Bar(
                        f"{said}: parameters beside {beside}",
                        "equal" if not wrong else ", ".join(wrong),
                        "equal bit for bit",
                        not wrong,
                    )
                )
                found = "bits equal" if not wrong else "differs"
                expected_flows = batching.flows(c.protocol, c.islands)
                turns = run.env_steps // c.graph.env_steps
                for island, flows in zip(c.islands, expected_flows, strict=True):
                    (told,) = [t for t in run.traffic if t["tasks"] == list(island.tasks)]
                    ways = ("to", "into", False), ("from", "out", True)
                    for way, side, out in ways:
                        expected = batching.planned(flows, [(0, turns)])[side]
                        seen = told[f"messages_{way}"]
                        size = told[f"payload_bytes_{way}"]
                        edges = crossing(over, island, out=out) * turns
                        bars.append(
                            Bar(
                                f"{said}: messages and bytes {way} {island.host}",
                                f"{seen}, {size}",
                                f"{expected}, {edges:.0f}",
                                (seen, size) == (expected, edges),
                            )
                        )
            traffic = sum(t["payload_bytes_to"] + t["payload_bytes_from"] for t in run.traffic)
            rate = run.env_steps_per_s or 0.0
            rows.append(
                [name, policy, str(lanes), f"{traffic / 1e6:.2f} MB", f"{rate:,.0f}", found]
            )
    columns = ["algorithm", "policy", "lanes", "payload", "env steps/s", "parameters"]
    return Part("policies", columns, rows, bars)


def averaged(name: str, said: str, over: Any) -> list[Bar]:
    """What several learners compute beside what one does: the mean gradient on the arrays that a
    run has left, and the parameters after a little more than 100 gradient steps."""
    import numpy as np

    several, one = (_mean_gradient(over, alone) for alone in (False, True))
    apart = max(float(np.linalg.norm(several[n] - g) / np.linalg.norm(g)) for n, g in one.items())
    runs = []
    for limits in (POLICIES[LEARNERS], {"distribution": "one_host"}):
        spec = spec_of(name, "one_host", steps=FEW_STEPS[name])
        spec["limits"] = {**limits, "variants": {"update": ["torch"]}}
        runs.append(trained(*planned(spec), "one"))
    learners, single = (r.session.arrays for r in runs)
    names = [
        n
        for n in learners
        if n.startswith("learner.") and n.replace("learner.", "policy.") in learners
    ]
    away = max(
        float(np.linalg.norm(learners[n] - single[n]) / np.linalg.norm(single[n])) for n in names
    )
    steps = runs[0].run.updates
    return [
        Bar(f"{said}: gradient of one step, of its norm", f"{apart:.1e}", "1e-6", apart <= 1e-6),
        Bar(
            f"{said}: parameters after {steps} steps",
            f"{away:.1e}",
            "1e-4",
            away <= 1e-4 and steps >= 100,
        ),
    ]


def _mean_gradient(trainer: Any, alone: bool) -> dict[str, Any]:
    """The mean gradients of a step on copies of a run's arrays; alone: by one learner."""
    from pearl_devices import backend, kernel
    from pearl_devices.buffers import allocate

    found = [t.kernel for t in trainer.graph.tasks if t.kernel.dims.get("learners")]
    gradients = [k for k in found if k.kind.startswith("learner_gradient.")]
    reduction = next(k for k in found if k.kind.startswith("all_reduce."))
    kernels = [*gradients, reduction]
    if alone:
        dims = {"learners": 1, "learner": 0}
        kernels = [
            kernel(k.kind, {**k.dims, **dims}, program=k.program, args=k.args)
            for k in (gradients[0], reduction)
        ]
    own = ("gradient.", "mean.")
    arrays = {n: a.copy() for n, a in trainer.session.arrays.items() if not n.startswith(own)}
    allocate(kernels, arrays)
    for k in kernels:
        backend("cpu").bind(k, "torch", arrays)()
    return {n: a for n, a in arrays.items() if n.startswith("mean.")}


def kills(cluster: Any, *, quick: bool) -> Part:
    """Actors and a raylet killed at drawn moments."""
    from pearl.training import loop
    from tests.ray_cluster import members

    dice, rows, wrong, done = random.Random(SEED), [], [], 0
    loop.PROGRESS_S = 0.0
    wanted = 4 if quick else KILLS
    cases = [("dqn", "synchronous_actors"), ("ppo", "central_inference")]
    cases += [("dqn", "asynchronous_actors"), ("ppo", LEARNERS)]
    turn = 0
    while done < wanted:
        name, policy = cases[turn % len(cases)]
        turn += 1
        system, plan = planned(spec_of(name, policy, checkpoint_every=2048))
        calm = None if "asynchronous" in policy else trained(system, plan, "one")
        moments = sorted(dice.sample(range(1, 8), 3))
        killed: list[str] = []

        def strike(progress: Any, moments: list[int] = moments, killed: list[str] = killed) -> None:
            due = len(killed) < len(moments) and (
                progress.env_steps >= moments[len(killed)] * progress.total_steps / 8
            )
            if not due:
                return
            actors = [p for p in members(cluster.nodes["b"].pid) if "_RayLaneServer" in cmdline(p)]
            if actors:
                os.kill(dice.choice(actors), 9)
                killed.append("actor")

        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            over = trained(system, plan, None, progress=strike, out=folder)
        done += len(killed)
        lost = over.run.lost_transitions
        same = calm is None or not differing(calm, over)
        fine = over.run.status == "done" and same and (calm is None or lost == 0)
        if not fine:
            wrong.append(f"{name}, {policy}: {over.run.status} {over.run.message}")
        rows.append([name, policy, str(len(killed)), str(lost), "as promised" if fine else "not"])
    longer = spec_of("dqn", "synchronous_actors", checkpoint_every=2048, steps=40_000)
    system, plan = planned(longer)
    calm = trained(system, plan, "one")
    for lanes in ("ray", "processes", "one")[: 1 if quick else 3]:
        fine, why = resumed(system, plan, calm, lanes, dice.uniform(0.1, 0.6))
        where = f"this process; goes on with lanes {lanes}"
        rows.append(
            ["dqn", "synchronous_actors", where, "0", "as promised" if fine else f"not: {why}"]
        )
        if not fine:
            wrong.append(f"{where}: {why}")
        done += 1
    system, plan = planned(spec_of("dqn", "synchronous_actors", checkpoint_every=2048))
    calm = trained(system, plan, "one")
    struck: list[int] = []

    def fell(progress: Any) -> None:
        if not struck and progress.env_steps >= progress.total_steps / 3:
            struck.append(1)
            cluster.kill("b")

    over = trained(system, plan, None, progress=fell)
    fine = over.run.status == "done" and not differing(calm, over)
    if not fine:
        wrong.append(f"raylet: {over.run.status} {over.run.message}")
    rows.append(["dqn", "synchronous_actors", "the raylet", "0", "as promised" if fine else "not"])
    bars = [
        Bar("kills", str(done + 1), f"at least {wanted}", done + 1 >= wanted),
        Bar("runs that ended otherwise", "; ".join(wrong) or "0", "0", not wrong),
    ]
    return Part("kills", ["algorithm", "policy", "kills", "lost", "ended"], rows, bars)


def resumed(system: Any, plan: Any, calm: Any, lanes: str, after_s: float) -> tuple[bool, str]:
    """A process that trains over the nodes is killed with signal 9 so long after its first
    checkpoint; its run goes on from there with its lanes as said. Whether that run ends with the
    bits of a calm one, and how else it ended."""
    import json
    import subprocess
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec, out = folder / "spec.json", folder / "run"
        spec.write_text(json.dumps(system.raw))
        plan.save(folder / "plan.json")
        command = [sys.executable, "-m", "pearl.cli", "train", str(spec), "--out", str(out)]
        command += ["--plan", str(folder / "plan.json"), "--set", f"train.seed={SEED}"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + 120
        while not list(out.glob("checkpoint*")) and time.monotonic() < until_s:
            if run.poll() is not None:
                return False, f"it ended by itself with {run.returncode}"
            time.sleep(0.01)
        time.sleep(after_s)
        run.kill()
        if run.wait() != -9:
            return False, "it was done before it was killed"
        over = trained(system, plan, lanes, out=out, resume=True)
    if over.run.status != "done":
        return False, f"{over.run.status} {over.run.message}"
    return not (found := differing(calm, over)), ", ".join(found)


def learners(cluster: Any, *, quick: bool) -> Part:
    """One learner and two, each host with a core of its own."""
    from pearl.cluster import links

    _pinned(cluster)
    links.measure()
    found, rows, bars = {}, [], []
    for policy in ("one_host", LEARNERS):
        spec = spec_of("dqn", policy, steps=WIDE["learning_starts"] + (320 if quick else 800))
        spec["algorithm"] |= WIDE
        found[policy] = planned(spec)
    rates: dict[str, list[float]] = {policy: [] for policy in found}
    for _ in range(1 if quick else PAIRS):
        for policy, (system, plan) in found.items():
            rates[policy].append(1 / trained(system, plan, None).run.drift.measured_s)
    for policy, (_, plan) in found.items():
        seen, told = median(rates[policy]), 1 / plan.period_s
        rows.append([policy, f"{told:.2f}", f"{seen:.2f}"])
        ratio = seen / told
        near = abs(ratio - 1) <= 0.15
        bars.append(Bar(f"{policy}: measured over predicted", f"{ratio:.2f}", "0.85 … 1.15", near))
    return Part("learners", ["policy", "iterations/s predicted", "measured"], rows, bars)


def handled(cluster: Any) -> Part:
    """CPU time of packing a message and of taking one, with what is due looked for, counts and
    bells."""
    from pearl.cluster.links import HANDLED_S
    from pearl.cluster.transport import Transport
    from pearl.runtime.remote.remote_worker import RemoteWorker

    _pinned(cluster)
    change, steps = WAITS["1 ms, 16 environments"]
    spec = spec_of("dqn", "synchronous_actors", steps=steps, carrier="tcp")
    spec["algorithm"] |= change
    system, plan = planned(spec)
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for kind, name in (
            (Transport, "send"),
            (RemoteWorker, "_post_due"),
            (RemoteWorker, "_take"),
        ):
            stack.enter_context(_clocked(kind, name, spent.setdefault(name, [])))
        trained(system, plan, None)
    carrying, posting, taking = (median(spent[n]) for n in ("send", "_post_due", "_take"))
    packing = posting - carrying
    rows = [[n, si(s, "s")] for n, s in (("packing", packing), ("taking", taking))]
    seen = packing + taking
    asked = f"{si(0.5 * HANDLED_S, 's')} … {si(2 * HANDLED_S, 's')}"
    near = 0.5 * HANDLED_S <= seen <= 2 * HANDLED_S
    bar = Bar("handling of a message", si(seen, "s"), f"{asked}, of a link's latency", near)
    return Part("handled", ["a message", "CPU time, median"], rows, [bar])


@contextmanager
def _clocked(kind: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Meanwhile the CPU time of a method's calls that do not return False goes into `spent`."""
    method = getattr(kind, name)

    def clocked(self: Any, *given: Any) -> Any:
        begin_s = time.thread_time()
        found = method(self, *given)
        if found is not False:
            spent.append(time.thread_time() - begin_s)
        return found

    setattr(kind, name, clocked)
    try:
        yield
    finally:
        setattr(kind, name, method)


def _pinned(cluster: Any) -> None:
    """Each node, and what runs there, has a core of its own where there are two."""
    from tests.ray_cluster import members

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    os.sched_setaffinity(0, {cores[0]})
    for name, core in zip(NODES, cores, strict=False):
        for pid in members(cluster.nodes[name].pid):
            os.sched_setaffinity(pid, {core})


def choice(cluster: Any, *, quick: bool) -> Part:
    """The planner's choice beside every policy, each host with a core of its own."""
    from pearl.cluster import links

    _pinned(cluster)
    links.measure()
    rows, bars = [], []
    for what, (change, steps) in WAITS.items():
        systems = {}
        for policy in ("chosen", "one_host", "synchronous_actors", "central_inference"):
            spec = spec_of("dqn", "one_host", steps=steps)
            spec["algorithm"] |= change
            copies = dict.fromkeys(("env_step", "inference"), 2)
            named = {} if policy == "chosen" else {"distribution": policy}
            spec["limits"] = named or {"replicas": copies}
            systems[policy] = planned(spec)
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(1 if quick else PAIRS):
            for name, (system, plan) in systems.items():
                rates[name].append(trained(system, plan, None).run.env_steps_per_s)
        plan = systems["chosen"][1]
        hosts = sorted({t.device.partition("/")[0] for t in plan.tasks})
        best = max((median(r), name) for name, r in rates.items() if name != "chosen")
        mine = median(rates["chosen"])
        spread = max(max(r) / min(r) for r in rates.values()) - 1
        allowed = max(0.05, spread)
        predicted = plan.rates["env_steps_per_s"]
        rows.append([what, ", ".join(hosts), *(f"{median(r):,.0f}" for r in rates.values())])
        close = mine >= best[0] * (1 - allowed)
        limit = f"at least {1 - allowed:.2f} of {best[1]}"
        bars.append(Bar(f"{what}: the choice", f"{mine / best[0]:.2f}", limit, close))
        ratio = mine / predicted
        near = abs(ratio - 1) <= 0.15
        bars.append(Bar(f"{what}: measured over predicted", f"{ratio:.2f}", "0.85 … 1.15", near))
        if "8 ms" in what:
            gain = mine / median(rates["one_host"])
            bars.append(
                Bar(f"{what}: beside one host", f"{gain:.2f}×", "at least 1.7×", gain >= 1.7)
            )
    columns = ["env_step", "hosts chosen", *(f"{n}, env steps/s" for n in rates)]
    return Part("choice", columns, rows, bars)


def cmdline(pid: int) -> str:
    """The command line of a process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return words.read().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.distribution", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--carrier", choices=("tcp", "ray"))
    given = parser.parse_args(argv)
    if given.carrier:
        ALL["carrier"] = given.carrier
    from tests.ray_cluster import ray_cluster

    parts = given.parts or ["policies", "kills"]
    found = []
    with ray_cluster(cores=(2, 2), names=NODES) as cluster:
        begin_s = time.monotonic()
        for name in parts:
            making: dict[str, Callable[[], Part]] = {
                "policies": lambda: policies(quick=given.quick),
                "learners": lambda: learners(cluster, quick=given.quick),
                "choice": lambda: choice(cluster, quick=given.quick),
                "kills": lambda: kills(cluster, quick=given.quick),
                "handled": lambda: handled(cluster),
            }
            found.append(making[name]())
            show(found[-1].title, found[-1].columns, found[-1].rows)
        print(f"{time.monotonic() - begin_s:.0f} s")
    bars = [bar for part in found for bar in part.bars]
    values = {"parts": [{"title": p.title, "columns": p.columns, "rows": p.rows} for p in found]}
    return verdict("distribution", bars, [], given.json, values)


if __name__ == "__main__":
    sys.exit(main())
