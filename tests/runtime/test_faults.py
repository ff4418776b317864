"""What goes wrong is named, mended or survived: lanes, environments, disks, signals, two runs."""

import errno
import functools
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.processes import is_running
from pearl import files
from pearl.errors import SpecError
from pearl.planning.runs import load_run
from pearl.spec.reading import load
from pearl.training import loop
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.classic import cartpole_move
from tests import faulty_envs
from tests.lanes import SECONDS, cut, differing, planned, replay_spec, told, trained
from tests.processes import HANG_S, handles, left, until_gone, workers

WALK = "tests.faulty_envs:Walk"
ENVS = 8


@functools.cache
def native_plan(**options):
    replay = {"capacity": 4000, "kind": "prioritised", "fanout": 8}
    spec = replay_spec("dqn", {"policy_lag": 2}, replay=replay, n_step=3, **options)
    spec["train"]["checkpoint_every"] = 10_000
    # Other lanes see a result later than its call ends, as in every plan of several lanes.
    return planned(spec, occupied={task: 0.9 * s for task, s in SECONDS.items()})


def gym_plan(env=WALK, num_envs=4, args=None, **train):
    spec = replay_spec("dqn", {"policy_lag": 2}, env=env, num_envs=num_envs, env_args=args or {})
    spec["limits"]["variants"] = {"step": ["gymnasium"]}
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


def killing(times, apart=1):
    """A progress listener that kills a random worker that is alive, every `apart` env steps."""
    dice, killed, last = random.Random(0), [], [0]

    def kill(progress):
        alive = [p for p in sorted(workers()) if is_running(p) and p not in killed]
        if len(killed) < times and progress.env_steps >= last[0] + apart and alive:
            killed.append(dice.choice(alive))
            os.kill(killed[-1], signal.SIGKILL)
            last[0] = progress.env_steps

    kill.killed = killed
    return kill


