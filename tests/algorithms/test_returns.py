"""Returns of a rollout: what is learnt, what is kept of it, and when gradients begin."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

import pearl
from pearl.algorithms import algorithm
from pearl.errors import SpecError
from pearl.graph.liveness import live_rows, stored_arrays
from pearl.graph.period import expand
from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import load_plan
from pearl.runtime.protocol import single_lane
from pearl.training.trainer import Trainer
from pearl.verification import check_plan
from pearl_devices import Buffers
from tests.lanes import cut, differing, planned, trained

ENVS, STEPS = 4, 8
N_STEP = {"n_step": 3}
DISCOUNT = 0.9


def spec(name: str, returns: Any, env: str = "CartPole-v1", **options: Any) -> dict[str, Any]:
    own = {"a2c": {"optimiser": "adam"}, "ppo": {"epochs": 1, "minibatches": 1}}.get(name, {})
    given = {
        "num_envs": ENVS, "rollout_steps": STEPS, "hidden": [16, 12], "returns": returns,
        "max_grad_norm": 0.0, "discount": DISCOUNT, "entropy": 0.01, **own, **options,
    }  # fmt: skip
    train = {"steps": 640, "evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0}
    return {"algorithm": {"name": name, "env": env, **given}, "train": train}


def graph_of(given: dict[str, Any]) -> TaskGraph:
    return algorithm(given["algorithm"]["name"]).graph(pearl.load(given))


class Rollouts:
    """A trainer whose tasks are called one by one, and the vector steps that it stored."""

    def __init__(self, given: dict[str, Any], variant: str) -> None:
        system = pearl.load(given, set={"limits.max_lanes": 1})
        self.trainer = Trainer(system, pearl.plan(system), seed=3)
        self.graph, self.arrays = self.trainer.graph, self.trainer.session.arrays
        learning = ("advantages", "learn", "store")
        jobs = {
            t.name: single_lane.Job(
                (t.name,), t.kernel, "cpu", variant if t.name in learning else "native"
            )
            for t in self.graph.tasks
        }
        order = program_order(self.graph)
        self.steps = single_lane.bind(order, jobs, (), self.arrays)
        self.seen: list[Buffers] = []

    def run(self, after: Any = None) -> None:
        """One rollout. after: called with the name of each task that has fired, and how often."""
        fired: dict[str, int] = {}
        self.seen.clear()
        for step in self.steps:
            step.call()
            name = step.job.name
            if name == "store":
                self.seen.append({n: a.copy() for n, a in self.arrays.items() if "step." in n})
                for more in ("act.log_prob", "act.sample"):
                    if more in self.arrays:
                        self.seen[-1][more] = self.arrays[more].copy()
            if after:
                after(name, fired.get(name, 0))
            fired[name] = fired.get(name, 0) + 1


def network(flat: Tensor, layers: tuple[int, ...], x: Tensor) -> Tensor:
    offset = 0
    for layer, (i, o) in enumerate(pairwise(layers)):
        x = x @ flat[offset : offset + i * o].reshape(i, o) + flat[offset + i * o :][:o]
        offset += i * o + o
        x = torch.tanh(x) if layer < len(layers) - 2 else x
    return x


def returns_of(seen: list[Buffers], value: Any, ahead: int, trace: float) -> Tensor:
    """Forwards from each step, as a person would write them down: sums of at most `ahead` rewards,
    or the trace's mean of all of them."""
    found = torch.zeros(len(seen), ENVS, dtype=torch.float64)
    now = torch.stack([value(s["step.obs"]) for s in seen])
    after = torch.stack([value(s["step.next_obs"]) for s in seen])
    for t in range(len(seen)):
        for n in range(ENVS):
            total, weight, left = now[t, n], 1.0, ahead
            for s in range(t, len(seen)):
                over = seen[s]["step.terminated"][n] or seen[s]["step.truncated"][n]
                follows = 0.0 if seen[s]["step.terminated"][n] else after[s, n]
                error = float(seen[s]["step.reward"][n]) + DISCOUNT * follows - now[s, n]
                total, weight, left = total + weight * error, weight * DISCOUNT * trace, left - 1
                if over or left == 0:
                    break
            found[t, n] = total
    return found


CASES = {
    "a2c gae whole": ("a2c", "gae", {"gae_lambda": 0.8}, "whole"),
    "a2c monte_carlo whole": ("a2c", "monte_carlo", {}, "whole"),
    "a2c n_step window": ("a2c", N_STEP, {}, "window"),
    "a2c n_step normalised whole": ("a2c", N_STEP, {"normalise_advantages": True}, "whole"),
    "ppo n_step whole": ("ppo", N_STEP, {}, "whole"),
    "ppo n_step window": ("ppo", N_STEP, {"normalise_advantages": False}, "window"),
    "reinforce n_step window": (
        "examples.reinforce", N_STEP, {"normalise_advantages": False}, "window",
    ),
    "reinforce monte_carlo": ("examples.reinforce", "monte_carlo", {}, "whole"),
}  # fmt: skip


