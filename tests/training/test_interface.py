"""What a user puts between environments and network is part of the policy, wherever it plays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from safetensors.numpy import load_file

import pearl
from examples import normalised_dqn
from pearl.algorithms import dqn
from pearl.errors import SpecError
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Task
from pearl.testing import KernelKindContract
from pearl.training.evaluations.evaluation import evaluate
from pearl.training.policy_export import export
from pearl_devices import cpu, kernel
from pearl_devices.kernels.interface import resize
from pearl_devices.primitives.envs.evaluations import episode_seeds
from tests.lanes import SECONDS, differing, planned, replay_spec, trained
from tests.schemas.test_schemas import problems

HERE = "examples.normalised_dqn"
STATES = ("seen.mean", "seen.variance", "seen.count")
EPISODES = 5


def cartpole(num_envs: int = 1) -> gymnasium.Env[Any, Any]:
    """The same environment, by module path."""
    return gymnasium.make("CartPole-v1")


def spec(env: str = "CartPole-v1", **train: Any) -> dict[str, Any]:
    found = replay_spec("dqn", {"max_lanes": 1}, env=env)
    found["algorithm"]["name"] = HERE
    found["train"] |= train
    return {**found, "platform": "cpu_gpu"}


def played(policy: pearl.Policy, seed: int, *, scaled: bool) -> list[float]:
    """Returns of the network on observations that are scaled here, or on those of the environment,
    in episodes that an evaluation has."""
    k, found = policy.kernel, []
    choose = cpu.greedy(k, policy.parameters)
    env = gymnasium.make("CartPole-v1")
    for each in episode_seeds(seed, EPISODES):
        obs, _ = env.reset(seed=each)
        total, over = 0.0, False
        while not over:
            row = obs[np.newaxis]
            seen = normalised_dqn.scaled(row, policy.states).astype(np.float32) if scaled else row
            obs, reward, stop, late, _ = env.step(int(choose(seen)[0]))
            total, over = total + float(reward), stop or late
        found.append(total)
    return found


class TestNormalise(KernelKindContract):
    kernel = kernel(f"{HERE}:NORMALISE", {"envs": 4, "obs": 3})


@pytest.mark.parametrize("env", ["CartPole-v1", f"{__name__}:cartpole"])
def test_the_policy_that_was_trained_is_judged_saved_and_exported(env: str, tmp_path: Path) -> None:
    trainer = pearl.compile(spec(env, evaluate_every=400, evaluate_episodes=2), emulate=True)
    trainer.train(steps=1200, out=tmp_path)
    policy = trainer.policy
    assert policy.states.keys() == set(STATES)
    assert np.ptp(policy.states["seen.variance"]) > 0
    judged = evaluate(policy, EPISODES, 7)
    assert list(judged.returns) == played(policy, 7, scaled=True)
    assert list(judged.returns) != played(policy, 7, scaled=False)
    assert evaluate(policy, EPISODES, 7) == judged  # no statistic moves

    raw = np.random.default_rng(0).normal(0, 0.3, (64, 4)).astype(np.float32)
    seen = normalised_dqn.scaled(raw, policy.states).astype(np.float32)
    chosen = policy.act(raw)
    assert np.array_equal(chosen, cpu.greedy(policy.kernel, policy.parameters)(seen))
    assert not np.array_equal(chosen, cpu.greedy(policy.kernel, policy.parameters)(raw))
    assert policy.act(raw[3]) == chosen[3]

    loaded = pearl.Policy.load(tmp_path)
    assert np.array_equal(loaded.act(raw), chosen)
    assert evaluate(loaded, EPISODES, 7) == judged
    about = export(loaded, tmp_path / "out.safetensors")
    assert problems({**about, "path": "out"}, "export") == []
    assert about["interface"] == [
        {"changes": "env.obs", "function": f"{HERE}:look", "arrays": [*STATES], "sizes": {"obs": 4},
         "args": {}},
    ]  # fmt: skip
    held = load_file(tmp_path / "out.safetensors")
    for name in STATES:
        assert np.array_equal(held[f"interface.{name}"], policy.states[name])


def test_learning_sees_what_acting_sees_from_the_first_observation_on(monkeypatch):
    """The statistics of a run are followed here from what the environments gave."""
    first = normalised_dqn.initialise

    def known(buffers: Any, system: Any, seed: int) -> None:
        first(buffers, system, seed)
        buffers["seen.mean"][:], buffers["seen.count"][0] = 0.5, 10

    monkeypatch.setattr(normalised_dqn, "initialise", known)
    trainer = pearl.compile(spec(), emulate=True)
    trainer.train(steps=64)  # 8 vector steps of 8 environments
    a, k = trainer.session.arrays, trainer.graph.task("normalise").kernel
    kinds = {t.name: t.kernel for t in trainer.graph.tasks}
    other = pearl.compile(spec(), emulate=True).session.arrays
    step = cpu.bind(kinds["step"], "native", other)
    normalised_dqn.look(k, other)
    for at in range(8):
        rows = slice(8 * at, 8 * at + 8)
        assert np.array_equal(a["replay.obs"][rows], other["env.obs"])
        other["act.action"][:] = a["replay.action"][rows]
        step()
        normalised_dqn.normalise(k, other)
        assert np.array_equal(a["replay.next_obs"][rows], other["step.next_obs"])
    assert other["seen.count"][0] == 74
    assert np.array_equal(a["seen.mean"], other["seen.mean"])


def test_lanes_and_a_resumed_run_have_the_same_bits(tmp_path: Path) -> None:
    limits = {"max_lanes": 3, "policy_lag": 2, "prefetch": 1, "insertion_lag": 1}
    given = {**spec(), "platform": "host", "limits": limits}
    seconds = {**SECONDS, "normalise": 100e-6}
    system, plan = planned(given, seconds=seconds, variants=("native", "python"))
    assert len({plan.task(t).lane for t in ("step", "normalise", "act")}) > 1
    one, threads = (trained(system, plan, lanes, steps=800) for lanes in ("one", "threads"))
    assert one.session.arrays["seen.count"][0] == 800
    assert differing(one, threads) == []
    cut = trained(system, plan, "processes", steps=400, out=tmp_path)
    cut.train(out=tmp_path, steps=800, resume=True)
    assert differing(one, cut) == []


def test_an_evaluation_in_a_process_of_its_own_judges_the_same_policy() -> None:
    found = []
    for place in ("pauses", "lane"):
        given = spec(evaluate_every=400, evaluate_episodes=3, evaluate_in=place)
        trainer = pearl.compile({**given, "platform": "host"})
        run = trainer.train(steps=800)
        found.append((run.solution.best_mean, run.solution.best_env_steps))
        assert trainer.plan.evaluation is not None
        assert trainer.plan.evaluation.apart == (place == "lane")
        assert trainer.plan.evaluation.variant == "gymnasium"
    assert found[0] == found[1]


def test_a_warm_start_takes_the_statistics_along(tmp_path: Path) -> None:
    first = pearl.compile(spec(), emulate=True)
    first.train(steps=400, out=tmp_path)
    second = pearl.compile(spec(), emulate=True)
    second.train(steps=8, start_from=tmp_path / "policy_last.safetensors")
    assert second.session.arrays["seen.count"][0] == 408


RECORD = """
import numpy as np
from examples.normalised_dqn import *
from pearl.algorithms import dqn
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Task
from pearl_devices import kernel
from pearl_devices.kernels import LEFT_OUT, KernelKind
def noise(k, a): a["env.obs"][:] += 0.1
def flip(k, a): a["act.action"][:] = 1 - a["act.action"]
def learns(k, a): a["own.scale"][:] = 2
ARRAYS = {
    "OBS": lambda k: {
        "env.obs": ((k.dim("envs"), 4), "float32"), "own.scale": ((1,), "float32")
    },
    "ACT": lambda k: {"act.action": ((k.dim("envs"),), "int64")},
}
KIND = KernelKind(
    arrays=ARRAYS["WHAT"], writes=WRITES, variants={"python": "placed.between:FUNCTION"}, GIVEN
)
def graph(system):
    task = Task("between", kernel("placed.between:KIND", envs=8))
    return inserted(dqn.graph(system), task, PLACE)
