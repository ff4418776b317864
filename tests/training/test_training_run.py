"""Parts of a run on twins of what they use: its end, its events, its binding, and what goes on."""

from __future__ import annotations

from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from pearl.errors import SpecError
from pearl.planning.costs import CostTable
from pearl.runtime.environments.external_envs import TIME_LIMIT_S
from pearl.testing.graphs import devices, loop, mode, star
from pearl.training import lane_binding, plan_change, replanning
from pearl.training.checkpoints import resuming, warm_start
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.interruption import Interruption
from pearl.training.milestones import Milestones
from pearl.training.session import ResumePoint
from pearl.training.steering import CallbackList
from pearl.training.training_run import TrainingRun


def run_of(**fields: Any) -> Any:
    """A run that has these fields alone; `told` takes down what its twins were asked."""
    run: Any = TrainingRun.__new__(TrainingRun)
    arrays = {"loss.q": np.array([0.5, 9]), "learner.step": np.array([7, 1]),
              "episode.count": np.array([2]), "episode.returns": np.array([3.0, 5.0])}  # fmt: skip
    state = RunState(iteration=10, wall_s=1.5, cpu_s=2.5, best_mean=8.0, last_mean=6.0)
    compiled = Given(graph=Given(env_steps=8), plan=Given(rates={"env_steps_per_s": 4.0}))
    plain: dict[str, Any] = {
        "session": Given(state=state, compiled=compiled, arrays=arrays), "rate": 3.0,
        "milestones": Milestones(20, 3, 6, 8, 6, 5), "callbacks": CallbackList([]),
        "interruption": Interruption(), "latest": None, "phase": "training", "folder": None,
        "loop_s": 0.0, "in_lanes_s": 0.0, "paused_s": 0.0,
    }  # fmt: skip
    vars(run).update({**plain, **fields})
    return run


@pytest.mark.parametrize("latest", [None, (Evaluation((1.0, 3.0), 0, 9), 5)])
def test_an_event_has_the_numbers_of_its_moment(latest: Any) -> None:
    halted: list[int] = []
    run = run_of(latest=latest, folder="there")
    run.session.policy = lambda which: Given(copy=lambda: which)
    run.lanes = Given(is_single_lane=True, halt=lambda: halted.append(1))
    event = run._event("on_progress", None)
    assert {**vars(event), "policies": 0} == {
        "env_steps": 80, "total_steps": 160, "mean_return": 4.0, "env_steps_per_s": 3.0,
        "predicted_env_steps_per_s": 4.0, "eval_mean": 6.0, "phase": "training", "iteration": 10,
        "updates": 7, "episodes": 2, "wall_s": 1.5, "cpu_s": 2.5, "losses": {"q": 0.5},
        "eval_returns": (1.0, 3.0) if latest else (), "eval_env_steps": 40 if latest else None,
        "best_mean": 8.0, "folder": "there", "run": None, "policies": 0,
    }  # fmt: skip
    assert (event.policy, event.policy_last, halted) == ("best", "last", [1, 1])
    run.lanes.is_single_lane = False
    event = run._event("on_progress", None)
    assert event.policy == "best"
    with pytest.raises(ValueError, match=r"event.policy_last in on_progress: the plan has several"):
        event.policy_last  # noqa: B018
    assert run._event("on_end", None).policy_last == "last"
    assert len(halted) == 2


# Binding


def session(**fields: Any) -> Any:
    train = Given(env_time_limit=None, on_env_failure="stop")
    lanes = [Given(firings=[1, 2]), Given(firings=[3])]
    compiled = Given(
        emulate=False, system=Given(train=train, raw={}), protocol=Given(lanes=lanes),
        plan=Given(period_s=0.5, pace_s=0.25), graph="graph",
    )  # fmt: skip
    plain: dict[str, Any] = {"compiled": compiled, "state": RunState(iteration=4), "arrays": {},
                             "resume_point": None, "acting": None}  # fmt: skip
    return Given(**{**plain, **fields})


def test_lanes_are_bound_by_the_words_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_binding, "plan_sampling", lambda *given: given)
    marks, own = Milestones(20, 3, 6, 8, 6, 5), session()
    assert lane_binding._sampling(own, marks) == (3, 0.5, 6, 20)
    own.state.iteration = 6
    assert lane_binding._sampling(own, marks) == (3, 0.5, 7, 20)
    assert lane_binding._pace_s(own) == 0.25
    assert lane_binding._env_time_limit_s(own) == TIME_LIMIT_S
    assert (lane_binding._restarts_envs(own), lane_binding._snapshots(own)) == (False, None)
    own.compiled.emulate = True
    assert lane_binding._sampling(own, marks) is lane_binding.UNTIMED
    assert lane_binding._pace_s(own) is None
    own.compiled.system.train = Given(env_time_limit=2.0, on_env_failure="restart")
    own.resume_point = Given(environments={"step": [1]})
    assert lane_binding._env_time_limit_s(own) == 2.0
    assert (lane_binding._restarts_envs(own), lane_binding._snapshots(own)) == (
        True, {"step": [1]}
    )  # fmt: skip


