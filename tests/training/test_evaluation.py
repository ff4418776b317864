"""Evaluation ends: by a limit of steps, of time, and where an environment fails."""

import time

import pytest

import pearl
from pearl.algorithms import evaluation as judging
from pearl.planning.runs import load_run
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.evaluations import evaluation
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.primitives.envs import gym_episodes
from tests.lanes import planned, replay_spec, told

SARSA = {
    "algorithm": {"name": "sarsa", "env": "CliffWalking-v1"},
    "platform": "host",
    "train": {"steps": 400, "evaluate_every": 200, "evaluate_episodes": 2, "final_episodes": 3},
}
"""Nothing cuts an episode, and after so few steps the greedy policy walks in circles."""
WALK = "tests.faulty_envs:Walk"


@pytest.fixture(scope="module")
def plan():
    return pearl.plan(pearl.load(SARSA))


@pytest.fixture(scope="module")
def circling(plan, tmp_path_factory):
    """The folder of a run whose policies never arrive."""
    folder = tmp_path_factory.mktemp("circling") / "run"
    system = pearl.load(SARSA, set={"train.evaluate_max_steps": 40})
    pearl.compile(system, plan=plan).train(out=folder)
    return folder


def test_an_episode_that_does_not_end_is_cut_counted_and_told(circling):
    run = load_run(circling)
    assert run.status == "done"
    assert run.returns["eval_cut"] == 3
    assert len(run.returns["eval_returns"]) == 3
    assert run.events == (
        "env step 200: in evaluation 2 of 2 episodes had not ended after 40 env steps and were cut "
        "(train.evaluate_max_steps); their returns are of these steps",
        "in the final evaluation 3 of 3 episodes had not ended after 40 env steps and were cut "
        "(train.evaluate_max_steps); their returns are of these steps",
    )
    assert load_checkpoint(circling / CHECKPOINT).about["progress"]["evaluation_cuts"] == 4


@pytest.mark.parametrize(
    ("changes", "most"),
    [({}, judging.MAX_STEPS), ({"algorithm.env_args": {"max_episode_steps": 30}}, 30),
     ({"algorithm.env_args": {"max_episode_steps": 30}, "train.evaluate_max_steps": 9}, 9)],
)  # fmt: skip
def test_the_limit_is_the_specs_or_the_environments_or_ten_thousand(changes, most, monkeypatch):
    monkeypatch.setattr(judging, "MAX_STEPS", 50)
    most = 50 if most == 10_000 else most
    make, steps = gym_episodes.make_env, []

    def counted(*given):
        env = make(*given)
        step = env.step
        env.step = lambda action: (steps.append(action), step(action))[1]
        return env

    monkeypatch.setattr(gym_episodes, "make_env", counted)
    trainer = pearl.compile(pearl.load(SARSA, set=changes), emulate=False)
    found = evaluation.evaluate(trainer.policy, 2, 0)
    assert (found.max_steps, len(steps)) == (most, 2 * most)
    assert found.cut == (0 if most == 30 else 2)  # gymnasium's own limit ends episodes


def faulty(fault, tmp_path, **train):
    """A trainer of an environment whose evaluation fails the first time while the file is there."""
    spec = replay_spec("dqn", {"policy_lag": 2}, env=WALK, num_envs=4)
    spec["limits"]["variants"] = {"step": ["gymnasium"]}
    spec["train"] |= {"evaluate_every": 400, "evaluate_episodes": 1, "final_episodes": 1, **train}
    system, plan = planned(spec, variants=("native", "gymnasium"))
    return Trainer(told(system, lanes="one"), plan, seed=3)


@pytest.fixture
def failing(monkeypatch, request):
    """The third step of every evaluation from now on fails in the way that is set."""
    make, state = gym_episodes.make_env, {"fault": "", "left": 1}

    def made(*given):
        env = make(*given)
        step, count = env.step, [0]

        def stepping(action):
            count[0] += 1
            if state["fault"] and count[0] == 3 and state["left"]:
                state["left"] -= 1
                if state["fault"] == "raise":
                    raise RuntimeError("license\nserver lost")
                time.sleep(600.0)
            return step(action)

        env.step = stepping
        return env

    monkeypatch.setattr(gym_episodes, "make_env", made)
    return state


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fault", ["raise", "block"])
def test_an_environment_that_fails_in_evaluation_ends_the_run_whole(fault, failing, tmp_path):
    whole = faulty("", tmp_path)
    there = whole.train(steps=800)
    failing["fault"] = fault
    run = faulty(fault, tmp_path, env_time_limit="300 ms").train(steps=800, out=tmp_path)
    cause = "RuntimeError: license server lost" if fault == "raise" else "it has not answered"
    said = f"environment '{WALK}', evaluation episode 1, step 3: "
    assert (run.status, run.env_steps) == ("failed", 400)
    assert said + cause in run.message.replace("TimeoutError: ", "")
    resumed = faulty(fault, tmp_path, env_time_limit="300 ms")
    again = resumed.train(steps=800, out=tmp_path, resume=True)
    assert (again.status, again.returns) == ("done", there.returns)


def test_an_evaluation_that_fails_is_left_out_where_environments_are_restarted(failing, tmp_path):
    failing["fault"] = "raise"
    run = faulty("raise", tmp_path, on_env_failure="restart").train(steps=800, out=tmp_path)
    assert run.status == "done"
    (event,) = run.events
    assert event.endswith("RuntimeError: license server lost; this evaluation is skipped")
    assert len(run.returns["eval_returns"]) == 1