@pytest.mark.sweep(3)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_a_program_written_by_hand(case, variant, env):
    """In float64, over the third rollout. The gradient is read off Adam's first moment."""
    name, returns, options, storage = CASES[case]
    if variant == "native" and name not in ("a2c", "ppo"):
        pytest.skip("a loss of the user's own has no native variant")
    made = Rollouts(spec(name, returns, env, learning_rate=1e-3, **options), variant)
    held = {a.array: a.storage for a in stored_arrays(made.graph)}
    assert held["rollout.obs"] == storage
    assert held["rollout.returns"] == ("none" if storage == "window" else "whole")
    made.run()
    made.run()
    before = {n: made.arrays[n].copy() for n in made.arrays if n.startswith("learner.")}
    made.run()
    layers = {n: made.graph.task("learn").kernel.layers(n) for n in ("actor", "critic")}
    actor, critic = (torch.tensor(before[f"learner.{n}"]).double().requires_grad_() for n in layers)

    def value(obs: Any) -> Tensor:
        with torch.no_grad():
            return network(critic, layers["critic"], torch.as_tensor(obs).double())[:, 0]

    trace = options.get("gae_lambda", 1.0)
    ahead = 3 if returns == N_STEP else STEPS
    target = returns_of(made.seen, value, ahead, trace).flatten()
    obs = torch.tensor(np.concatenate([s["step.obs"] for s in made.seen])).double()
    advantage = target - value(obs)
    if made.arrays["hyper.normalise"][0]:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    out = network(actor, layers["actor"], obs)
    density: Any
    if "act.sample" in made.arrays:
        density = torch.distributions.Normal(out, actor[-1:].exp())
        action = torch.tensor(np.concatenate([s["act.sample"] for s in made.seen])).double()
        log_prob, entropy = density.log_prob(action).sum(1), density.entropy().sum(1)
    else:
        density = torch.distributions.Categorical(logits=out)
        action = torch.tensor(np.concatenate([s["step.action"] for s in made.seen]))
        log_prob, entropy = density.log_prob(action), density.entropy()
    if "." in name:  # above the learner's own value
        advantage = target - value(obs)
    gain = advantage * log_prob  # where the ratio is 1, its gradient is the same, its value is A
    if name == "ppo" or (name == "a2c" and variant == "native"):
        gain = advantage * (log_prob - log_prob.detach()).exp()
    squares = (network(critic, layers["critic"], obs)[:, 0] - target).square()
    losses = (-gain.mean() - 0.01 * entropy.mean(), 0.5 * squares.mean())
    grads = torch.autograd.grad(sum(losses), (actor, critic))
    for part, loss, grad in zip(layers, losses, grads, strict=True):
        assert made.arrays[f"loss.{part}"][0] == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
        m = made.arrays[f"learner.{part}.m"].astype(float) - 0.9 * before[f"learner.{part}.m"]
        np.testing.assert_allclose(10 * m, grad.numpy(), atol=1e-5 * max(1, grad.abs().max()))
    assert made.arrays["learner.step"][0] == 3


def test_a_window_makes_the_first_gradient_fire_at_step_n() -> None:
    """Only the line of returns differs between the two specs."""
    first = {}
    for returns in ("monte_carlo", N_STEP):
        expansion = expand(graph_of(spec("a2c", returns)))
        waits = {expansion.node["learn", 0]}
        while more := {s for s, d, m, _ in expansion.arcs if d in waits and m == 0} - waits:
            waits |= more
        names = [expansion.units[expansion.nodes[node][0]][0] for node in waits]
        first[str(returns)] = Counter(names)
    acting = ("act", "step", "store")
    once = {"advantages": 1, "learn": 1}
    assert first["monte_carlo"] == {**dict.fromkeys(acting, STEPS), **once}
    assert first[str(N_STEP)] == {**dict.fromkeys(acting, 4), **once}  # of steps 0 … n


def test_live_bytes_of_a_thousand_steps_fall_sixteenfold() -> None:
    size = {}
    for returns in ("monte_carlo", {"n_step": 8}):
        graph = graph_of(spec("a2c", returns, rollout_steps=1000))
        size[str(returns)] = sum(a.bytes for a in stored_arrays(graph))
        assert graph.states["rollout"] == pytest.approx(size[str(returns)], abs=64)  # counters
    assert size["monte_carlo"] >= 16 * size["{'n_step': 8}"]


@pytest.mark.parametrize("n", [1, 3, 7, 8])
def test_an_array_has_the_rows_that_its_readers_leave_unread(n: int) -> None:
    graph = graph_of(spec("a2c", {"n_step": n}))
    rows = {a.array.removeprefix("rollout."): a.rows for a in stored_arrays(graph)}
    stored = live_rows(graph.edges, "store", ("advantages", "learn"), STEPS)
    assert stored == min(n + 1, STEPS)
    stored = min(stored + 1, STEPS)  # one is written while the others are read
    assert live_rows(graph.edges, "advantages", ("learn",), STEPS) == 1
    assert {rows[name] for name in ("obs", "action", "reward", "log_prob", "value")} == {stored}
    assert rows["returns"] == rows["advantage"] == 1