# Going on


@pytest.mark.parametrize(
    ("single", "under_way", "done", "own", "said"),
    [
        (True, {}, 0, True, None),
        (True, {"part": 1}, 0, True, None),
        (True, {"part": 1}, 2, True, None),
        (True, {"part": 1}, 0, False, "was written during an iteration, which only its own plan"),
        (True, {"part": 1}, 3, True, "counts 3 gradient steps of a firing as done; a firing of"),
        (True, {}, 1, True, "under_way has []; by loop.stop, ['part'] is needed"),
        (True, {"begin": 1}, 0, True, "under_way has ['begin']; by loop.stop, ['part'] is needed"),
        (False, {"begin": 1, "a": 2}, 0, True, None),
        (False, {"begin": 1}, 0, True, "['begin']; by loop.stop, ['a', 'begin'] is needed"),
    ],
)  # fmt: skip
def test_an_unfinished_iteration_is_gone_on_with_by_its_own_plan(
    single: bool, under_way: Any, done: int, own: bool, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "is_interruptible", lambda kernel: kernel.inside)
    steps = [Given(kernel=Given(inside=inside, dim=lambda name, n=n: n))
             for inside, n in ((True, 3), (True, 2), (False, 9))]  # fmt: skip
    protocol = Given(is_single_lane=single, graph=Given(tasks=[Given(name="a")]))
    made: Any = Given(
        compiled=Given(protocol=protocol, jobs=dict(enumerate(steps))),
        state=RunState(under_way=under_way), arrays={"loop.stop": np.array([0, done])},
    )  # fmt: skip
    if said is None:
        resuming._check_under_way(made, "c", own_plan=own)  # type: ignore[arg-type]
    else:
        with pytest.raises(SpecError) as caught:
            resuming._check_under_way(made, "c", own_plan=own)  # type: ignore[arg-type]
        assert said in str(caught.value)
    if not done:
        made.arrays = {}
        made.state.under_way = {}
        resuming._check_under_way(made, "c", own_plan=own)  # type: ignore[arg-type]


def test_a_replay_that_was_not_kept_is_filled_before_learning_goes_on() -> None:
    """100 env steps are 13 iterations: 27 with gradient steps are done, and none is under way."""
    state = RunState(iteration=40, under_way={"part": 1}, judging=0)
    arrays = {"loop.stop": np.array([1, 2]), "any_order.acted": np.array([3])}
    compiled = Given(system=Given(algorithm=Given(learning_starts=100)), graph=Given(env_steps=8))
    point = ResumePoint(Given(path="c"), {"step": []}, ("hyper.",))  # type: ignore[arg-type]
    own: Any = Given(compiled=compiled, state=state, arrays=arrays, resume_point=point)
    resuming._refill_replay(own)
    assert (state.learnt, state.refilled, state.drained, state.under_way) == (27, 40, 40, {})
    assert [a.tolist() for a in arrays.values()] == [[0, 0], [0]]
    assert own.resume_point == ResumePoint(
        point.stored, None, ("hyper.", "env.", "any_order.", "loop.stop")
    )
    assert state.log.events == [
        "c holds no replay: learning continues after 100 env steps have refilled the replay, and "
        "the run will differ from an uninterrupted one"
    ]
    assert state.log.restarts == 0
    resuming._refill_replay(own)  # once more, before learning goes on
    assert (state.learnt, state.refilled) == (27, 40)


