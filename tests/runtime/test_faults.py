"""What goes wrong is named, mended or survived: lanes, environments, disks, signals, two runs."""

import errno
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pearl import files
from pearl.errors import SpecError
from pearl.planning.runs import load_run
from pearl.spec.reading import load
from pearl.training import loop
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.base import UnsupportedError
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.classic import cartpole_move
from tests import faulty_envs
from tests.lanes import differing, planned, replay_spec, trained

WALK = "tests.faulty_envs:Walk"
ENVS = 8


def children():
    """Processes that this one started and that are still there, as zombies too."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(p) for t in tasks for p in t.read_text().split()}


def handles():
    return {h for h in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{h}").exists()}


@functools.cache
def native_plan(**options):
    replay = {"capacity": 4000, "kind": "prioritised", "fanout": 8}
    spec = replay_spec("dqn", {"policy_lag": 2}, replay=replay, n_step=3, **options)
    spec["train"]["checkpoint_every"] = 10_000
    return planned(spec)


def gym_plan(env=WALK, num_envs=4, args=None, **train):
    spec = replay_spec("dqn", {"policy_lag": 2}, env=env, num_envs=num_envs, env_args=args or {})
    spec["limits"]["variants"] = {"env_step": ["gymnasium"]}
    spec["train"] |= train
    found = planned(spec, variants=("native", "gymnasium"))
    faulty_envs.BORN[0] = 0  # measuring it has made some
    if args and "armed" in args:
        Path(args["armed"]).touch()
    return found


def assert_transitions_happened(arrays):
    """Every stored row is a step of CartPole, and goes on where the one before it ended, unless it
    says that its environment was started anew."""
    obs, following = arrays["replay.obs"], arrays["replay.next_obs"]
    rows = int(arrays["replay.cursor"][1])
    assert rows < len(obs)
    state = obs[:rows].astype(np.float64)
    for n in range(rows):
        cartpole_move(state, n, arrays["replay.action"][n])
    np.testing.assert_allclose(state, following[:rows], rtol=1e-4, atol=1e-5)
    over = (arrays["replay.terminated"][:rows] > 0) | (arrays["replay.truncated"][:rows] & 1 > 0)
    anew = arrays["replay.truncated"][:rows] & ANEW > 0
    before, after = np.arange(rows - ENVS), np.arange(ENVS, rows)
    goes_on = ~over[before] & ~anew[after]
    np.testing.assert_array_equal(obs[after[goes_on]], following[before[goes_on]])
    return int(anew.sum())


def killing(times, seed=0):
    """A progress listener that kills a random worker whenever there was progress, so many times. A
    worker that is dead already, and nobody has missed yet, is not killed again."""
    dice, killed, last = random.Random(seed), [], [0]

    def kill(progress):
        alive = sorted(children() - set(killed))
        if len(killed) < times and progress.env_steps > last[0] and alive:
            victim = dice.choice(alive)
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
            last[0] = progress.env_steps

    kill.killed = killed
    return kill


def test_killed_workers_are_started_again_and_no_row_is_torn(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    monkeypatch.setattr(loop, "ROUNDS", 8)
    kills = 5  # `python -m benchmarks.soak` has many more
    system, plan = native_plan()
    kill, before = killing(kills), handles()
    trainer = trained(system, plan, "processes", steps=3600, progress=kill, out=tmp_path)
    run = trainer.run
    assert (run.status, len(kill.killed), run.restarts) == ("done", kills, kills)
    assert (run.env_steps, run.updates) == (3600, (3600 - 64) // 4)
    assert run.lost_transitions <= ENVS * kills
    assert "ended with signal 9; it was started again" in run.events[0]
    anew = assert_transitions_happened(trainer.session.arrays)
    assert anew == run.lost_transitions
    arrays = trainer.session.arrays
    firings = {"rng.env_step": 450, "rng.inference": 450, "rng.replay_sample": run.updates}
    assert {name: int(arrays[name][1]) for name in firings} == firings
    assert load_run(tmp_path).restarts == kills
    assert not children()
    del trainer, arrays
    gc.collect()
    new = {os.readlink(f"/proc/self/fd/{h}") for h in handles() - before}
    assert not [name for name in new if "memfd" in name or "eventfd" in name or "pipe" in name]


def test_a_lane_that_cannot_be_repeated_ends_the_run_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    spec = replay_spec("dqn", {"policy_lag": 2}, normalise={"observations": True})
    spec["train"]["checkpoint_every"] = 400
    found = planned(spec)
    run = trained(*found, "processes", steps=40_000, progress=killing(20), out=tmp_path).run
    assert run.status == "failed"
    assert "lane cpu" in run.message
    assert "signal 9; it is not started again: the running mean" in run.message
    assert load_run(tmp_path).message == run.message
    assert not children()


HOSTS = ("one", "threads", "processes")


@pytest.mark.parametrize("lanes", HOSTS)
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "RuntimeError: the simulator has diverged"),
        ("nan", "is not finite"),
        ("shape", "4 components"),
    ],
)
def test_a_failing_environment_is_named_and_started_anew(lanes, fault, cause, tmp_path):
    args = {"fault": fault, "armed": str(tmp_path / "armed")}
    run = trained(*gym_plan(args=args, on_env_failure="restart"), lanes, steps=800).run
    assert (run.status, run.env_steps, run.restarts, run.lost_transitions) == ("done", 800, 1, 1)
    (event,) = run.events
    assert event.startswith(f"environment '{WALK}', number 1, step 19: ")
    assert cause in event


@pytest.mark.parametrize("lanes", HOSTS)
def test_by_default_a_failing_environment_stops_the_run_with_a_checkpoint(lanes, tmp_path):
    args = {"fault": "raise", "armed": str(tmp_path / "armed")}
    system, plan = gym_plan(args=args, checkpoint_every=0)
    run = trained(system, plan, lanes, steps=8000, out=tmp_path / "run").run
    assert run.status == "failed"
    assert f"environment '{WALK}', number 1, step 19: RuntimeError" in run.message
    assert 0 < run.env_steps < 8000
    faulty_envs.BORN[0] = 0
    again = trained(system, plan, lanes, steps=8000, out=tmp_path / "run", resume=True).run
    assert (again.status, again.env_steps, again.restarts) == ("done", 8000, 1)


@pytest.mark.parametrize("lanes", ["one", "processes"])
def test_an_environment_that_fails_whenever_it_is_made_anew_ends_the_run(lanes):
    system, plan = gym_plan(args={"fault": "always"}, on_env_failure="restart")
    run = trained(system, plan, lanes, steps=800).run
    assert run.status == "failed"
    assert "made anew 3 times, and failed each time" in run.message


@pytest.mark.parametrize(
    ("lanes", "fault"),
    [("one", "block"), ("threads", "block"), ("processes", "block"), ("processes", "hard")],
)
@pytest.mark.parametrize("policy", ["restart", "stop"])
def test_an_environment_that_does_not_answer_is_no_hang(lanes, fault, policy, tmp_path):
    args = {"fault": fault, "armed": str(tmp_path / "armed")}
    options = {"on_env_failure": policy, "env_time_limit": "300 ms"}
    system, plan = gym_plan(args=args, **options)
    begin = time.monotonic()
    run = trained(system, plan, lanes, steps=800, out=tmp_path / "run").run
    assert time.monotonic() - begin < 30.0
    reachable = lanes != "threads"
    assert run.status == ("done" if policy == "restart" and reachable else "failed")
    told = " ".join([*run.events, run.message or ""])
    assert "has not" in told
    assert "lane cpu" in told or "number 1, step 19" in told
    assert not children()


def test_an_environment_that_ends_its_process_is_started_again(tmp_path):
    args = {"fault": "exit", "armed": str(tmp_path / "armed")}
    run = trained(*gym_plan(args=args), "processes", steps=800).run
    assert (run.status, run.restarts, run.lost_transitions) == ("done", 1, 4)
    assert "ended with exit status 3" in run.events[0]


RESUMED = {
    "native": lambda: native_plan(),
    "one by one": lambda: gym_plan(),
    "normalised": lambda: gym_normalised(),
    "CartPole": lambda: gym_plan("CartPole-v1", 4),
    "batched CartPole": lambda: gym_plan("CartPole-v1", 8),
}


def gym_normalised():
    spec = replay_spec(
        "dqn", {"policy_lag": 2}, env=WALK, num_envs=4, normalise={"observations": True}
    )
    return planned(spec, variants=("native", "gymnasium"))


@pytest.mark.parametrize(
    ("lanes", "case"),
    [
        *(("one", case) for case in RESUMED),
        *(("processes", case) for case in ("native", "one by one")),
        *(pytest.param("processes", c, marks=pytest.mark.slow) for c in list(RESUMED)[2:]),
    ],
)
def test_an_interrupted_run_goes_on_to_what_it_would_have_been(case, lanes, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    system, plan = RESUMED[case]()
    whole = trained(system, plan, lanes, steps=1600)

    def stop(progress):
        if progress.env_steps >= 600 and not asked:
            asked.append(signal.raise_signal(signal.SIGINT))

    asked = []
    cut = trained(system, plan, lanes, steps=1600, out=tmp_path, progress=stop)
    assert cut.run.status == "interrupted"
    assert 600 <= cut.run.env_steps < 1600
    resumed = trained(system, plan, lanes, steps=1600, out=tmp_path, resume=True)
    assert resumed.run.status == "done"
    assert differing(whole, resumed) == []


def test_an_environment_that_does_not_come_back_the_same_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    system, plan = gym_plan(args={"private": True})

    def stop(progress):
        if not asked:
            asked.append(signal.raise_signal(signal.SIGINT))

    for lanes in ("one", "processes"):
        asked = []
        trained(system, plan, lanes, steps=1600, out=tmp_path / lanes, progress=stop)
        with pytest.raises(UnsupportedError, match=r"Walk', number 0 did not come back as it was"):
            trained(system, plan, lanes, steps=1600, out=tmp_path / lanes, resume=True)
    assert not children()


@pytest.mark.parametrize("lanes", HOSTS)
def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(lanes, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    system, plan = native_plan()
    system = replace(system, train=replace(system.train, checkpoint_every=800, lanes=lanes))
    trainer = Trainer(system, plan, seed=3)

    def poison(progress):
        if (tmp_path / CHECKPOINT).exists():
            trainer.session.arrays["learner.q"][:] = np.nan

    run = trainer.train(steps=8000, out=tmp_path, progress=poison)
    assert run.status == "failed"
    assert "loss.q was not finite" in run.message
    assert np.isfinite(load_checkpoint(tmp_path / CHECKPOINT).read("learner.q")).all()


def full_disk(monkeypatch, spared):
    """The disk is full for checkpoints after the first `spared` of them."""
    count, write = [0], files.os.fsync

    def fsync(handle):
        if CHECKPOINT in os.readlink(f"/proc/self/fd/{handle}"):
            count[0] += 1
            if count[0] > spared:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)


def test_a_full_disk_leaves_the_checkpoint_before_whole_and_is_told(monkeypatch, tmp_path):
    system, plan = native_plan()
    system = replace(system, train=replace(system.train, checkpoint_every=800))
    full_disk(monkeypatch, spared=1)
    run = trained(system, plan, "processes", steps=2400, out=tmp_path).run
    assert run.status == "failed"
    assert "env step 2400 could not be written: No space left" in run.message
    assert "env step 1600 could not be written: No space left" in run.events[0]
    about = load_checkpoint(tmp_path / CHECKPOINT).about
    assert about["progress"]["iteration"] == 800 // plan_env_steps(system, plan)
    assert not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    again = trained(system, plan, "processes", steps=2400, out=tmp_path, resume=True)
    assert differing(trained(system, plan, "one", steps=2400), again) == []


def plan_env_steps(system, plan):
    return Trainer(system, plan).graph.env_steps


def test_two_runs_in_one_folder_at_once_are_refused_and_a_stale_lock_is_not(tmp_path):
    system, plan = native_plan()
    (tmp_path / files.LOCK).write_text("999999\n")  # left by a process that was killed
    refused = []

    def another(progress):
        if not refused:
            with pytest.raises(SpecError, match=f"process {os.getpid()} is training in it now"):
                trained(system, plan, "one", out=tmp_path)
            refused.append(True)

    assert trained(system, plan, "one", out=tmp_path, progress=another).run.status == "done"
    assert refused
    assert not (tmp_path / files.LOCK).exists()


def test_two_runs_at_once_in_two_folders_do_not_touch_each_other(tmp_path):
    begun = [start(tmp_path / str(n), steps=1600) for n in range(2)]
    assert [process.wait(timeout=60) for process in begun] == [0, 0]
    one, other = (load_file(tmp_path / str(n) / CHECKPOINT) for n in range(2))
    for name in ("learner.q", "replay.obs"):
        np.testing.assert_array_equal(one[name], other[name])


def test_a_folder_that_cannot_be_written_is_an_error_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    system, plan = native_plan()
    with pytest.raises(SpecError, match=r"file/run: a run cannot be written here: Not a directory"):
        trained(system, plan, "one", out=tmp_path / "file" / "run")


SCRIPT = """
import sys
from tests.runtime.test_faults import native_plan
from tests.lanes import trained
run = trained(*native_plan(), "processes", steps=int(sys.argv[2]), out=sys.argv[1],
              resume=len(sys.argv) > 3).run
