"""Plans over two hosts: `python -m benchmarks.distribution [policies] [kills] [learners] [choice]
[waiting] [handled] [--carrier tcp|ray] [--quick] [--json FILE]`.

The hosts are two raylets of this machine (`benchmarks.two_hosts`). By default policies and kills.

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
waiting: env steps a second of PPO with 16 and 64 environments that sleep 8 ms each, on one host, on
    the other host, and as the planner has them with two copies of the actors. No number of hosts
    gives more than all environments in 8 ms, which the table tells.
handled: CPU time that a run takes for a message beside carrying it, at home.
carrier: what carries the messages of all runs, by default that of the product.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import distribution_rates
from benchmarks.bars import Bar, Part, at_least, at_most
from benchmarks.run import main
from benchmarks.two_hosts import (
    ALL,
    LEARNERS,
    POLICIES,
    SEED,
    SOURCES,
    planned,
    spec_of,
    trained,
    with_raylets,
)

KILLS = 30
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


def kills(cluster: Any, *, quick: bool) -> Part:
    """Actors and a raylet killed at drawn moments."""
    from pearl.training import loop
    from tests.ray_cluster import members

    dice, rows, wrong, done = random.Random(SEED), list[list[str]](), list[str](), 0
    loop.PROGRESS_S = 0.0

    def ended(name: str, policy: str, what: str, why: str, lost: int = 0) -> None:
        rows.append([name, policy, what, str(lost), f"not: {why}" if why else "as promised"])
        wrong.extend([f"{name}, {policy}, {what}: {why}"] if why else [])

    wanted, turn = 4 if quick else KILLS, 0
    cases = [("dqn", "synchronous_actors"), ("ppo", "central_inference")]
    cases += [("dqn", "asynchronous_actors"), ("ppo", LEARNERS)]
    while done < wanted:
        name, policy = cases[turn % len(cases)]
        turn += 1
        system, plan = planned(spec_of(name, policy, checkpoint_every=2048))
        calm = None if "asynchronous" in policy else trained(system, plan, "one")
        moments, killed = sorted(dice.sample(range(1, 8), 3)), list[int]()

        def strike(progress: Any, moments: list[int] = moments, killed: list[int] = killed) -> None:
            if len(killed) == len(moments):
                return
            if progress.env_steps < moments[len(killed)] * progress.total_steps / 8:
                return
            actors = [p for p in members(cluster.nodes["b"].pid) if "_RayLaneServer" in cmdline(p)]
            if actors:
                killed.append(dice.choice(actors))
                os.kill(killed[-1], 9)

        with tempfile.TemporaryDirectory() as folder:
            over = trained(system, plan, None, progress=strike, out=folder)
        done += len(killed)
        lost = over.run.lost_transitions
        ended(name, policy, str(len(killed)), unlike(calm, over, lost if calm else 0), lost)
    dqn = "dqn", "synchronous_actors"
    system, plan = planned(spec_of(*dqn, checkpoint_every=2048, steps=40_000))
    calm = trained(system, plan, "one")
    for lanes in ("ray", "processes", "one")[: 1 if quick else 3]:
        why = resumed(system, plan, calm, lanes, dice.uniform(0.1, 0.6))
        ended(*dqn, f"this process; goes on with lanes {lanes}", why)
        done += 1
    system, plan = planned(spec_of(*dqn, checkpoint_every=2048))
    calm, struck = trained(system, plan, "one"), list[int]()

    def fell(progress: Any) -> None:
        if not struck and progress.env_steps >= progress.total_steps / 3:
            struck.append(1)
            cluster.kill("b")

    ended(*dqn, "the raylet", unlike(calm, trained(system, plan, None, progress=fell)))
    bars = [
        at_least("kills", done + 1, wanted, "{}"),
        Bar("runs that ended otherwise", "; ".join(wrong) or "0", "0", not wrong),
    ]
    return Part("kills", ["algorithm", "policy", "kills", "lost", "ended"], rows, bars)


def unlike(calm: Any, over: Any, lost: int = 0) -> str:
    """How a run ended that was to be done, with the bits of a calm one; "": so."""
    if over.run.status != "done":
        return f"{over.run.status} {over.run.message}"
    if lost:
        return f"{lost} transitions lost"
    return ", ".join(differing(calm, over)) if calm else ""


def resumed(system: Any, plan: Any, calm: Any, lanes: str, after_s: float) -> str:
    """A process that trains over the nodes is killed with signal 9 so long after its first
    checkpoint; its run goes on from there with its lanes as said. How that ended, as `unlike`."""

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
                return f"it ended by itself with {run.returncode}"
            time.sleep(0.01)
        time.sleep(after_s)
        run.kill()
        if run.wait() != -9:
            return "it was done before it was killed"
        over = trained(system, plan, lanes, out=out, resume=True)
    return unlike(calm, over)


def cmdline(pid: int) -> str:
    """The command line of a process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return words.read().replace(b"\0", b" ").decode()
    except OSError:
        return ""


MAKES: dict[str, Any] = {
    "policies": policies, "kills": kills, "learners": distribution_rates.learners,
    "choice": distribution_rates.choice, "handled": distribution_rates.handled,
    "waiting": distribution_rates.waiting,
}  # fmt: skip
PARTS = {
    "policies": "ways to share out tasks: bits, messages and bytes",
    "kills": "actors, a node and the process that trains are killed",
    "learners": "one learner and two, predicted and measured",
    "choice": "the planner's choice beside every policy",
    "waiting": "environments that wait, on one host and on two",
    "handled": "CPU time of a message beside carrying it",
}


def command(cluster: Any) -> int:
    """The command; --carrier is of all parts."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--carrier", choices=("tcp", "ray"))
    given, rest = parser.parse_known_args()
    if given.carrier:
        ALL["carrier"] = given.carrier
    if not PARTS.keys() & rest:
        rest += ["policies", "kills"]

    def run(name: str, quick: bool, data: Path | None) -> Part:
        made: Part = MAKES[name](cluster, quick=quick)
        return made

    return main("distribution", PARTS, rest, run)


if __name__ == "__main__":
    sys.exit(with_raylets(command))