def test_networks_of_a_file_are_copied_wherever_they_are_read(monkeypatch):
    arrays = {name: np.zeros(2, np.float32) for name in (
        "learner.q", "learner.q.target", "learner.q.m", "learner.critic", "learner.critic.target",
        "learner.q@1", "policy.q", "policy.q@1", "normalise.x", "replay.obs")}  # fmt: skip
    best: list[int] = []
    own: Any = Given(arrays=arrays, compiled=Given(policy="policy.q"), acting=None,
                     mark_best=lambda: best.append(1))  # fmt: skip
    given = {"learner.q": np.array([1, 2], np.float32), "learner.other": np.zeros(1)}
    monkeypatch.setattr(warm_start, "_read_networks", lambda *_: given)
    monkeypatch.setattr(warm_start, "copy_to_learners", lambda arrays: best.append(2))
    file: Any = Given(is_dir=lambda: False, is_file=lambda: True)
    (said,) = warm_start.load_networks(own, file)
    filled = {name for name, array in arrays.items() if array.tolist() == [1, 2]}
    assert filled == {"learner.q", "learner.q.target", "policy.q", "policy.q@1"}
    assert best == [2, 1]
    assert said.partition(": ")[2] == (
        "learner.q; initialised: learner.critic, learner.critic.target, normalise.x; not used: "
        "learner.other"
    )
    given["learner.q.target"] = np.array([3, 4], np.float32)
    warm_start.load_networks(own, file)
    assert arrays["learner.q.target"].tolist() == [3, 4]
    for wrong in (np.zeros(3, np.float32), np.zeros(2)):
        given["learner.q"] = wrong
        with pytest.raises(SpecError, match=r"learner\.q is float.*; this spec has float32\[2\]"):
            warm_start.load_networks(own, file)
    given.clear()
    with pytest.raises(SpecError, match=r"holds none of learner.q, learner.q.target, learner.cri"):
        warm_start.load_networks(own, file)


# Re-planning


def test_factors_are_sums_of_measured_over_sums_of_estimated_seconds(monkeypatch):
    named = lambda graph, mode: f"{'+'.join(mode.tasks)}, {mode.key[1]}"  # noqa: E731
    monkeypatch.setattr(replanning, "_factor_name", named)

    def way(tasks: str, said: float, share: int | None = None, **other: Any) -> Any:
        key = (other.get("device", "cpu"), other.get("variant", "native"), 1)
        return Given(tasks=tuple(tasks), share=share, key=key, estimate=Given(latency_s=said))

    modes = [
        way("a", 2.0), way("a", 9.0, variant="torch"), way("a", 9.0, device="gpu"), way("bc", 4.0),
        way("b", 1.0), way("c", 3.0), way("d", 5.0, 2), way("d", 9.0, 3), way("e", 0.0),
    ]  # fmt: skip
    parts = {"d_0": Given(shares=(2, 3), replica=0), "d_1": Given(shares=(2, 2), replica=1)}
    place = Given(device="cpu", variant="native", width=1)
    protocol: Any = Given(
        plan=Given(task=lambda name: place),
        graph=Given(task=lambda name: Given(part=parts.get(name)),
                    origin=lambda name: (name[0], 0)),
    )  # fmt: skip
    jobs = [Given(tasks=tasks) for tasks in (("a",), ("b", "c"), ("d_0",), ("d_1",), ("e",))]
    seconds = {"a": 3.0, "b+c": 6.0, "b": None, "c": 1.5, "d_0": 10.0, "d_1": 5.0, "e": 1.0}
    rows: Any = [Given(task=task, measured_s=s) for task, s in seconds.items()]
    problem: Any = Given(costs=Given(modes=modes), graph=None)
    assert replanning.compute_factors(problem, protocol, jobs, rows) == {  # type: ignore[arg-type]
        "a, native": 1.5, "b+c, native": 1.5, "c, native": 0.5, "d, native": 1.5
    }  # fmt: skip


def test_a_fused_call_without_a_factor_of_its_own_has_those_of_its_members(monkeypatch):
    named = lambda graph, mode: "+".join(mode.tasks)  # noqa: E731
    monkeypatch.setattr(replanning, "_factor_name", named)
    graph, platform = loop("a", "b"), star(devices("d0", "d1", lanes=1), 1e-6, 1e12)
    a, b = mode("a", "d0", 1.0, energy=2.0), mode("b", "d0", 3.0)
    both = replanning.replace(a, tasks=("a", "b"))
    table = CostTable(platform, (a, b, both))

    def scaled(by: Any, shares: Any) -> list[float]:
        monkeypatch.setattr(CostTable, "shares", lambda self, mode, graph: shares)
        return [m.estimate.latency_s for m in replanning.apply_factors(table, graph, by).modes]

    shares = {"a": 0.25, "b": 0.75}
    assert scaled({"a": 2.0}, shares) == [2.0, 3.0, 1.25]
    assert scaled({"a": 2.0}, {}) == [2.0, 3.0, 1.0]
    assert scaled({"a": 2.0, "b": 4.0, "a+b": 5.0}, shares) == [2.0, 12.0, 5.0]
    found = replanning.apply_factors(table, graph, {"a": 1.0, "b": 2.0}).modes
    assert found[0] is a
    assert found[1].estimate.source.endswith("; times 2, as the run measured")


def test_decisions_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_change.external_envs, "EVENTS", 2)
    state = RunState()
    for text in "abc":
        plan_change._log_decision(state, text)
    assert (state.decisions, state.log.events, state.log.restarts) == (["a", "b"], ["a", "b"], 0)
