"""A process whose environment never returns from C says which one it was, and ends."""

import faulthandler
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pearl.planner import planner
from pearl.runtime.environments import watchdog
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.primitives.envs.asked import SINCE, Asked
from tests.lanes import planned, replay_spec, spread, told, untimed
from tests.processes import HANG_S, handles, left, until, until_gone, workers
from tests.runtime.test_any_order import outside_system

STUCK, SLOW = "tests.uneven_envs:Stuck", "tests.uneven_envs:Slow"
TRAIN = {"env_time_limit": "300 ms", "checkpoint_every": 40}


def trainer(lanes, args):
    """Environments in this thread: alone, or with a worker that draws batches; or in threads of
    actors."""
    if lanes == "threads":
        system = outside_system(4, lanes, STUCK, args, **TRAIN)
        return Trainer(system, planner.plan(untimed(system)), seed=3)
    spec = replay_spec("dqn", env=STUCK, num_envs=4, env_args=args)
    spec["limits"] = {"max_lanes": 1, "variants": {"step": ["gymnasium"]}}
    spec["train"] |= TRAIN
    system, plan = planned(spec, variants=("native", "gymnasium"))
    if lanes == "processes":
        plan = spread(plan, {t.task: int(t.task == "sample") for t in plan.tasks})
    return Trainer(told(system, lanes=lanes), plan, seed=3)


def run(folder, lanes, holding):
    """What the process that is to end does."""
    folder = Path(folder)
    ready = trainer(lanes, {"armed": str(folder / "armed"), "holding": holding == "holding"})

    def arm(progress):
        if (folder / "run" / CHECKPOINT).exists() and not (folder / "armed").exists():
            (folder / "workers").write_text(" ".join(map(str, workers())))
            (folder / "armed").touch()

    ready.train(steps=10**7, out=folder / "run", progress=arm)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lanes", "holding"),
    [("one", "holding"), ("one", "releasing"), ("processes", "holding"), ("threads", "holding")],
)
def test_a_step_that_never_returns_from_c_ends_the_process_by_name(lanes, holding, tmp_path):
    code = "import sys; from tests.runtime.test_last_resort import run; run(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tmp_path), lanes, holding]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (tmp_path / "armed").exists(), done.stderr
    assert done.returncode == -signal.SIGKILL
    line = done.stderr.strip().splitlines()[-1]
    assert re.search(f"environment '{STUCK}' of step.*, number .*, episode .*, step ", line)
    assert "1.2 s" in line
    assert load_checkpoint(tmp_path / "run" / CHECKPOINT).about["progress"]["iteration"] > 0
    found = [int(p) for p in (tmp_path / "workers").read_text().split()]
    assert len(found) == (lanes == "processes")
    until_gone(found)


def slow_run(folder):
    """What the process that is stopped amid a step does."""
    spec = replay_spec("dqn", env=SLOW, num_envs=1, env_args={"going": f"{folder}/going"})
    spec["limits"] = {"max_lanes": 1, "variants": {"step": ["gymnasium"]}}
    spec["train"] |= TRAIN
    system, plan = planned(spec, variants=("native", "gymnasium"))
    done = Trainer(system, plan, seed=3).train(steps=24)
    print(done.status, done.restarts, done.env_steps)


def test_a_process_that_was_stopped_for_longer_goes_on(tmp_path):
    code = "import sys; from tests.runtime.test_last_resort import slow_run; slow_run(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            until((tmp_path / "going").exists, "the eighth step")
            process.send_signal(signal.SIGSTOP)
            time.sleep(watchdog.HARD_LIMIT_FACTOR * 0.3 + 0.5)
            process.send_signal(signal.SIGCONT)
            told, _ = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert told.split() == ["done", "0", "24"]


class Answering(Asked):
    """An environment that is asked time and again, and answers within the limit."""

    name = "answers"


def test_a_process_whose_environments_answer_goes_on_and_nothing_is_left():
    before, env, open_before = threading.active_count(), Answering(), handles()
    wakeup, enabled = signal.set_wakeup_fd(-1), faulthandler.is_enabled()
    with watchdog.watching({"step": env}, 0.25):
        process = watchdog._running[0]._process
        for _ in range(110):  # together longer than four times the limit
            env.slot[SINCE] = time.monotonic()
            time.sleep(0.01)
            env.slot[SINCE] = 0.0
        assert process.poll() is None
        with watchdog.watching({"evaluation": Answering()}, 0.25):  # the same process watches
            assert watchdog._running[0]._process is process
        assert process.poll() is None
    assert process.poll() is not None
    assert (threading.active_count(), left(open_before)) == (before, [])
    assert signal.set_wakeup_fd(wakeup) == -1
    assert faulthandler.is_enabled() == enabled