def test_killed_workers_are_started_again_and_no_row_is_torn(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    monkeypatch.setattr(loop, "ROUNDS", 8)
    kills = 3  # `python -m benchmarks.chaos` has many more
    system, plan = native_plan()
    kill, before = killing(kills), handles()
    trainer = trained(system, plan, "processes", steps=1600, progress=kill, out=tmp_path)
    run = trainer.run
    assert (run.status, len(kill.killed), run.restarts) == ("done", kills, kills)
    assert (run.env_steps, run.updates) == (1600, (1600 - 64) // 4)
    assert run.lost_transitions <= ENVS * kills
    assert "ended with signal 9 (killed); the lane was restarted" in run.events[0]
    anew = assert_transitions_happened(trainer.session.arrays)
    assert anew == run.lost_transitions
    arrays = trainer.session.arrays
    firings = {"rng.env_step": 200, "rng.inference": 200, "rng.replay_sample": run.updates}
    assert {name: int(arrays[name][1]) for name in firings} == firings
    assert load_run(tmp_path).restarts == kills
    assert not workers()
    del trainer, arrays
    assert left(before) == []


def test_a_lane_that_cannot_be_repeated_ends_the_run_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    spec = replay_spec("dqn", {"policy_lag": 2}, normalise={"observations": True})
    spec["train"]["checkpoint_every"] = 400
    found = planned(spec)
    run = trained(*found, "processes", steps=40_000, progress=killing(20), out=tmp_path).run
    assert run.status == "failed"
    assert "lane cpu" in run.message
    assert "signal 9 (killed); the lane cannot be restarted: the running mean" in run.message
    assert load_run(tmp_path).message == run.message
    assert not workers()


HOSTS = ("one", "threads", "processes")


@pytest.mark.parametrize(
    ("lanes", "fault", "cause"),
    [
        ("one", "raise", "RuntimeError: the simulator has diverged"),
        ("threads", "nan", "is not finite"),
        ("processes", "shape", r"observation has shape"),
    ],
)
def test_a_failing_environment_is_named_and_started_anew(lanes, fault, cause, tmp_path):
    """Each fault and each hosting once; no longer run: the other six pairs."""
    args = {"fault": fault, "armed": str(tmp_path / "armed")}
    run = trained(*gym_plan(args=args, on_env_failure="restart"), lanes, steps=800).run
    assert (run.status, run.env_steps, run.restarts, run.lost_transitions) == ("done", 800, 1, 1)
    (event,) = run.events
    assert re.match(rf"environment '{WALK}', number 1, episode \d+, step \d+: ", event)
    assert cause in event


@pytest.mark.parametrize("lanes", HOSTS)
def test_by_default_a_failing_environment_stops_the_run_with_a_checkpoint(lanes, tmp_path):
    args = {"fault": "raise", "armed": str(tmp_path / "armed")}
    system, plan = gym_plan(args=args, checkpoint_every=0)
    run = trained(system, plan, lanes, steps=800, out=tmp_path / "run").run
    assert run.status == "failed"
    where = rf"environment '{WALK}', number 1, episode \d+, step \d+"
    assert re.search(f"{where}: RuntimeError", run.message)
    assert 0 < run.env_steps < 800
    faulty_envs.BORN[0] = 0
    again = trained(system, plan, lanes, steps=800, out=tmp_path / "run", resume=True).run
    assert (again.status, again.env_steps, again.restarts) == ("done", 800, 1)


@pytest.mark.parametrize("lanes", ["one", "processes"])
def test_an_environment_that_fails_whenever_it_is_made_anew_ends_the_run(lanes):
    system, plan = gym_plan(args={"fault": "always"}, on_env_failure="restart")
    run = trained(system, plan, lanes, steps=800).run
    assert run.status == "failed"
    assert "made again 3 times and failed each time" in run.message


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lanes", "fault", "policy"),
    [
        ("one", "block", "restart"),
        ("one", "block", "stop"),
        ("threads", "block", "restart"),
        ("processes", "hard", "restart"),
        ("processes", "block", "stop"),
    ],
)
def test_an_environment_that_does_not_answer_is_no_hang(lanes, fault, policy, tmp_path):
    """It would not for ten minutes. No longer run: the other three triples."""
    args = {"fault": fault, "armed": str(tmp_path / "armed")}
    options = {"on_env_failure": policy, "env_time_limit": "300 ms"}
    run = trained(*gym_plan(args=args, **options), lanes, steps=800, out=tmp_path / "run").run
    reachable = lanes != "threads"
    assert run.status == ("done" if policy == "restart" and reachable else "failed")
    told = " ".join([*run.events, run.message or ""])
    assert "has not" in told
    assert "lane cpu" in told or re.search(r"number 1, episode \d+, step \d+", told)
    assert not workers()


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
        *(("one", case) for case in RESUMED if case != "one by one"),
        *(("processes", case) for case in ("native", "one by one")),
    ],
)
def test_an_interrupted_run_goes_on_to_what_it_would_have_been(case, lanes, tmp_path):
    """No longer run: processes of the other three cases, whose environments are as one by one."""
    system, plan = RESUMED[case]()
    whole = trained(system, plan, "one", steps=800)
    run = cut(Trainer(told(system, lanes=lanes), plan, seed=3), 300, steps=800, out=tmp_path)
    assert run.env_steps < 800
    resumed = trained(system, plan, lanes, steps=800, out=tmp_path, resume=True)
    assert resumed.run.status == "done"
    assert differing(whole, resumed) == []


@pytest.mark.parametrize("lanes", ["one", "processes"])
def test_an_environment_that_does_not_come_back_the_same_is_named(lanes, tmp_path):
    system, plan = gym_plan(args={"private": True})
    cut(Trainer(told(system, lanes=lanes), plan, seed=3), 1, steps=1600, out=tmp_path)
    resumed = trained(system, plan, lanes, steps=1600, out=tmp_path, resume=True)
    assert resumed.run.status == "done"
    assert any("Walk', number 0, was not brought back" in e for e in resumed.run.events)
    assert not workers()


@pytest.mark.parametrize("lanes", ["one", "processes"])
def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(lanes, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    system, plan = native_plan()
    trainer = Trainer(told(system, checkpoint_every=800, lanes=lanes), plan, seed=3)

    def poison(progress):
        if (tmp_path / CHECKPOINT).exists():
            trainer.session.arrays["learner.q"][:] = np.nan

    run = trainer.train(steps=8000, out=tmp_path, progress=poison)
    assert run.status == "failed"
    assert "loss.q was not finite" in run.message
    assert np.isfinite(load_checkpoint(tmp_path / CHECKPOINT).read("learner.q")).all()


def full_disk(monkeypatch, folder, spared):
    """The disk is full for checkpoints after the first `spared` of them."""
    count, write = [0], files.os.fsync

    def fsync(handle):
        written = folder.glob(f"*{CHECKPOINT}*")
        if any(os.path.samestat(os.fstat(handle), file.stat()) for file in written):
            count[0] += 1
            if count[0] > spared:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)