sys.exit({"done": 0, "interrupted": 130, "failed": 1}[run.status])
"""


def start(folder, steps=10**7, *more):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(steps), *more], process_group=0
    )


def workers(process, count=1, seconds=60.0):
    """The processes of its lanes, once they are there and it trains."""
    path, begin = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic()
    while time.monotonic() - begin < seconds and process.poll() is None:
        found = [int(p) for p in path.read_text().split()]
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError("its lanes did not start")


def running(pid):
    """Whether a process is there, and no mere entry that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if not any(running(p) for p in pids):
            return True
        time.sleep(0.02)
    return False


def wait_for(path, seconds=60.0):
    begin = time.monotonic()
    while not path.exists() and time.monotonic() - begin < seconds:
        time.sleep(0.05)
    assert path.exists()


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
)
def test_a_signal_to_the_whole_group_ends_all_lanes_with_a_checkpoint(number, status, tmp_path):
    process = start(tmp_path)
    found = workers(process)
    wait_for(tmp_path / "metrics.csv")
    time.sleep(0.3)
    os.killpg(process.pid, number)  # as a terminal does
    assert process.wait(timeout=20) == status
    assert gone(found, 1.0)
    assert (tmp_path / CHECKPOINT).exists()
    run = load_run(tmp_path)
    assert (run.status, run.restarts) == ("interrupted", 0)


