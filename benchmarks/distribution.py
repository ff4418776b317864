"""Plans over two hosts: `python -m benchmarks.distribution [policies] [learners] [choice]
[waiting] [links] [--carrier tcp|ray] [--quick] [--json FILE]`.

The hosts are two raylets of this machine (`benchmarks.two_hosts`). By default policies.

policies: one DQN and one PPO source under six ways to share out their tasks, each a set of limits.
    Parameters are those of the same plan in one thread, bit for bit, and without slack those of the
    sequential program; messages and bytes are the plan's. With averaged gradients they are those of
    one learner but for rounding.
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
import sys
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part, at_most
from benchmarks.distribution_rates import choice, learners, links, waiting
from benchmarks.run import main
from benchmarks.two_hosts import (
    ALL,
    LEARNERS,
    POLICIES,
    SOURCES,
    planned,
    spec_of,
    trained,
    with_raylets,
)

FEW_STEPS = {"dqn": 800, "ppo": 3_328}
"""Env steps with 100 gradient steps or a few more, after which parameters are compared with those
of one learner: later two runs act differently, and have nothing to do with each other."""


def differing(one: Any, other: Any) -> list[str]:
    """The arrays of two runs that are not equal bit for bit; what firings tell each other aside."""
    from tests.lanes import differing as found

    return found(one, other)


def crossing(trainer: Any, island: Any, out: bool) -> float:
    """Bytes of the edges between an island and the rest, an iteration, in one direction."""
    graph = trainer.session.compiled.replica_graph
    sent = {
        (e.src, e.bytes)
        for e in graph.edges
        if e.bytes and (e.src in island.tasks) == out and (e.dst in island.tasks) != out
    }
    return sum(size * graph.repetition[task] for task, size in sent)


def policies(cluster: Any, *, quick: bool) -> Part:
    """The table of policies."""
    rows, bars = [], []
    for name in ("dqn",) if quick else SOURCES:
        reference = None
        for policy in POLICIES:
            if name == "ppo" and policy in ("asynchronous_actors", "networks apart"):
                continue  # a rollout lies with inference, and in order
            system, plan = planned(spec_of(name, policy))
            over = trained(system, plan, None)
            run, said = over.run, f"{name}, {policy}"
            if "asynchronous" in policy:
                oldest = max(map(int, run.lags["policy_lag"]))
                bars.append(at_most(f"{said}: age", oldest, 4, "{}"))
                found = f"rows at most {oldest} versions old"
            else:
                same, beside = trained(system, plan, "one"), "one thread"
                wrong = differing(same, over)
                if policy == LEARNERS:
                    bars += averaged(name, said, over)
                else:
                    beside += " and the sequential program"
                    reference = reference or same
                    others = differing(reference, same)
                    wrong += [n for n in others if "#" not in n and "@" not in n]
                what, how = f"{said}: parameters beside {beside}", ", ".join(wrong) or "equal"
                bars.append(Bar(what, how, "equal bit for bit", not wrong))
                found = "bits equal" if not wrong else "differs"
                bars += messages(said, over)
            traffic = sum(t["payload_bytes_to"] + t["payload_bytes_from"] for t in run.traffic)
            lanes = len([k for k in plan.lanes if k.width > 0])
            figures = [str(lanes), f"{traffic / 1e6:.2f} MB", f"{run.env_steps_per_s or 0.0:,.0f}"]
            rows.append([name, policy, *figures, found])
    columns = ["algorithm", "policy", "lanes", "payload", "env steps/s", "parameters"]
    return Part("policies", columns, rows, bars)


def messages(said: str, over: Any) -> list[Bar]:
    """Messages and bytes between home and each island, beside the plan's."""
    from pearl.runtime.remote import batching

    run, c, bars = over.run, over.session.compiled, []
    turns = run.env_steps // c.graph.env_steps
    for island, flows in zip(
        c.remote_groups, batching.plan_flows(c.protocol, c.remote_groups), strict=True
    ):
        (told,) = [t for t in run.traffic if t["tasks"] == list(island.tasks)]
        for way, side, out in (("to", "inbound", False), ("from", "outbound", True)):
            seen = told[f"messages_{way}"], told[f"payload_bytes_{way}"]
            asked = (
                batching.message_count(flows, [(0, turns)])[side],
                crossing(over, island, out) * turns,
            )
            what = f"{said}: messages and bytes {way} {island.host}"
            counts = f"{asked[0]}, {asked[1]:.0f}"
            bars.append(Bar(what, f"{seen[0]}, {seen[1]}", counts, seen == asked))
    return bars


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
    names = [n for n in learners if n.startswith("learner.")]
    names = [n for n in names if n.replace("learner.", "policy.") in learners]
    norm = np.linalg.norm
    away = max(float(norm(learners[n] - single[n]) / norm(single[n])) for n in names)
    steps = runs[0].run.updates
    far = f"{said}: parameters after {steps} steps"
    return [
        at_most(f"{said}: gradient of one step, of its norm", apart, 1e-6, "{:.1e}"),
        Bar(far, f"{away:.1e}", "1e-4", away <= 1e-4 and steps >= 100),
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
        both = (gradients[0], reduction)
        kernels = [kernel(k.kind, k.dims | dims, program=k.program, args=k.args) for k in both]
    own = ("gradient.", "mean.")
    arrays = {n: a.copy() for n, a in trainer.session.arrays.items() if not n.startswith(own)}
    allocate(kernels, arrays)
    for k in kernels:
        backend("cpu").bind(k, "torch", arrays)()
    return {n: a for n, a in arrays.items() if n.startswith("mean.")}


MAKES: dict[str, Any] = {
    "policies": policies, "learners": learners, "choice": choice, "waiting": waiting,
    "links": links,
}  # fmt: skip
PARTS = {
    "policies": "ways to share out tasks: bits, messages and bytes",
    "learners": "one learner and two, predicted and measured",
    "choice": "the planner's choice beside every policy",
    "waiting": "environments that wait, on one host and on two",
    "links": "messages of unseen sizes beside the fits, by each carrier",
}


def command(cluster: Any) -> int:
    """The command; --carrier is of all parts."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--carrier", choices=("tcp", "ray"))
    given, rest = parser.parse_known_args()
    if given.carrier:
        ALL["carrier"] = given.carrier
    if not PARTS.keys() & rest:
        rest += ["policies"]

    def run(name: str, quick: bool, data: Path | None) -> Part:
        made: Part = MAKES[name](cluster, quick=quick)
        return made

    return main("distribution", PARTS, rest, run)


if __name__ == "__main__":
    sys.exit(with_raylets(command))