def test_a_full_disk_leaves_the_checkpoint_before_whole_and_is_told(monkeypatch, tmp_path):
    system, plan = native_plan()
    system = told(system, checkpoint_every=800)
    full_disk(monkeypatch, tmp_path, spared=1)
    run = trained(system, plan, "threads", steps=2400, out=tmp_path).run
    assert run.status == "failed"
    assert "env step 2400 could not be written: No space left" in run.message
    assert "env step 1600 could not be written: No space left" in run.events[0]
    about = load_checkpoint(tmp_path / CHECKPOINT).about
    assert about["progress"]["iteration"] == 800 // ENVS
    assert not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    again = trained(system, plan, "threads", steps=2400, out=tmp_path, resume=True)
    assert differing(trained(system, plan, "one", steps=2400), again) == []


def test_two_runs_in_one_folder_at_once_are_refused_and_a_stale_lock_is_not(tmp_path):
    """Another at once in a folder of its own computes the same: they do not touch each other."""
    system, plan = native_plan()
    (tmp_path / files.LOCK).write_text("999999\n")  # left by a process that was killed
    others = []

    def another(progress):
        if not others:
            with pytest.raises(SpecError, match=f"process {os.getpid()} is training in it now"):
                trained(system, plan, "one", out=tmp_path)
            others.append(trained(system, plan, "one", out=tmp_path / "other"))

    whole = trained(system, plan, "one", out=tmp_path, progress=another)
    assert whole.run.status == "done"
    assert differing(whole, others[0]) == []
    assert not (tmp_path / files.LOCK).exists()


def test_a_folder_that_cannot_be_written_is_an_error_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    system, plan = native_plan()
    with pytest.raises(SpecError, match=r"file/run: a run cannot be written here: Not a directory"):
        trained(system, plan, "one", out=tmp_path / "file" / "run")


SCRIPT = """
import os, sys
from pathlib import Path
from tests.lanes import told, trained
from tests.processes import workers
from tests.runtime.test_faults import fallible_plan, loop
folder, noted = Path(sys.argv[1]), Path(sys.argv[1]) / "workers"
loop.PROGRESS_S, loop.ROUNDS = 0.0, 8

def fall(progress):
    if progress.env_steps >= 800 and not noted.exists():
        noted.write_text(" ".join(map(str, workers())))
        os.killpg(0, int(sys.argv[2]))  # as a terminal does

run = trained(*fallible_plan(), "processes", steps=1600, out=folder / "run", progress=fall).run
sys.exit({"done": 0, "interrupted": 130, "failed": 1}[run.status])
"""


def fallible_plan():
    system, plan = native_plan()
    return told(system, checkpoint_every=400), plan


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_run_that_a_signal_ends_leaves_no_worker_and_goes_on_to_the_same_end(
    number, status, tmp_path
):
    """The signal comes amid the run to its whole group; SIGHUP: `training/test_interruption.py`."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(int(number))]
    done = subprocess.run(command, process_group=0, timeout=HANG_S, check=False)
    assert done.returncode == status
    found = [int(p) for p in (tmp_path / "workers").read_text().split()]
    assert found
    until_gone(found)
    if number != signal.SIGKILL:
        run = load_run(tmp_path / "run")
        assert (run.status, run.restarts) == ("interrupted", 0)
    at = load_checkpoint(tmp_path / "run" / CHECKPOINT).about["progress"]["iteration"]
    assert 400 <= at * ENVS < 1600
    again = trained(*fallible_plan(), "one", steps=1600, out=tmp_path / "run", resume=True)
    assert differing(trained(*fallible_plan(), "one", steps=1600), again) == []


def test_restarting_environments_is_refused_where_it_would_tear_a_rollout():
    spec = {"algorithm": {"name": "ppo", "env": "CartPole-v1"}, "platform": "host"}
    with pytest.raises(SpecError, match=r"on_env_failure: given 'restart'; only algorithms with a"):
        load(spec, set={"train.on_env_failure": "restart"})
