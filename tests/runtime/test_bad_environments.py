"""Environments that hang, end their process or disturb it: `pearl train` goes on, or ends and says
which one did what, and the last checkpoint stays valid."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

import pearl
from pearl.planning.runs import load_run
from pearl.runtime.environments import watcher
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.trainer import CHECKPOINT
from pearl_devices.system import host_system
from tests.processes import HANG_S, until

BAD = "tests.runtime.bad_envs:Bad"
NAMED = rf"environment '{BAD}'.*number 0, episode \d+, step \d+"
REPLAY = {"capacity": 400, "kind": "uniform"}
SPEC = {
    "algorithm": {"name": "dqn", "env": BAD, "num_envs": 1, "hidden": [8], "batch_size": 8,
                  "learning_starts": 16, "replay_ratio": "1/4", "replay": REPLAY},
    "platform": "host",
    "limits": {"max_lanes": 1, "variants": {"step": ["gymnasium"]}},
    "train": {"steps": 400, "evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 40,
              "calibrate_after": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    pearl.plan(pearl.load(SPEC)).save(file)
    return file


def start(folder, plan, kind, before="pass", **args):
    """`pearl train` in `folder`, with its run folder as a relative path."""
    spec = {**SPEC, "algorithm": {**SPEC["algorithm"], "env_args": {"kind": kind, **args}}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    code = f"import sys; {before}; from pearl.cli import main; main()"
    command = [sys.executable, "-c", code, "train", "spec.yaml", "--plan", str(plan)]
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    return subprocess.Popen(
        [*command, "--out", "run"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def stands(folder):
    """The last checkpoint before the step that is bad."""
    progress = load_checkpoint(folder / "run" / CHECKPOINT).about["progress"]
    return 40 <= 4 * progress["iteration"] <= 150


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("segv", -signal.SIGSEGV, r"signal 11 \(segmentation fault\)"),
        ("kill", -signal.SIGKILL, r"signal 9 \(killed\)"),
        ("exit", 7, "exit status 7"),
        ("exit0", 1, "exit status 1"),
    ],
)
def test_a_process_that_dies_is_told_with_its_signal_and_environment(
    kind, status, said, plan, tmp_path
):
    process = start(tmp_path, plan, kind)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == status
    if "exit" in kind and host_system.NAME != "Linux":  # the status of a parent is not told
        said = r"signal 9 \(killed\), or by os\._exit,"
    assert re.search(rf"ended with {said}.* while {NAMED}", errors), errors
    assert stands(tmp_path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sysexit", "SystemExit: 3"),
        ("own", "OwnError: mine"),
    ],
)
def test_what_no_error_is_is_the_error_of_its_environment(kind, said, plan, tmp_path):
    process = start(tmp_path, plan, kind)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert re.search(rf"training failed: {NAMED}: {said}", errors), errors
    assert load_run(tmp_path / "run").status == "failed"


@pytest.mark.parametrize("kind", ["handles", "folder", "handlers"])
def test_what_disturbs_a_process_does_not_end_its_run(kind, plan, tmp_path):
    process = start(tmp_path, plan, kind)
    _, errors = process.communicate(timeout=HANG_S)
    if process.returncode:  # the run needs the handles that were closed, and says so
        assert kind == "handles"
        assert re.search(rf"environment '{BAD}', episode \d+, by step \d+: .*closed", errors)
        return
    run = load_run(tmp_path / "run")
    assert (run.status, run.env_steps) == ("done", 400)
    assert {"plan.json", "metrics.csv", "report.html", CHECKPOINT} <= set(
        os.listdir(tmp_path / "run")
    )
    assert any("SIGTERM" in event for event in run.events) == (kind == "handlers")


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("kind", "second"),
    [("hold", signal.SIGTERM), ("hang", signal.SIGTERM), ("spin", signal.SIGHUP)],
)
def test_the_second_signal_ends_a_run_whose_environment_hangs(kind, second, plan, tmp_path):
    process = start(tmp_path, plan, kind, asked=str(tmp_path / "asked"))
    try:
        until((tmp_path / "asked").exists, "the step that hangs")
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(second)
        begin_s = time.monotonic()
        _, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert time.monotonic() - begin_s < 10 * watcher.LAST_S  # 5 s on a machine that is not busy
    assert process.returncode == -signal.SIGKILL
    assert re.search(rf"second signal was {second.name}, and {NAMED}", errors), errors
    assert stands(tmp_path)


def test_an_environment_that_does_not_answer_is_named_and_then_interrupted(plan, tmp_path):
    before = "from pearl import waits; waits.NAMED_S = 0.5; "
    before += "from pearl.runtime.environments import external_envs as e; e.TIME_LIMIT_S = 3.0"
    process = start(tmp_path, plan, "hang", before=before)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert re.search(rf"{NAMED}, has not answered for \d s; after 3 s it is interrupted", errors)
    run = load_run(tmp_path / "run")
    assert re.search(rf"{NAMED}, has not answered for 0.5 s", run.events[0])
    assert re.search(rf"{NAMED}: TimeoutError: it has not answered for 3 s", run.message)


def test_a_process_that_dies_before_its_watcher_looks_is_told(tmp_path):
    """Nobody waits for the watcher to start, and a dead process that was waited for has no number
    any more."""
    code = """
import os
from pearl.runtime.environments.watchdog import watching
from pearl_devices.primitives.envs.asked import SINCE, Asked
env = Asked()
env.name = "E"
with watching({"step": env}, 60.0):
    env.slot[SINCE] = 1.0
    os._exit(3)
"""
    told = tmp_path / "told"
    with told.open("w") as file:
        assert subprocess.run([sys.executable, "-c", code], stderr=file).returncode == 3
    until(lambda: told.read_text().endswith("\n"), "the death told")
    assert "while environment 'E' of step" in told.read_text()


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("kind", "at", "how"),
    [("segv", 3, "signal 11"), ("exit", 3, "os._exit"), ("kill", 3, "signal 9"),
     ("hold", 3, "has not answered for 4 s"), ("exit0", 0, "os._exit"), ("segv", 0, "signal 11")],
)  # fmt: skip
def test_the_check_names_code_that_ends_it_or_hangs(kind, at, how, tmp_path) -> None:
    given = {**SPEC, "algorithm": {**SPEC["algorithm"], "env_args": {"kind": kind, "at": at}},
             "train": {"steps": 400, "env_time_limit": "1 s"}}  # fmt: skip
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(given))
    command = [sys.executable, "-m", "pearl", "check", "--import", str(tmp_path / "spec.yaml")]
    errors = tmp_path / "errors"
    with errors.open("w") as out:
        status = subprocess.run(command, stderr=out, timeout=HANG_S, check=False).returncode
    assert status != 0
    where = rf"environment '{BAD}' of the rehearsal, episode 1, step 3," if at else BAD
    until(lambda: re.search(rf"{where}.*\n", errors.read_text()), "the watcher has said nothing")
    until(lambda: how in errors.read_text(), "the watcher has not said how the process ended")