initialise = dqn.initialise
"""
OBSERVED = {
    "WHAT": "OBS", "WRITES": "('env.obs',)", "FUNCTION": "noise",
    "PLACE": "after='step', before='act'",
}  # fmt: skip
ACTED = {
    "WHAT": "ACT", "WRITES": "('act.action',)", "FUNCTION": "flip",
    "PLACE": "after='act', before='step'",
}  # fmt: skip


def between(
    folder: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, str], given: str
) -> dict[str, Any]:
    """A spec whose algorithm has a kernel between environments and network."""
    from pearl_devices.kernels import _own

    text = RECORD
    for name, value in {**parts, "GIVEN": given}.items():
        text = text.replace(name, value)
    (folder / "placed").mkdir(exist_ok=True)
    (folder / "placed/between.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    for name in ("placed", "placed.between"):
        sys.modules.pop(name, None)
    _own.cache_clear()
    found = spec()
    found["algorithm"]["name"] = "placed.between"
    return found


@pytest.mark.parametrize("parts", [OBSERVED, ACTED])
def test_a_record_that_does_not_say_what_evaluation_does_is_refused_before_a_run(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = between(tmp_path, monkeypatch, parts, "")
    for refused in (pearl.plan, pearl.compile):
        with pytest.raises(
            SpecError,
            match=r"task 'between' \(kernel kind placed.between:KIND\) writes the "
            r"(observations|actions) .*does not say what evaluation does.*LEFT_OUT if",
        ):
            refused(pearl.load(found))


def test_a_kernel_on_the_actions_is_part_of_the_policy_or_left_out(tmp_path, monkeypatch):
    raw = np.random.default_rng(0).normal(0, 0.3, (32, 4)).astype(np.float32)
    for given, flipped in (
        ("in_evaluation='placed.between:flip'", 1),
        ("in_evaluation=LEFT_OUT", 0),
    ):
        found = between(tmp_path, monkeypatch, ACTED, given)
        policy = pearl.compile(found, emulate=True).policy
        bare = cpu.greedy(policy.kernel, policy.parameters)(raw)
        assert np.array_equal(policy.act(raw), np.abs(flipped - bare))


def test_whoever_reads_what_a_kernel_writes_waits_for_it() -> None:
    loop = normalised_dqn.graph(pearl.load(spec()))
    task = loop.task("normalise")
    bare = dqn.graph(pearl.load(spec()))
    other = inserted(bare, task, after="step", before="store")
    for graph in (loop, other):
        ends = {(e.src, e.dst, e.tokens_seq) for e in graph.edges if task.name in (e.src, e.dst)}
        assert ends == {("step", "normalise", 0), ("normalise", "act", 1),
                        ("normalise", "store", 0),
                        ("normalise", "normalise", 1)}  # fmt: skip
        assert not [f for f in graph.fusions if "step" in f.tasks]


def test_where_observations_cannot_be_changed_the_true_reason_is_said(tmp_path, monkeypatch):
    given = spec(on_env_failure="restart")
    with pytest.raises(SpecError, match=r"given 'restart'; normalise changes the network"):
        pearl.compile(given)
    given = {**spec(), "limits": {"env_groups": 2, "policy_lag": 1}}
    with pytest.raises(SpecError, match=r"env_groups is 2, each group has its own observations"):
        pearl.compile(given)
    loop = normalised_dqn.graph(pearl.load(spec()))
    again = Task("again", resize(loop.task("normalise").kernel, 8))
    with pytest.raises(SpecError, match=r"normalise is on this edge, and one of the two tasks"):
        inserted(loop, again, after="step", before="act")
    chain = inserted(loop, again, after="normalise", before="act")
    order = [t.name for t in chain.tasks]
    assert order.index("step") < order.index("normalise") < order.index("again")
    with pytest.raises(SpecError, match=r"an initial token: act begins with data from be"):
        inserted(loop, Task("other", again.kernel), after="sync", before="act")
    with pytest.raises(SpecError, match=r"no edge carries data from learn to act"):
        inserted(loop, Task("other", again.kernel), after="learn", before="act")