def test_workers_end_by_themselves_when_their_parent_is_killed(tmp_path):
    process = start(tmp_path)
    found = workers(process)
    wait_for(tmp_path / "metrics.csv")
    process.kill()
    process.wait()
    assert gone(found, 1.0)


def test_a_run_that_was_killed_goes_on_from_its_checkpoint_to_the_same_end(tmp_path):
    system, plan = native_plan()
    process = start(tmp_path, 60_000)
    found = workers(process)
    wait_for(tmp_path / CHECKPOINT)
    process.kill()
    process.wait()
    assert gone(found, 1.0)
    before = load_checkpoint(tmp_path / CHECKPOINT).about["progress"]["iteration"]
    assert before * plan_env_steps(system, plan) < 60_000
    assert start(tmp_path, 60_000, "resume").wait(timeout=60) == 0
    whole = trained(system, plan, "one", steps=60_000)
    arrays = Trainer.load(tmp_path).session.arrays
    for name in ("learner.q", "learner.q.m", "replay.obs", "replay.tree", "env.state"):
        np.testing.assert_array_equal(arrays[name], whole.session.arrays[name], err_msg=name)


def test_restarting_environments_is_refused_where_it_would_tear_a_rollout():
    spec = {"algorithm": {"name": "ppo", "env": "CartPole-v1"}, "platform": "host"}
    with pytest.raises(SpecError, match=r"on_env_failure: given 'restart'; only algorithms with a"):
        load(spec, set={"train.on_env_failure": "restart"})
