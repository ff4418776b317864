"""Environments that depend on more than their generator and their actions begin new episodes when a
run resumes, and the run says so."""

import numpy as np
import pytest

from pearl.runtime.environments.external_envs import FailureLog
from pearl.runtime.protocol.single_lane import Job
from pearl.training.checkpoints.trial import Trial
from pearl.training.trainer import Trainer
from pearl_devices.buffers import allocate
from pearl_devices.kernels import kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs import gym_resume
from pearl_devices.primitives.envs.gym_envs import bind_step
from tests.lanes import cut, planned, replay_spec, told, trained

LUCK = "tests.hidden_envs:Luck"
ENVS = 4


def luck_plan(**args):
    spec = replay_spec("dqn", {"policy_lag": 2}, env=LUCK, num_envs=ENVS, env_args=args)
    spec["limits"]["variants"] = {"step": ["gymnasium"]}
    return planned(spec, variants=("native", "gymnasium"))


def assert_rows_are_steps(arrays):
    """Every stored row is a step of one episode, and goes on where the one before it ended, unless
    that ended an episode or this one says that its environment began anew."""
    rows = int(arrays["replay.cursor"][1])
    obs, after = arrays["replay.obs"][:rows], arrays["replay.next_obs"][:rows]
    np.testing.assert_array_equal(after[:, 0], obs[:, 0] + 1)
    np.testing.assert_array_equal(after[:, 1], obs[:, 1])
    cut = arrays["replay.truncated"][:rows]
    goes_on = (cut[:-ENVS] & 1 == 0) & (cut[ENVS:] & ANEW == 0)
    np.testing.assert_array_equal(obs[ENVS:][goes_on], after[:-ENVS][goes_on])
    begins = ~goes_on
    assert (obs[ENVS:][begins][:, 0] == 0).all()
    return int((cut & ANEW > 0).sum())


@pytest.mark.sweep(5)
@pytest.mark.parametrize("source", ["numpy", "random", "own", "clock"])
@pytest.mark.parametrize("lanes", ["one", "threads", "processes"])
def test_an_environment_that_does_not_come_back_begins_a_new_episode(source, lanes, tmp_path):
    system, plan = luck_plan(source=source)
    cut(Trainer(told(system, lanes=lanes), plan, seed=3), 100, steps=400, out=tmp_path)
    resumed = trained(system, plan, lanes, steps=400, out=tmp_path, resume=True)
    assert resumed.run.status == "done"
    assert assert_rows_are_steps(resumed.session.arrays) == ENVS
    (said,) = [e for e in resumed.run.events if "begin" in e]
    assert LUCK in said
    assert f"{ENVS} of {ENVS} environments begin new episodes" in said
    assert resumed.run.restarts == 0
    assert said in resumed.report(resumed.run).text(2000, verbose=True)


def test_an_environment_on_its_np_random_comes_back(tmp_path):
    system, plan = luck_plan(source="np_random")
    cut(Trainer(told(system, lanes="one"), plan, seed=3), 100, steps=400, out=tmp_path)
    resumed = trained(system, plan, "one", steps=400, out=tmp_path, resume=True)
    assert assert_rows_are_steps(resumed.session.arrays) == 0
    assert not [e for e in resumed.run.events if "episode" in e]


def stepping(source, **args):
    """A bound step of two environments and its arrays."""
    k = kernel("env_step", program=LUCK, args={"source": source, **args}, envs=2, obs=3, act=0)
    arrays = allocate([k])
    arrays["rng.env_step"][0] = 7
    return k, arrays, bind_step(k, arrays)


def test_an_episode_longer_than_its_record_begins_anew(monkeypatch):
    """As one of 150,000 steps does, whose first 100,000 actions are kept."""
    monkeypatch.setattr("pearl_devices.primitives.envs.gym_steps.LOG", 10)
    _, _, before = stepping("np_random", length=10**9)
    for _ in range(15):
        before()
    assert max(len(taken) for taken in before.taken) == 11
    _, arrays, after = stepping("np_random", length=10**9)
    (said,) = after.restore(before.snapshot())
    assert gym_resume.TOO_LONG in said
    arrays["env.obs"][:] = 99.0  # as of the checkpoint
    again = after.snapshot()
    assert all("actions" not in state for state in again)  # until the first step
    after()
    assert (arrays["step.obs"][:, 0] == 0.0).all()
    assert (arrays["step.next_obs"][:, 0] == 1.0).all()
    assert (arrays["step.truncated"] == ANEW).all()
    assert (arrays["env.return"] == 1.0).all()
    assert (arrays["env.elapsed"] == 1).all()


@pytest.mark.parametrize(
    ("source", "says"),
    [("np_random", ""), ("numpy", "instead of"), ("own", "instead of"), ("clock", "instead of")],
)
def test_a_second_copy_tells_whether_an_environment_comes_back(source, says):
    k, _, step = stepping(source)
    state = np.random.get_state()[1].copy()
    for _ in range(3):
        step()
    kept = step.snapshot()
    before = np.random.get_state()[1].copy()
    log, trial = FailureLog(), Trial()
    trial.begin([Job(("step",), k, "cpu", "gymnasium")], {"step": kept}, log)
    trial._thread.join(60.0)
    assert (len(log.events) == 1) == bool(says)
    assert says in "".join(log.events)
    assert (np.random.get_state()[1] == before).all()
    assert len(state) == len(before)
    trial.begin([], {}, log)  # once
    trial.close()


def test_a_vector_environment_is_known_not_to_come_back():
    k = kernel("env_step", program=LUCK, args={}, envs=2, obs=3, act=0)
    log, trial = FailureLog(), Trial()
    trial.begin([Job(("step",), k, "cpu", "gymnasium")], {"step": [{}]}, log)
    trial.close()
    assert "one batch" in log.events[0]
