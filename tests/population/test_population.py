"""Populations of real processes: the bits of a run, deaths, signals, going on; each way once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

import pearl
from benchmarks.processes import below, is_running
from pearl.errors import SpecError
from pearl.planning.runs import load_run
from pearl.population import precompile
from pearl.population.members import build_population
from pearl.population.setting_results import curve, summarise
from pearl.training.checkpoints import branching
from pearl.training.checkpoints.checkpoint import load as checkpoint
from pearl.training.compiled import compile_plan
from pearl_devices.primitives import code_cache
from pearl_devices.system import host_system
from tests.processes import HANG_S, is_run, until, until_gone
from tests.schemas.test_schemas import problems

SPEC = {
    "algorithm": {
        "name": "dqn",
        "env": "CartPole-v1",
        "num_envs": 4,
        "hidden": [16, 16],
        "batch_size": 16,
        "replay": {"kind": "prioritised", "capacity": 1000, "fanout": 8},
        "n_step": 2,
        "learning_starts": 100,
    },
    "platform": "host",
    "limits": {"max_lanes": 1},
    "train": {
        "steps": 400,
        "evaluate_every": 200,
        "evaluate_episodes": 1,
        "final_episodes": 1,
        "checkpoint_every": 2000,
    },
}
RATE = "algorithm.learning_rate"


def held(file, spec, steps, after):
    """The spec with environments that wait, while `file` is there, beyond so many steps each."""
    file.touch()
    args = {"name": spec["algorithm"]["env"], "file": str(file), "after": after}
    acting = spec["algorithm"] | {"env": "tests.uneven_envs:held", "env_args": args}
    return spec | {"algorithm": acting, "train": spec["train"] | {"steps": steps}}


class Heard:
    """A watcher that keeps the lines."""

    def __init__(self):
        self.lines = []

    def print_event(self, line):
        self.lines.append(line)

    def refresh(self, rows):
        rows()


def arrays(folder):
    stored = checkpoint(folder / "checkpoint.safetensors")
    return {name: stored.read(name) for name in stored.places}


def alone(folder, run, tmp_path):
    """What `pearl train --plan` by the spec and plan in the folder of a sweep leaves."""
    found = json.loads((folder / "sweep.json").read_text())
    (about,) = [r for r in found["runs"] if r["run"] == run]
    spec = folder / "specs" / f"{about['setting']}.yaml"
    trainer = pearl.compile(
        pearl.load(spec), plan=folder / found["plans"][about["setting"]], seed=about["seed"]
    )
    trainer.train(steps=about["steps"], out=tmp_path / "alone")
    return arrays(tmp_path / "alone")


def test_a_run_that_died_goes_on_a_signal_ends_all_and_resuming_gives_the_bits_of_one_alone(
    tmp_path,
):
    spec, out = tmp_path / "small.yaml", tmp_path / "sweep"
    rarely = SPEC | {"train": SPEC["train"] | {"evaluate_every": 2000}}
    spec.write_text(yaml.safe_dump(held(tmp_path / "held", rarely, 12_000, 510)))
    ask = ("sweep", str(spec), "--seeds", "3,4", "--out", str(out))
    process = subprocess.Popen(
        [sys.executable, "-m", "pearl", *ask], stderr=subprocess.PIPE, text=True
    )
    first = out / "seed=3" / "checkpoint.safetensors"
    until(first.exists)
    (pid,) = trains(process.pid, "seed=3")
    if host_system.PINS:
        assert len(psutil.Process(pid).cpu_affinity()) == 1
    os.kill(pid, signal.SIGKILL)
    line = until(lambda: next((text for text in process.stderr if "SIGKILL" in text), None))
    assert line.startswith("seed=3: ended by signal SIGKILL; ")
    assert "from its checkpoint" in line
    until(lambda: trains(process.pid, "seed=3"))
    begun = below(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANG_S) == -signal.SIGTERM
    assert not any(map(is_running, begun))
    process.stderr.close()
    (tmp_path / "held").unlink()
    found = json.loads((out / "sweep.json").read_text())
    assert found["status"] == "interrupted"
    assert problems(found, "sweep") == []

    with pytest.raises(SpecError, match="holds a sweep"):
        pearl.sweep(spec, seeds=[3, 4], out=out)
    with pytest.raises(SpecError, match="began with another seeds"):
        pearl.sweep(spec, seeds=[3, 5], out=out, resume=True)
    done = pearl.sweep(spec, seeds=[3, 4], out=out, resume=True)
    assert done.status == "done"
    again = pearl.sweep(spec, seeds=[3, 4], out=out, resume=True)
    assert again.history == done.history  # nothing was run
    one, whole = arrays(out / "seed=3"), alone(out, "seed=3", tmp_path)
    assert one.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(one[name], array, err_msg=name)


def test_no_run_outlives_a_sweep_that_is_killed(tmp_path):
    spec, out = tmp_path / "endless.yaml", tmp_path / "sweep"
    spec.write_text(yaml.safe_dump(SPEC | {"train": SPEC["train"] | {"steps": 10**8}}))
    process = subprocess.Popen(
        [sys.executable, "-m", "pearl", "sweep", str(spec), "--out", str(out)],
        stderr=subprocess.DEVNULL,
    )
    try:
        until((out / "seed=0" / "metrics.csv").exists)
        assert trains(process.pid)
    finally:
        begun = below(process.pid)
        process.kill()
        process.wait()
    until_gone(begun)
    assert (out / "seed=0" / "checkpoint.safetensors").exists()


def trains(pid, log=""):
    """The runs of the sweep in process `pid` whose log has this in its name."""
    found = [p for p in below(pid) if is_run(p)]
    return [p for p in found if any(log in f.path for f in psutil.Process(p).open_files())]


def test_halving_goes_on_from_checkpoints_with_the_better_setting(tmp_path):
    heard = Heard()
    found = pearl.sweep(
        SPEC,
        over={RATE: [1e-9, 1e-3]},
        asha={"eta": 2, "min_steps": 200},
        out=tmp_path,
        watch=heard,
    )
    assert found.status == "done"
    assert sorted(r.env_steps for r in found.runs) == [200, 400]
    (best,) = [r for r in found.runs if r.env_steps == 400]
    ends = {e["run"]: e["score"] for e in found.history if (e["event"], e["steps"]) == ("end", 200)}
    assert ends[best.run] == max(ends.values())
    assert "rung 1: promoted" in next(x for x in heard.lines if "promoted" in x)
    assert load_run(tmp_path / best.run).env_steps == 400
    assert found.ranked()[0].setting == best.setting
    assert problems(found.to_json(), "sweep") == []


def test_a_tournament_goes_on_from_its_board_with_other_values(tmp_path):
    found = pearl.sweep(
        SPEC,
        over={RATE: [1e-4, 1e-3]},
        tournament={"rounds": 2, "members": 2, "board": 1},
        out=tmp_path,
    )
    assert found.status == "done"
    assert len(found.runs) == 4
    assert [r.env_steps for r in found.runs if r.parent] == [400, 400]
    (first,) = found.board
    assert first["score"] == max(r.last_eval_mean for r in found.runs)
    assert problems(found.to_json(), "sweep") == []
    # the checkpoints of rounds that nothing can begin from any more are gone
    kept = {p.parent.name for p in tmp_path.glob("*/checkpoint.safetensors")}
    assert kept == {first["run"]}
    later = next(r for r in found.runs if r.parent)
    spec = yaml.safe_load((tmp_path / later.run / "spec.yaml").read_text())
    assert spec["algorithm"]["learning_rate"] == later.values[RATE]


def test_a_branch_has_the_weights_of_the_other_run_and_steps_and_streams_of_its_own(tmp_path):
    system = pearl.load(SPEC, set={"algorithm.max_grad_norm": 1.0})
    plan = pearl.plan(system)
    pearl.compile(system, plan=plan, seed=1).train(steps=200, out=tmp_path / "one")
    other = pearl.load(SPEC, set={"algorithm.max_grad_norm": 1.0, RATE: 0.125})
    branching.branch(tmp_path / "one", tmp_path / "two", other, plan, 2)
    one, two = arrays(tmp_path / "one"), arrays(tmp_path / "two")
    differ = {name for name in one if not np.array_equal(one[name], two[name])}
    assert differ == {name for name in one if name.startswith("rng.")} | {"hyper.lr.q"}
    larger = pearl.load(SPEC, set={"algorithm.hidden": [8, 8]})
    with pytest.raises(SpecError, match="with other sizes cannot continue"):
        branching.branch(tmp_path / "one", tmp_path / "three", larger, pearl.plan(larger), 2)


def test_a_run_that_says_why_it_failed_is_named_and_not_started_again(tmp_path):
    heard = Heard()
    spec = SPEC | {"train": SPEC["train"] | {"steps": 200}}
    (tmp_path / "seed=0").mkdir()
    (tmp_path / "seed=0" / "run.json").write_text("mine")
    found = pearl.sweep(spec, seeds=[0], out=tmp_path, watch=heard)
    assert found.status == "failed"
    assert [(r.run, r.status, r.restarts) for r in found.runs] == [("seed=0", "failed", 0)]
    assert [e["event"] for e in found.history] == ["start", "end"]
    (line,) = [text for text in heard.lines if text.startswith("seed=0: failed")]
    assert "no run of pearl wrote this" in line
    assert "seed=0" in str(found)


def test_kernels_compile_once_before_the_runs_fan_out(tmp_path, monkeypatch):
    calls, answers = [], [True, False]

    def compile_kernels(arguments, folder, log, cores, interrupted):
        calls.append(arguments)
        return answers[len(calls) - 1]

    monkeypatch.setattr(host_system, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(precompile, "compile_kernels", compile_kernels)
    monkeypatch.setattr(precompile, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path / "code")
    (tmp_path / "code").mkdir()
    over = {RATE: [1e-4, 1e-3], "algorithm.batch_size": [16, 32]}
    found = pearl.sweep(SPEC, over=over, out=tmp_path / "sweep")
    assert found.status == "interrupted"  # the second short run was: nothing has begun
    assert found.history == ()
    assert ["batch_size=16" in str(a) for a in calls] == [True, False]
    assert {"108"} < set(calls[0])
    monkeypatch.setattr(precompile, "compile_kernels", None)
    made = [
        compile_plan(s.system, pearl.plan(s.system))
        for s in build_population(SPEC, over=over).settings
    ]
    assert list(map(precompile.needs_compiling, made)) == [False, True] * 2
    (tmp_path / "code").rmdir()
    assert precompile.needs_compiling(made[0])
    monkeypatch.setattr(code_cache, "folder", lambda: None)
    assert not precompile.needs_compiling(made[0])  # nothing is stored


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"history": 3}, "no sweep that this version"),
        ({"history": [{"event": "end", "run": "seed=0", "steps": 400}]}, "no sweep that"),
        ({"history": [{"event": "end", "run": "x", "steps": 1, "score": 1.0}]}, "before it began"),
        ({"packing": {"cores_per_run": 0}}, "no sweep that this version"),
        ({"packing": {"cores_per_run": True}}, "no sweep that this version"),
        ({"history": [{"event": "start", "run": "seed=0"}]}, "no sweep that this version"),
        ({"plans": {"as-given": 1}}, "no sweep that this version"),
        ({"runs": [{}]}, "no sweep that this version"),
        ({"plans": {"as-given": "plans/none.json"}}, "cannot be read"),
        ({"schema": 2}, "a sweep of format 2"),
    ],
)
def test_a_damaged_sweep_is_not_gone_on_with(damage, why, tmp_path):
    whole = pearl.sweep(SPEC, out=tmp_path / "none", dry_run=True).to_json()
    (tmp_path / "sweep.json").write_text(json.dumps(whole | damage))
    with pytest.raises(SpecError, match=why):
        pearl.sweep(SPEC, out=tmp_path, resume=True)


def test_a_dry_run_says_the_schedule_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(host_system, "usable_cpus", lambda: [0, 1])
    found = pearl.sweep(SPEC, seeds=[0, 1, 2], out=tmp_path / "none", dry_run=True)
    assert found.status == "planned"
    assert "3 runs, 2 at once on 1 of 2 cores each" in found.schedule
    assert "Schedule" in str(found)
    assert problems(found.to_json(), "sweep") == []
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_page_runs_and_leaves_table_picture_and_policies(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) < 25
    small = "2_000, 'limits.max_lanes': 1, 'train.final_episodes': 2, 'train.evaluate_every': 500"
    shorter = code.replace("20_000", small)
    assert shorter != code
    command = [sys.executable, "-c", shorter]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    assert "Sweep · 4 runs" in done.stdout
    assert re.search(r"^learning_rate=\S+: [\d.]+, 95 % interval", done.stdout, re.MULTILINE)
    assert "(4 ended)" in done.stderr  # a line a run, where there is no terminal
    folder = tmp_path / "sweeps" / "learning_rate"
    page = (folder / "sweep.html").read_text()
    assert page.startswith("<!doctype html>")
    ends = r"learning_rate=\S+ ends at "
    assert re.search(f"Return during training: {ends}.*{ends}", page)
    assert (folder / "sweep.csv").read_text().count("\n") == 5
    assert problems(json.loads((folder / "sweep.json").read_text()), "sweep") == []


def test_a_curve_goes_as_far_as_all_runs_have_come(tmp_path):
    from pearl.population.setting_results import SweepRun

    outcomes = []
    for seed, last in ((0, 400), (1, 200)):
        rows = [f"{x},0,0,{x + seed}" for x in range(100, last + 1, 100)]
        folder = tmp_path / f"seed={seed}"
        folder.mkdir()
        text = "\n".join(["env_steps,updates,wall_s,eval_mean", *rows])
        (folder / "metrics.csv").write_text(text)
        more = {"status": "done", "eval_mean": 7.0, "env_steps": last}
        outcomes.append(SweepRun(f"seed={seed}", "s", seed, {}, last, **more))
    (tmp_path / "seed=2").mkdir()
    (tmp_path / "seed=2" / "metrics.csv").write_text("env_steps,eval_mean\n400,200\n")
    found = summarise(outcomes, tmp_path)
    assert (found.iqm, found.low, found.high) == (7.0, 7.0, 7.0)
    rows, means, lows, highs = zip(*found.curve, strict=True)
    assert rows == pytest.approx(np.linspace(100, 200, 60))  # POINTS of them
    assert (means, lows, highs) == tuple((x,) * 59 + (x + 100,) for x in (100.5, 100.0, 101.0))
    (point,) = curve(outcomes[:1] * 2 + [replace(outcomes[1], run="seed=2")], tmp_path)
    assert point == (400.0, 1000 / 3, 200.0, 400.0)
    assert curve([], tmp_path) == ()
    (tmp_path / "seed=1" / "metrics.csv").write_text("env_steps,eval_mean\n100,\n")
    assert curve(outcomes, tmp_path) == ()
    failed = [replace(o, status="failed") for o in outcomes]
    found = summarise([*failed, replace(outcomes[0], env_steps=None)], None)
    assert (found.runs, found.done, found.steps, found.iqm, found.curve) == (3, 1, 0, None, ())
    assert summarise(failed, tmp_path).steps is None
