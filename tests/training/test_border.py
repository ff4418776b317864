"""What user code gives, through check, plan, training, evaluation and the policy: each environment
of the table is right, restarted or refused in one sentence that names it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import pearl
from pearl.errors import SpecError
from pearl.planning.plans import Plan
from pearl.planning.runs import Run
from pearl.runtime.environments.rehearsal import Rehearsal, rehearse
from pearl.spec.system import System
from pearl.spec.user_code import check_code
from pearl.testing.kernel_buffers import fill_arrays
from pearl.training.evaluations.evaluation import evaluate
from pearl.training.trainer import Trainer
from pearl_devices import UnsupportedError, cpu, kernel
from pearl_devices.base import EnvironmentFailed
from pearl_devices.primitives.envs.border import Reader
from pearl_devices.primitives.envs.spaces import parts
from tests.lanes import planned, told
from tests.training import bordering

HERE = "tests.training.bordering"
HOSTS = ("one", "threads", "processes")


def spec(name: str = "dqn", env: str = "Case", *, failure: str = "stop", **args: Any) -> Any:
    tabular = name == "q_learning"
    sizes: dict[str, Any] = {"num_envs": 2}
    if name == "ppo":
        sizes |= {"hidden": [8], "rollout_steps": 8}
    elif not tabular:
        sizes |= {"hidden": [8], "batch_size": 8, "learning_starts": 8}
        sizes |= {"replay": {"capacity": 100, "kind": "uniform"}}
    extra = args.pop("algorithm", {})
    variants = args.pop("variants", "gymnasium")
    return {
        "algorithm": {"name": name, "env": f"{HERE}:{env}", "env_args": args, **sizes, **extra},
        "platform": "host",
        "limits": {"max_lanes": 3, "variants": {"step": [variants]}},
        "train": {"steps": 48, "evaluate_every": 0, "final_episodes": 2, "lanes": "one",
                  "evaluate_max_steps": 20, "on_env_failure": failure},
    }  # fmt: skip


def plan_of(given: Any) -> tuple[System, Plan]:
    variants = tuple(given["limits"]["variants"]["step"])
    return planned(given, variants=("native", *variants))


def trained(given: Any, lanes: str = "one") -> tuple[Trainer, Run]:
    bordering.MADE[0] = 0
    system, plan = plan_of(given)
    trainer = Trainer(told(system, lanes=lanes), plan, seed=3)
    return trainer, trainer.train()


def refused(given: Any, lanes: str = "one") -> str:
    """The sentence with which training ends."""
    try:
        _, run = trained(given, lanes)
    except (SpecError, UnsupportedError, EnvironmentFailed) as error:
        return str(error)
    assert run.status == "failed"
    return str(run.message)


def rehearsed(given: Any) -> Rehearsal:
    bordering.MADE[0] = 0
    system = pearl.load(given)
    check_code(system)
    return rehearse(system)


READ = sorted(bordering.SPACES)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("space", READ)
def test_an_observation_is_the_same_wherever_it_is_read(space: str) -> None:
    """In training, in a batch, in `Policy.act` alone, together and flat, and by gymnasium."""
    given = bordering.SPACES[space]
    given.seed(5)
    seen = [given.sample() for _ in range(6)]
    flat = np.array([gymnasium.spaces.flatten(given, each) for each in seen], np.float64)
    reader = Reader(parts(given))
    rows = np.zeros_like(flat)
    for row, each in zip(rows, seen, strict=True):
        reader.read(each, row)
    np.testing.assert_array_equal(rows, flat)
    together = gymnasium.vector.utils.concatenate(
        given, seen, gymnasium.vector.utils.create_empty_array(given, len(seen))
    )
    rows[:] = -1
    reader.read_batch(together, rows)
    np.testing.assert_array_equal(rows, flat)
    flat_alone = space != "number"  # of shape (1,): several numbers, of which there is one
    for obs, alone in ((seen[0], True), (together, False), (flat, False), (flat[0], flat_alone)):
        found, single = reader.read_given(obs, np.float64)
        assert single == alone
        np.testing.assert_array_equal(found, flat[: len(found)])


@pytest.mark.parametrize("space", ["discrete", "started", "nested", "camera",
    *(pytest.param(s, marks=pytest.mark.slow) for s in READ
      if s not in ("discrete", "started", "nested", "camera"))])  # fmt: skip
def test_every_space_is_checked_trained_evaluated_and_acted_on(space: str) -> None:
    given = spec(space=space)
    assert rehearsed(given).problems == ()
    trainer, run = trained(given)
    assert (run.status, run.returns["eval_mean"]) == ("done", 5.0)
    case = bordering.SPACES[space]
    case.seed(7)
    seen = [case.sample() for _ in range(8)]
    policy, flat = trainer.policy, [gymnasium.spaces.flatten(case, each) for each in seen]
    one_by_one = [int(policy.act(each)) for each in seen]
    np.testing.assert_array_equal(policy.act(np.array(flat, np.float32)), one_by_one)


@pytest.mark.parametrize("space", ["discrete", "started"])
def test_a_table_counts_states_as_its_environment_does(space: str) -> None:
    trainer, run = trained(spec("q_learning", space=space))
    assert (run.status, run.returns["eval_mean"]) == ("done", 5.0)
    case, policy = bordering.SPACES[space], trainer.policy
    table = policy.parameters
    table[:] = np.eye(4, 2)
    table[2:, 1] = 1
    states = np.arange(case.start, case.start + 4)
    assert policy.act(states).tolist() == [0, 1, 1, 1]
    assert [int(policy.act(s)) for s in states] == [0, 1, 1, 1]
    for wrong in (case.start - 1, case.start + 4):
        with pytest.raises(ValueError, match=f"is {wrong}; its space has {case.start}"):
            policy.act(wrong)


@pytest.mark.parametrize("space", sorted(bordering.UNREAD))
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_space_that_cannot_be_read_is_refused_with_the_wrapper(name: str, space: str) -> None:
    with pytest.raises(SpecError) as told_why:
        pearl.load(spec(name, space=space))
    (text,) = told_why.value.problems
    assert f"{HERE}:Case" in text
    assert "gymnasium.wrappers.TransformObservation" in text
    assert ("FilterObservation" in text) == (space == "mission")


FAULTS = {
    "nan": ("box", "is not finite"),
    "inf": ("box", "is not finite"),
    "huge": ("double", "is not finite"),
    "short": ("box", r"shape \(1,\); its space has \(2,\)"),
    "turned": ("table", r"shape \(3, 2\); its space has \(2, 3\)"),
    "none": ("box", "observation is None; numbers are needed"),
    "words": ("box", "numbers are needed"),
    "ragged": ("box", "no array of numbers"),
    "missing": ("dict", r"observation\['kind'\] is missing"),
    "above": ("discrete", "observation is 4; its space has 0 … 3"),
    "below": ("discrete", "observation is -1; its space has 0 … 3"),
    "half": ("discrete", "whole numbers"),
    "masked": ("box", "masked elements"),
    "raise": ("box", "RuntimeError: the simulator has diverged"),
    "exhausted": ("box", "StopIteration, without a text"),
    "reward_nan": ("box", "reward nan is not finite"),
    "reward_none": ("box", "reward is None; one number is needed"),
    "reward_far": ("box", "reward .* is not finite"),
    "reward_two": ("box", r"reward has shape \(2,\); one number is needed"),
    "reward_text": ("box", "reward is '1'; one number is needed"),
    "reward_masked": ("box", "reward is masked; one number is needed"),
    "reward_complex": ("box", "reward is 1j; one number is needed"),
    "flag_none": ("box", "terminated is None; True or False is needed"),
    "flag_two": ("box", "terminated is 2; True or False is needed"),
    "flag_nan": ("box", "terminated is nan; True or False is needed"),
}
"""Fault → space, and what is said of it."""

ALWAYS = {
    "four": "its step returns 4 values, 5 are needed: observation, reward, terminated, truncated",
    "only_observation": "its reset returns",
}
"""Faults that no new environment mends → what is said."""

SOME = {"nan": "one", "short": "processes", "reward_none": "threads", "above": "one"}


def pairs() -> list[Any]:
    """Each fault with one hosting, and each hosting with one fault, in the default tier."""
    return [
        pytest.param(fault, lanes, marks=() if SOME.get(fault) == lanes else pytest.mark.slow)
        for fault in FAULTS
        for lanes in HOSTS
        if lanes == "one" or fault in ("nan", "short", "reward_none", "flag_none")
    ]


@pytest.mark.parametrize(("fault", "lanes"), pairs())
def test_a_fault_stops_a_run_in_one_sentence_with_its_place(fault: str, lanes: str) -> None:
    space, said = FAULTS[fault]
    text = refused(spec(space=space, fault=fault), lanes)
    assert re.search(rf"environment '{HERE}:Case', number \d, episode 1, step 3: .*{said}", text)
    assert "\n" not in text
    assert "made again" not in text


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_check_says_what_a_run_would_meet(fault: str) -> None:
    space, said = FAULTS[fault]
    found = rehearsed(spec(space=space, fault=fault))
    (text,) = found.problems
    assert re.search(rf"environment '{HERE}:Case', rehearsed episode 1, step 3: .*{said}", text)
    found = rehearsed(spec(space=space, fault=fault, failure="restart"))
    assert found.problems == ()
    assert "training would make the environment again" in found.notes[0]


@pytest.mark.parametrize(("fault", "lanes"), [("nan", "one"), ("reward_none", "processes"),
    *(pytest.param(f, "one", marks=pytest.mark.slow) for f in FAULTS if f != "nan")])  # fmt: skip
def test_environments_that_fail_in_one_step_are_all_made_again(fault: str, lanes: str) -> None:
    """The first two made are sick, and fail in the same step; the next ones are sound."""
    given = spec(space=FAULTS[fault][0], fault=fault, sick=2, failure="restart")
    bordering.MADE[0] = 0
    system, plan = plan_of(given)
    bordering.MADE[0] = 0  # reading the spec has made one
    run = Trainer(told(system, lanes=lanes), plan, seed=3).train()
    if lanes == "processes":  # a forked lane counts what is made before it too
        assert run.status == "done"
        return
    assert (run.status, run.restarts) == ("done", 2)
    assert [f"number {n}" in event for n, event in enumerate(run.events)] == [True, True]


@pytest.mark.parametrize("fault", sorted(ALWAYS))
def test_a_wrong_interface_is_told_at_once(fault: str) -> None:
    for failure in ("stop", "restart"):
        text = refused(spec(fault=fault, failure=failure))
        assert ALWAYS[fault] in text
        assert f"environment '{HERE}:Case', number 0" in text
        assert "made again" not in text
        (problem,) = rehearsed(spec(fault=fault, failure=failure)).problems
        assert ALWAYS[fault] in problem


@pytest.mark.parametrize("fault", ["reward_array", "flag_array", "flag_int", "no_info"])
def test_what_has_a_clear_meaning_is_taken(fault: str) -> None:
    _, run = trained(spec(fault=fault))
    assert (run.status, run.returns["eval_mean"]) == ("done", 5.0)
    found = rehearsed(spec(fault=fault))
    assert found.problems == ()
    assert len(found.notes) == (fault in ("reward_array", "flag_array", "flag_int"))


@pytest.mark.parametrize("fault", ["nan", "short", "reward_nan", "flag_none", "above"])
def test_an_evaluation_checks_what_training_checks(fault: str) -> None:
    space = FAULTS[fault][0]
    trainer = Trainer(*plan_of(spec(space=space)), seed=3)
    sick = replace(trainer.system.env, args={"space": space, "fault": fault})
    policy = trainer.policy
    policy.system = replace(policy.system, env=sick)
    where = rf"environment '{HERE}:Case', evaluation episode 1, step 3: .*{FAULTS[fault][1]}"
    with pytest.raises(EnvironmentFailed, match=re.compile(where)):
        evaluate(policy, 2, seed=0)


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_bounds_too_far_apart_are_refused_by_those_who_act_between_them(name: str) -> None:
    asked = {"obs": 2, "act": 1, "low": [-3e38], "high": [3e38]}
    for algorithm in ({}, {"spaces": asked}):
        with pytest.raises(SpecError, match=f"{name} acts between bounds"):
            pearl.load(spec(name, actions="wide", algorithm=algorithm))


def test_no_environment_gets_an_action_that_is_not_finite() -> None:
    sizes, args = {"envs": 2, "obs": 2, "act": 1}, {"actions": "bounded"}
    step = kernel("env_step", sizes, program=f"{HERE}:Case", args=args)
    arrays = fill_arrays([step])
    call = cpu.bind(step, "gymnasium", arrays)
    arrays["act.action"][:] = [[0.5], [np.nan]]
    with pytest.raises(EnvironmentFailed, match=r"number 1: it was not given the action \[nan\]"):
        call()
    policy = Trainer(*plan_of(spec("ppo", actions="bounded")), seed=3).policy
    policy.parameters[:] = np.nan
    with pytest.raises(EnvironmentFailed, match="episode 1, step 1: it was not given the action"):
        evaluate(policy, 2, seed=0)


BATCHES = {
    "reward_shape": "reward is",
    "flag_none": "terminated is None; True or False for each of 2 is needed",
    "rows": "observation of the batch has shape (1, 2); expected (2, 2)",
    "no_final": "infos has no 'final_obs'",
    "four": "its step returns 4 values, 5 are needed",
}


@pytest.mark.parametrize("fault", sorted(BATCHES))
def test_a_vector_environment_is_refused_in_one_sentence(fault: str) -> None:
    text = refused(spec("ppo", env="odd", fault=fault))
    assert BATCHES[fault] in text
    assert f"environment '{HERE}:odd', " in text


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("fault", "space"), [("nan", "box"), ("missing", "dict"), ("four", "box"),
                                              ("reward_two", "box")])  # fmt: skip
def test_environments_in_processes_are_read_alike(fault: str, space: str) -> None:
    text = refused(spec(space=space, fault=fault, variants="processes"))
    said = FAULTS[fault][1] if fault in FAULTS else ALWAYS[fault]
    assert re.search(said, text)
    assert f"environment '{HERE}:Case', number 0" in text


def test_the_rehearsal_tells_what_is_not_reproducible_or_lost() -> None:
    (note,) = rehearsed(spec(fault="clock")).notes
    assert "two episodes from seed 0 with the same actions differ" in note
    assert "a clock" in note
    assert rehearsed(spec()).notes == ()
    (note,) = rehearsed(spec(space="double", fault="stamps")).notes
    assert "component 0 of the observation has 6 values around 1.7e+09, of which float32" in note
    normalise = {"normalise": {"observations": True}}
    assert rehearsed(spec(space="double", fault="stamps", algorithm=normalise)).notes == ()
    (note,) = rehearsed(spec(fault="step_mask")).notes
    assert "info['action_mask'] looks like an action mask" in note
    assert any("hindsight" in note for note in rehearsed(spec(space="goals")).notes)
