"""The command line: what it writes fits its schemas, its exit status, and what it leaves alone."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pearl.cli import app
from pearl.cli.listing import LISTS
from pearl.cli.training import run_folder
from pearl.planning.plans import load_plan, pearl_version
from pearl.planning.runs import load_run
from pearl.training.progress import progress_display
from pearl.training.steering import Progress
from pearl_estimators.host import calibrator, measuring
from pearl_estimators.host.calibration import HeldOutTiming, MeasuringTimeoutError
from pearl_estimators.host.calibration_file import journal_writer, load_calibration, path
from tests.calibrations import Child, synthetic
from tests.processes import until
from tests.schemas.test_schemas import problems

SPEC = """\
algorithm:
  name: dqn
  env: CartPole-v1
  num_envs: 4
  hidden: [16, 16]
  batch_size: 16
  replay_ratio: 1
  learning_starts: 100
platform: cpu_gpu
train:
  steps: 600
  evaluate_every: 300
  evaluate_episodes: 1
  final_episodes: 2
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-c", "from pearl.cli import main; main()"]


class Ran:
    """What one command left: exit status, standard output, standard error."""

    def __init__(self, *arguments: object) -> None:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        unexpected = result.exception
        if unexpected is not None and not isinstance(unexpected, SystemExit):
            raise unexpected
        self.status, self.out, self.err = result.exit_code, result.stdout, result.stderr

    def object(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "small.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def trained(spec: Path) -> Path:
    """A run folder, from a training emulated on this host."""
    folder = spec.parent / "run"
    ran = Ran("train", spec, "--emulate", "--out", folder, "--json", spec.parent / "run.json")
    assert ran.status == 0, ran.err
    return folder


@pytest.mark.usefixtures("cpu_as_it_is")
def test_neither_help_nor_a_plan_imports_what_it_does_not_need(spec: Path) -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from pearl.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'gymnasium', 'scipy', 'numba', 'numpy', 'networkx', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        f"assert CliRunner().invoke(app, ['plan', {str(spec)!r}]).exit_code == 0\n"
        "print(sorted({'torch', 'numba'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


@pytest.mark.parametrize(
    ("module", "arguments"), [("pearl", ["--version"]), ("pearl.cli", ["check", "nosuch.yaml"])]
)
def test_the_package_run_as_a_module_is_the_command(module: str, arguments: list[str]) -> None:
    """No longer run: each of the two modules with the arguments of the other one."""
    command = [sys.executable, "-m", module, *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    same = Ran(*arguments)
    assert (said.returncode, said.stdout, said.stderr) == (same.status, same.out, same.err)
    if arguments == ["--version"]:
        assert (same.status, same.out) == (0, f"pearl {pearl_version()}\n")
    else:
        assert (same.status, same.err.startswith("error: nosuch.yaml")) == (2, True)


def test_every_command_has_help() -> None:
    listed = re.findall(r"^  (\w[\w-]+)  ", Ran("--help").out, flags=re.MULTILINE)
    assert set(listed) == {
        *("init", "check", "list", "devices", "calibrate", "plan", "train", "eval", "report"),
        *(
            "pareto",
            "schema",
            "export",
            "calibrate-gpu",
            "sweep",
            "advise",
            "rtl",
            "verify",
        ),
    }
    for command in listed:
        assert "--json" in Ran(command, "--help").out


def test_the_front_is_written_as_its_schema_says_by_rising_power(spec: Path) -> None:
    ran = Ran("pareto", spec, "--gap", 1, "--time-limit", 300, "--json", "-")
    assert ran.status == 0, ran.err
    found = ran.object()
    assert problems(found, "pareto") == []
    powers = [p["power_w"] for p in found["plans"]]
    assert powers == sorted(powers)
    shown = Ran("pareto", spec, "--gap", 1, "--time-limit", 300).out
    assert "env steps/J" in shown
    assert Ran("pareto", spec, "--gap", 0).status == 2


def test_a_makespan_is_asked_for_by_option_or_spec_and_said_to_be_one(
    spec: Path, tmp_path: Path
) -> None:
    ran = Ran("plan", spec, "--objective", "makespan", "--json", "-")
    assert ran.status == 0, ran.err
    found = ran.object()
    assert problems(found, "plan") == []
    assert (found["objective"], found["value_unit"]) == ("makespan", "s")
    by_spec = Ran("plan", spec, "--set", "objective=makespan", "--verbose")
    assert "until the first iteration is complete, at least" in by_spec.out
    assert "per iteration for consecutive iterations" in by_spec.out
    held = Ran("plan", spec, "--objective", "makespan", "--set", "limits.power=3 W")
    assert held.status == 2
    assert "set limits.power: given '3 W'; objective makespan" in held.err
    assert Ran("plan", spec, "--objective", "speed").status == 2


def test_a_plan_for_makespan_can_be_trained(spec: Path, tmp_path: Path) -> None:
    out, asked = tmp_path / "run", ["--set", "objective=makespan", "--set", "train.steps=300"]
    ran = Ran("train", spec, "--emulate", *asked, "--out", out, "--json", "-")
    assert ran.status == 0, ran.err
    assert problems(ran.object(), "run") == []
    run = load_run(out)
    assert run.plan.objective == "makespan"
    assert run.predicted_env_steps_per_s == pytest.approx(4 / run.plan.period_s)
    assert run.env_steps_per_s == pytest.approx(run.predicted_env_steps_per_s, rel=1e-6)


@pytest.mark.parametrize("kind", sorted(LISTS))
def test_list_writes_what_it_says(kind: str) -> None:
    found = Ran("list", kind, "--json", "-").object()
    assert problems(found, "list") == []
    text = Ran("list", kind).out
    for item in found["items"]:
        assert item["name"] in text


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of a process that has just started, whose measuring would fail."""
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibrator, "_skipped", {})
    monkeypatch.setattr(calibrator, "_checked", set())
    monkeypatch.setattr(measuring, "run_in_child", None)
    return tmp_path


def test_calibrate_measures_anew_and_check_compares(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = vars(HeldOutTiming("sum_tree (batch 64)", "native", 2e-6, 2.2e-6, 1.6e-6, 2.5e-6))
    missed = vars(HeldOutTiming("sum_tree (batch 8)", "native", 2e-6, 9e-6, 1.6e-6, 2.5e-6))
    tasks, measure = [], Child(synthetic(contention=1.6))

    def child(task: str, seconds: float, *, timeout_s: float, request: Any) -> object:
        tasks.append((task, timeout_s))
        if task != "measure":
            return [held, missed]
        tell = journal_writer(Path(request["journal"]))
        tell({"skipped": {"update.dqn torch": "no torch here"}})
        tell({"beside": {"env_step native": {"update native": 0.02, "learn native": 0.314}}})
        return measure(task, seconds, timeout_s=timeout_s, request=request)

    monkeypatch.setattr(measuring, "run_in_child", child)
    ran = Ran("calibrate", "--json", "-")
    assert ran.status == 0
    assert problems(ran.object(), "calibrate") == []
    text = Ran("calibrate", "--time-limit", 77).out
    assert "left out: update.dqn torch: no torch here" in text
    known = load_calibration()
    assert known
    assert f"{sum(p.loaded for p in known.points)} of its kernels were timed under load" in text
    ran = Ran("calibrate", "--check", "--json", "-")
    assert problems(ran.object(), "calibrate") == []
    assert [row["held"] for row in ran.object()["checks"]] == [True, False]
    assert "the band held 1 of 2" in Ran("calibrate", "--check").out
    assert tasks == [("measure", 180.0), ("measure", 77.0), ("check", 136.0), ("check", 136.0)]


def test_a_measuring_that_takes_too_long_is_status_1_and_says_what_is_kept(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Child(most=9, error=MeasuringTimeoutError("measuring this host took more than 3 s"))
    monkeypatch.setattr(measuring, "run_in_child", late)
    ran = Ran("calibrate", "--time-limit", 3, "--json", "-")
    assert ran.status == 1
    assert problems(ran.object(), "failed") == []
    assert "this host took more than 3 s; the timings of 9 kernels are stored" in ran.err


def test_a_damaged_calibration_is_made_anew_and_a_line_says_so(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path().write_text("{}")
    monkeypatch.setattr(measuring, "run_in_child", Child())
    ran = Ran("plan", "dqn_cartpole")
    assert ran.status == 0
    assert re.search(
        r"^note: .*calibration-.*; the calibration is measured again$", ran.err, re.MULTILINE
    )
    assert "calibrated" in ran.out
    assert load_calibration() is not None


def test_init_writes_a_spec_that_check_accepts_and_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert problems(Ran("init", file, "--json", "-").object(), "init") == []
    text = file.read_text()
    checked = Ran("check", file, "--json", "-")
    assert checked.status == 0
    assert problems(checked.object(), "check") == []
    again = Ran("init", file)
    assert again.status == 2
    assert again.err.startswith(f"error: {file}: exists already")
    assert file.read_text() == text


def test_init_writes_a_platform_out_and_check_counts_what_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    asked = "cpu=ryzen_9_7950x,gpu=rtx_4090x2"
    assert Ran("init", file, "--platform", asked).status == 0
    check = ("check", "dqn_cartpole", f"platform={file}", "--json", "-")
    assert Ran(*check).object()["notes"] == []
    text = file.read_text()
    assert text.count("memory: 24 GiB") == 2
    file.write_text(text.replace("    memory: 24 GiB", "    memory: {value: 48 GiB}"))
    assert Ran(*check).status == 0  # the entry's source stands for it
    mine, gone = re.subn(r"    source: .*RTX 4090 Specifications.*\n", "", text)
    assert gone == 2
    file.write_text(mine)
    (note,) = Ran(*check).object()["notes"]
    assert re.fullmatch(r"1\d of \d\d numbers of the platform are yours", note)
    wrong = Ran("init", tmp_path / "x.yaml", "--platform", "cpu=i486")
    assert (wrong.status, (tmp_path / "x.yaml").exists()) == (2, False)
    assert "no device 'i486' in the catalogue" in wrong.err


def test_every_problem_of_a_spec_is_a_line_and_the_status_is_2(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(SPEC.replace("num_envs: 4", "num_envs: none\n  horizon: 3"))
    ran = Ran("check", bad)
    assert (ran.status, ran.out) == (2, "")
    lines = ran.err.splitlines()
    assert len(lines) == 2
    assert all(x.startswith(f"error: {bad}:") for x in lines)
    found = Ran("check", bad, "--json", "-").object()
    assert problems(found, "invalid") == []
    assert [f"error: {p}" for p in found["problems"]] == lines


@pytest.mark.parametrize("command", ["check", "plan", "train", "eval", "report"])
def test_a_missing_file_is_status_2_and_no_traceback(command: str, tmp_path: Path) -> None:
    ran = Ran(command, tmp_path / "absent")
    assert ran.status == 2
    assert ran.err.startswith("error: ")
    assert "absent" in ran.err
    assert "Traceback" not in ran.err + ran.out


@pytest.mark.parametrize(
    "arguments",
    [("list", "colours"), ("plan",), ("fly",), ("train", "x.yaml", "--steps", "0"), ("eval",)],
)
def test_wrong_arguments_are_status_2(arguments: tuple[str, ...]) -> None:
    ran = Ran(*arguments)
    assert ran.status == 2
    assert "Error" in ran.err


def test_set_is_checked_like_the_file(spec: Path) -> None:
    fine = Ran("check", spec, "--set", "algorithm.hidden=[32, 8]", "--set", "limits.power=350 W")
    assert fine.status == 0
    for setting, reason in (
        ("train.steps=none", "train.steps"),
        ("limits.power=350", "350 W"),
        ("train.stops=3", "steps"),
        ("train.steps", "key.path=value"),
    ):
        ran = Ran("check", spec, "--set", setting)
        assert ran.status == 2
        assert ran.err.startswith("error: set")
        assert reason in ran.err


def test_plan_prints_a_report_and_writes_a_plan(spec: Path, tmp_path: Path) -> None:
    ran = Ran("plan", spec, "--verbose", "--json", tmp_path / "plan.json")
    assert ran.status == 0
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert problems(stored, "plan") == []
    for task in stored["tasks"]:
        assert task["task"] in ran.out
    assert load_plan(tmp_path / "plan.json").host == "cpu_gpu"
    quiet = Ran("plan", spec, "--json", "-")
    assert problems(quiet.object(), "plan") == []
    same = {k: v for k, v in quiet.object().items() if k != "solve_s"}
    assert same == {k: v for k, v in stored.items() if k != "solve_s"}


def test_an_infeasible_plan_is_status_1_with_its_conflict(spec: Path) -> None:
    ran = Ran("plan", spec, "--set", "limits.power=1 mW", "--json", "-")
    assert ran.status == 1
    assert ran.err.startswith("error: ")
    found = ran.object()
    assert problems(found, "infeasible") == []
    assert found["conflict"]


def test_train_writes_a_whole_run_folder(trained: Path) -> None:
    stored = json.loads((trained.parent / "run.json").read_text())
    assert problems(stored, "run") == []
    assert problems(json.loads((trained / "run.json").read_text()), "run") == []
    assert problems(json.loads((trained / "plan.json").read_text()), "plan") == []
    assert {"metrics.csv", "report.html"} <= {p.name for p in trained.iterdir()}
    assert stored["simulated"] is True
    assert stored["env_steps"] >= 600


def test_a_report_of_a_folder_that_cannot_be_written_is_printed(
    trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("pearl.report.report.Report.save", full)
    ran = Ran("report", trained, "--html", tmp_path / "page.html")
    assert ran.status == 0
    assert "simulated" in ran.out
    assert f"{trained}: " in ran.err
    assert os.strerror(errno.EROFS) in ran.err
    assert (tmp_path / "page.html").exists()


def test_eval_is_reproducible_and_writes_its_returns(trained: Path) -> None:
    found = [
        Ran("eval", trained, "--episodes", "2", "--seed", "7", "--json", "-").object()
        for _ in range(2)
    ]
    assert problems(found[0], "eval") == []
    assert found[0] == found[1]
    assert found[0]["mean"] == pytest.approx(sum(found[0]["returns"]) / 2)


def test_train_follows_a_given_plan(spec: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    only_cpu = ("--set", "limits.max_lanes=1")
    assert Ran("plan", spec, *only_cpu, "--json", plan).status == 0
    arguments = ("--emulate", "--plan", plan, "--steps", "40", "--out", tmp_path / "run")
    ran = Ran("train", spec, *arguments, "--json", "-")
    assert ran.status == 0, ran.err
    placed = {t["task"]: t["device"] for t in json.loads(plan.read_text())["tasks"]}
    assert {t["task"]: t["device"] for t in ran.object()["plan"]["tasks"]} == placed


def test_train_refuses_devices_that_are_not_here(spec: Path, tmp_path: Path) -> None:
    ran = Ran("train", spec, "--out", tmp_path / "run")
    assert ran.status == 2
    assert "--emulate" in ran.err
    assert not (tmp_path / "run").exists()


def test_a_run_folder_is_not_trained_over(trained: Path, spec: Path) -> None:
    ran = Ran("train", spec, "--emulate", "--out", trained)
    assert ran.status == 2
    assert "--resume" in ran.err


def test_run_folders_are_numbered_and_resume_takes_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder("dqn", None, resume=True) == Path("runs/dqn")
    assert run_folder("dqn", None, resume=False) == Path("runs/dqn")
    Path("runs/dqn").mkdir(parents=True)
    assert run_folder("dqn", None, resume=False) == Path("runs/dqn-2")
    Path("runs/dqn-2").mkdir()
    assert run_folder("dqn", None, resume=False) == Path("runs/dqn-3")
    assert run_folder("dqn", None, resume=True) == Path("runs/dqn-2")
    assert run_folder("../up/and away", None, resume=False).parent == Path("runs")
    assert run_folder("dqn", Path("mine"), resume=False) == Path("mine")


def test_json_that_cannot_be_written_is_status_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = Ran("list", "algorithms", "--json", tmp_path / "file" / "x.json")
    assert ran.status == 1
    assert ran.err.startswith("error: ")


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "schema"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_terminal_without_unicode_gets_its_text() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, "devices"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_a_checkpoint_and_status_130_and_resume_goes_on(
    spec: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    arguments = [*COMMAND, "train", str(spec), "--emulate", "--out", str(folder)]
    steps = ["--set", "train.checkpoint_every=200", "--set", "train.evaluate_every=1000000"]
    process = subprocess.Popen(
        [*arguments, *steps, "--steps", "40000000"],  # more than any host does before the signal
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    file = folder / "checkpoint.safetensors"
    until(lambda: file.exists() or process.poll() is not None, "a checkpoint")
    assert process.poll() is None, process.communicate()[1]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    stopped = load_run(folder)
    assert stopped.status == "interrupted"
    more = str(stopped.env_steps + 400)
    ran = Ran("train", spec, "--emulate", "--out", folder, *steps, "--steps", more, "--resume")
    assert ran.status == 0, ran.err
    assert load_run(folder).status == "done"
    assert load_run(folder).env_steps >= int(more)


def progress(env_steps: int, **other: Any) -> Progress:
    rates = {"env_steps_per_s": 24_310.0, "predicted_env_steps_per_s": 25_000.0}
    values: dict[str, Any] = {"total_steps": 1000, "mean_return": 21.46, "eval_mean": None, **rates}
    return Progress(env_steps=env_steps, **{**values, "phase": "training", **other})


def test_progress_on_a_terminal_is_a_bar_that_ends_full() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_display(stream) as tell:
        tell(progress(500))
        tell(progress(1000))
    assert "1,000/1,000" in stream.getvalue()
    assert "0.97 of predicted" in stream.getvalue()


def test_a_plan_says_what_of_this_host_it_has_to_time_first(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "run_in_child", Child())
    asked: list[list[str]] = []

    def lacking(kernels: list[Any]) -> list[str]:
        asked.append(sorted({k.kind for k in kernels}))
        return ["sac"] if len(asked) == 1 else []

    monkeypatch.setattr(calibrator, "missing_groups", lacking)
    said = [Ran("plan", "sac_pendulum").err for _ in range(2)]
    assert "timing this host's kernels once (sac)" in said[0]
    assert "timing" not in said[1]
    assert {"update.sac", "iteration.sac"} <= set(asked[0])
