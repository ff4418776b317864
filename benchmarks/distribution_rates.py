"""Rates and times of runs over two hosts: parts of `benchmarks.distribution`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from benchmarks.bars import Bar, Part, at_least
from benchmarks.two_hosts import LEARNERS, pinned, planned, spec_of, trained
from pearl.formatting import si

PAIRS = 3
WIDE: dict[str, Any] = {"hidden": [512, 512], "batch_size": 1024, "learning_starts": 1024}
"""Changes of DQN's source with which a gradient step takes longer than a reduction."""
WAITING = {"env": "benchmarks.slow_env:sleeping", "learning_starts": 64, "replay_ratio": "1/16"}
WAITS: dict[str, tuple[dict[str, Any], int]] = {
    "microseconds": ({}, 40_000),
    "1 ms, 16 environments": ({**WAITING, "env_args": {"ms": 1.0}, "num_envs": 16}, 4_000),
    "8 ms, 16 environments": ({**WAITING, "env_args": {"ms": 8.0}, "num_envs": 16}, 800),
}
"""What an env_step takes → changes of DQN's source, env steps of a run."""


def learners(cluster: Any, *, quick: bool) -> Part:
    """One learner and two, each host with a core of its own."""
    from pearl.cluster import links

    pinned(cluster)
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
        bars.append(near(policy, seen / told))
    return Part("learners", ["policy", "iterations/s predicted", "measured"], rows, bars)


def near(what: str, ratio: float) -> Bar:
    close = abs(ratio - 1) <= 0.15
    return Bar(f"{what}: measured over predicted", f"{ratio:.2f}", "0.85 … 1.15", close)


def handled(cluster: Any, *, quick: bool) -> Part:
    """CPU time of packing a message and of taking one, with what is due looked for, counts and
    bells."""
    from pearl.cluster.links import HANDLED_S
    from pearl.cluster.transport import Transport
    from pearl.runtime.remote.remote_worker import RemoteWorker

    pinned(cluster)
    change, steps = WAITS["1 ms, 16 environments"]
    spec = spec_of("dqn", "synchronous_actors", steps=steps, carrier="tcp")
    spec["algorithm"] |= change
    system, plan = planned(spec)
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for kind, name in (
            (Transport, "send"),
            (RemoteWorker, "_send_ready"),
            (RemoteWorker, "_handle_message"),
        ):
            stack.enter_context(_clocked(kind, name, spent.setdefault(name, [])))
        trained(system, plan, None)
    carrying, posting, taking = (
        median(spent[n]) for n in ("send", "_send_ready", "_handle_message")
    )
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


def choice(cluster: Any, *, quick: bool) -> Part:
    """The planner's choice beside every policy, each host with a core of its own."""
    from pearl.cluster import links

    pinned(cluster)
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
        bars.append(at_least(f"{what}: the choice over {best[1]}", mine / best[0], 1 - allowed))
        bars.append(near(what, mine / predicted))
        if "8 ms" in what:
            gain = mine / median(rates["one_host"])
            bars.append(at_least(f"{what}: beside one host", gain, 1.7, "{:.2f}×"))
    columns = ["env_step", "hosts chosen", *(f"{n}, env steps/s" for n in rates)]
    return Part("choice", columns, rows, bars)


def waiting(cluster: Any, *, quick: bool) -> Part:
    """Environments that wait, in processes of their own, on one host and on two."""
    from pearl.cluster import links

    links.measure()
    load = os.getloadavg()[0]
    rows, bars = [], []
    rates: dict[tuple[int, str], float] = {}
    for envs in (16,) if quick else (16, 64):
        most = envs / 8e-3
        for policy in ("one_host", "synchronous_actors", "chosen"):
            spec = spec_of("ppo", "one_host", steps=320 * envs)
            spec["algorithm"] |= {
                "env": "benchmarks.slow_env:sleeping",
                "env_args": {"ms": 8.0},
                "num_envs": envs,
            }
            copies = {"replicas": dict.fromkeys(("env_step", "inference"), 2)}
            spec["limits"] = copies if policy == "chosen" else {"distribution": policy}
            system, plan = planned(spec)
            run = trained(system, plan, None).run
            seen, told = run.env_steps_per_s or 0.0, plan.rates["env_steps_per_s"]
            rates[envs, policy] = seen
            steps = [t for t in plan.tasks if t.task == "env_step"]
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
    columns = ["environments", "policy", "env_step", "env steps/s predicted", "measured"]
    values = {"load": load}
    return Part("waiting", [*columns, "of all in 8 ms"], rows, bars, values=values)