@pytest.mark.parametrize("variant", ["native", "torch"])
def test_nothing_is_read_once_it_is_free(variant: str) -> None:
    """Each row is overwritten with NaN when its last reader is over; what is learnt stays equal."""
    plain, poisoned = (Rollouts(spec("a2c", N_STEP), variant) for _ in range(2))

    def poison(name: str, firing: int, early: int = 0) -> None:
        if name != "learn":
            return
        for array in (n for n in poisoned.arrays if n.startswith("rollout.")):
            rows = poisoned.arrays[array]
            if rows.ndim > 1 and rows.dtype == np.float32:
                at = (int(poisoned.arrays["learner.at"][1]) - 1 + early) % len(rows)
                rows[at] = np.nan

    for _ in range(3):
        plain.run()
        poisoned.run(poison)
    learnt = [n for n in plain.arrays if n.startswith(("learner.", "policy.", "loss."))]
    assert all(np.array_equal(plain.arrays[n], poisoned.arrays[n]) for n in learnt)
    poisoned.run(lambda name, firing: poison(name, firing, early=1))  # that row is still to be read
    assert np.isnan(poisoned.arrays["learner.actor"]).any()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("lanes", ["threads", "processes"])
def test_several_lanes_learn_what_one_learns(lanes: str) -> None:
    given = {**spec("a2c", N_STEP), "limits": {"max_lanes": 2}}
    system, plan = planned(given)
    assert len(plan.lanes) == 2
    assert plan.task("learn").lane != plan.task("step").lane
    one, several = (trained(system, plan, hosted, steps=640) for hosted in ("one", lanes))
    assert differing(one, several) == []


def test_two_lanes_overlap_the_gradients_of_a_rollout_with_its_steps() -> None:
    """A vector step takes 200 us and its gradient 300 us: the sum of both without a window."""
    period = {}
    for returns in ("monte_carlo", N_STEP):
        given = {**spec("a2c", returns, rollout_steps=40), "limits": {"max_lanes": 2}}
        per_firing = {"advantages": 4e-3, "learn": 8e-3} if returns == "monte_carlo" else {}
        seconds = {"advantages": 1e-4, "learn": 2e-4, "act": 1e-4, "step": 1e-4,
                   "store": 3e-5, "sync": 5e-6, **per_firing}  # fmt: skip
        period[str(returns)] = planned(given, seconds=seconds)[1].period_s
    assert period["monte_carlo"] == pytest.approx(40 * 500e-6 + 35e-6, rel=1e-3)
    assert period[str(N_STEP)] <= period["monte_carlo"] / 1.5


def test_a_resumed_run_equals_one_that_was_never_cut(tmp_path: Any) -> None:
    system = pearl.load(spec("a2c", N_STEP), set={"train.checkpoint_every": 320})
    plan = pearl.plan(system)
    whole, half, resumed = (pearl.compile(system, plan=plan) for _ in range(3))
    whole.train(out=tmp_path / "whole")
    cut(half, 320, out=tmp_path / "half")
    resumed.train(out=tmp_path / "half", resume=True)
    assert differing(whole, resumed) == []


def test_learners_that_average_gradients_are_refused() -> None:
    with pytest.raises(SpecError, match="adds up its gradient one vector step after another"):
        pearl.plan(pearl.load({**spec("a2c", N_STEP), "limits": {"learners": 2}}))


def test_a_plan_says_what_is_kept_and_reads_it_back(tmp_path: Any) -> None:
    system = pearl.load(spec("a2c", N_STEP))
    plan = pearl.plan(system)
    plan.save(tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again.rollout == plan.rollout == stored_arrays(graph_of(spec("a2c", N_STEP)))
    assert [e.reach for e in again.edges if e.reach] == [3]
    assert pearl.compile(system, plan=again).train().status == "done"
    plan.save(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "those not yet read, as a ring buffer" in page
    assert "t..t+3" in page
    whole = replace(again, edges=tuple(replace(e, reach=0) for e in again.edges))
    with pytest.raises(SpecError, match="edge store → advantages of the graph"):
        check_plan(whole, plan.problem)


def test_the_spec_of_the_page_keeps_a_window() -> None:
    page = (Path(__file__).parents[2] / "docs/rollouts.md").read_text()
    text = page.partition("```yaml")[2].partition("```")[0]
    given = yaml.safe_load(text)["algorithm"]
    returns = given.pop("returns")
    graph = graph_of(spec(given.pop("name"), returns, rollout_steps=16, **given))
    assert {a.array: a.storage for a in stored_arrays(graph)}["rollout.obs"] == "window"
