"""A whole sweep in virtual time: what is decided, said and kept, where stages are no processes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import pearl
from pearl.population import population, precompile, run_files, setting_results
from pearl.population.driver import StageEnd, VirtualExecutor
from pearl_devices.system import host_system

SPEC = {
    "algorithm": {"name": "q_learning", "env": "FrozenLake-v1"},
    "platform": "host",
    "limits": {"max_lanes": 1},
    "train": {"steps": 400, "final_episodes": 1},
}
RATE = "algorithm.learning_rate"
METRICS = "env_steps,updates,wall_s,mean_return_20,eval_mean\n100,0,0,0.5,\n"


class Stages(VirtualExecutor):
    """Slots whose stages end after as many seconds as their seed says, and leave files.

    commands: the arguments of each stage, without the folder. seen: runs of the display at each
    wait. cut: ends after which the sweep is interrupted.
    """

    def __init__(self, slots, *, files, interrupted, poll):
        super().__init__(len(slots), lambda stage: 1.0 + stage.seed % 7, self.score)
        self.files, self.poll = files, poll
        self.world.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.world.left += 1

    @staticmethod
    def score(stage):
        return 100.0 * stage.values.get(RATE, 0.0) + stage.seed % 7 + stage.steps / 1000

    def start(self, slot, stage):
        command = self.files.build_command(stage)
        place = f"{self.files.path}/"
        self.world.commands.append(" ".join(command).replace(place, ""))
        folder = self.files.path / stage.run
        folder.mkdir(exist_ok=True)
        for name in ("plan.json", "checkpoint.safetensors"):
            (folder / name).touch()
        (folder / "metrics.csv").write_text(METRICS)
        super().start(slot, stage)

    def wait(self):
        self.poll()
        if self.world.cut == 0:
            return None
        self.world.cut -= 1
        end = super().wait()
        if self.world.deaths.get(end.stage.run, 0):
            self.world.deaths[end.stage.run] -= 1
            return StageEnd(end.slot, end.stage, "died", None, "ended by signal SIGKILL")
        if end.stage.run in self.world.fails:
            return StageEnd(end.slot, end.stage, "failed", None, "ended with exit status 1")
        self.world.steps[end.stage.run] = end.stage.steps, end.score
        return end


class World(SimpleNamespace):
    """What stages do and have done; as the `watch` of a sweep, what the sweep said."""

    def print_event(self, line):
        self.lines.append(line)

    def refresh(self, rows):
        self.seen.append([(r.run, r.status, r.env_steps, r.eval_mean) for r in rows()])

    def load_run(self, folder):
        steps, score = self.steps[folder.name]
        returns = {"eval_mean": score + 0.25, "last_eval_mean": score}
        rates = {"env_steps_per_s": 1234.5, "wall_s": 2.0, "cpu_s": 1.5}
        return SimpleNamespace(returns=returns, env_steps=steps, **rates)


@pytest.fixture
def world(monkeypatch):
    found = World(
        made=[], left=0, commands=[], steps={}, deaths={}, fails=(), cut=99, lines=[],
        seen=[],
    )  # fmt: skip
    monkeypatch.setattr(Stages, "world", found, raising=False)
    monkeypatch.setattr(population, "LocalExecutor", Stages)
    monkeypatch.setattr(host_system, "usable_cpus", lambda: [0, 2])
    monkeypatch.setattr(precompile, "needs_compiling", lambda made: False)
    monkeypatch.setattr(setting_results, "load_run", found.load_run)
    return found


def outcomes(found):
    return [(r.run, r.status, r.env_steps, r.eval_mean, r.restarts, r.message) for r in found.runs]


def history(found):
    return [(e["event"], e["run"], e.get("score"), e["why"]) for e in found.history]


def test_runs_of_a_grid_die_fail_and_end_and_resuming_tries_those_that_failed(world, tmp_path):
    world.deaths, world.fails, world.cut, out = {"seed=1": 2}, ("seed=2",), 4, tmp_path / "sweep"
    found = pearl.sweep(SPEC, seeds=[1, 2, 3, 4], out=out, restarts=1, watch=world)
    assert found.status == "interrupted"
    (schedule, *lines) = world.lines
    assert schedule.startswith("4 runs, 2 at once on 1 of 2 cores each: ")
    assert lines == [
        "seed=1: ended by signal SIGKILL; the run resumes from its checkpoint",
        "seed=2: failed: ended with exit status 1",
        "seed=1: died: ended by signal SIGKILL",
        "seed=3: return 3.65 after 400 env steps, 1,234 env steps/s (3 ended)",
    ]
    assert outcomes(found) == [
        ("seed=1", "died", None, None, 1, "ended by signal SIGKILL"),
        ("seed=2", "failed", None, None, 0, "ended with exit status 1"),
        ("seed=3", "done", 400, 3.65, 0, None),
        ("seed=4", "interrupted", None, None, 0, None),
    ]
    starts = [("start", f"seed={n}") for n in (1, 2, 3, 4)]
    assert [e[:2] for e in history(found)] == [
        *starts[:2], ("restart", "seed=1"), ("end", "seed=2"), starts[2], ("end", "seed=1"),
        starts[3], ("end", "seed=3"),
    ]  # fmt: skip
    arguments = "train specs/as-given.yaml --plan plans/plan-1.json --seed {0} --steps 400 --out"
    assert world.commands[:3] == [
        f"{arguments.format(1)} seed=1",
        f"{arguments.format(2)} seed=2",
        f"{arguments.format(1)} seed=1 --resume",
    ]
    running = [(f"seed={n}", "running", 100, 0.5) for n in (1, 2, 3, 4)]
    died, failed = ("seed=1", "died", None, None), ("seed=2", "failed", None, None)
    assert world.seen[0] == running[:2]
    assert world.seen[2] == [failed, running[0], running[2]]
    assert world.seen[3] == [died, failed, *running[2:]]
    assert (found.packing["slots"], found.packing["cores_per_run"]) == ([[0], [2]], 1)
    (setting,) = found.settings
    assert (setting.runs, setting.done, setting.steps, setting.iqm) == (4, 1, 400, 3.65)
    files = sorted(f.name for f in out.iterdir() if f.is_file())
    assert files == ["sweep.csv", "sweep.html", "sweep.json"]
    assert world.left == 1

    world.fails, world.cut, first = (), 99, json.loads((out / "sweep.json").read_text())
    world.lines.clear()
    again = pearl.sweep(SPEC, seeds=[1, 2, 3, 4], out=out, resume=True, watch=world)
    assert again.wall_s > first["wall_s"] > 0
    assert [line.partition(":")[0] for line in world.lines[1:]] == ["seed=1", "seed=2", "seed=4"]
    ends = [("end", f"seed={n}") for n in (3, 1, 2, 4)]
    assert [e[:2] for e in history(again)] == [*starts, *ends]
    assert [r.status for r in again.runs] == ["done"] * 4


def test_a_failed_run_fails_the_sweep(world, tmp_path):
    world.fails = ("seed=0",)
    found = pearl.sweep(SPEC, out=tmp_path / "a", watch=world)
    assert (found.status, found.seeds, found.out) == ("failed", (0,), str(tmp_path / "a"))


def test_halving_promotes_by_score_and_says_why(world, tmp_path):
    found = pearl.sweep(
        SPEC, over={RATE: [0.1, 0.2]}, asha={"eta": 2, "min_steps": 200}, out=tmp_path, watch=world
    )
    low, high = "learning_rate=0.1,seed=0", "learning_rate=0.2,seed=0"
    assert history(found) == [
        ("start", low, None, "rung 0: starts"),
        ("start", high, None, "rung 0: starts"),
        ("end", low, 10.2, None),
        ("end", high, 20.2, None),
        ("start", high, None, "rung 1: promoted: 1 of 2 at 200 env steps, 20.2"),
        ("end", high, 20.4, None),
    ]
    assert world.lines[1] == f"{low}: to 200 env steps, rung 0: starts"
    assert world.commands[2].endswith(f"--steps 400 --out {high} --resume")
    assert found.options == {"eta": 2, "min_steps": 200}
    assert found.board == ()


def test_a_tournament_branches_from_its_board_and_keeps_the_checkpoints_of_that(
    world, tmp_path, monkeypatch
):
    branches = []

    def branch(parent, folder, system, plan, seed):
        branches.append((parent.name, folder.name, system.algorithm.learning_rate, seed))

    monkeypatch.setattr(run_files.branching, "branch", branch)
    found = pearl.sweep(
        SPEC | {"train": SPEC["train"] | {"seed": 3}},
        over={RATE: [0.1, 0.2]},
        tournament={"rounds": 3, "members": 2, "board": 1},
        out=tmp_path,
        watch=world,
    )
    assert world.lines[0].startswith("6 runs, 2 at once")
    assert [(r.run, r.parent) for r in found.runs[:2]] == [("member-1", None), ("member-2", None)]
    assert [r.seed for r in found.runs[:2]] == [3, 4]
    later = {r.run: r for r in found.runs[2:]}
    assert {r.run for r in later.values()} == {
        f"member-{n}-round-{m}" for n in (1, 2) for m in (2, 3)
    }
    assert all(r.steps == 134 + found.runs[[x.run for x in found.runs].index(r.parent)].steps
               for r in later.values())  # fmt: skip
    assert sorted(branches) == sorted(
        (r.parent, r.run, r.values[RATE], r.seed) for r in later.values()
    )
    (first,) = found.board
    best = max(found.runs, key=lambda r: r.last_eval_mean)
    assert first == {
        "run": best.run, "score": best.last_eval_mean, "steps": best.steps, "values": best.values,
    }  # fmt: skip
    kept = {p.parent.name for p in tmp_path.glob("*/checkpoint.safetensors")}
    assert kept == {best.run}
    assert json.loads((tmp_path / "sweep.json").read_text())["plans"] == found.plans
    assert set(found.plans.values()) == {"plans/plan-1.json"}


def test_a_folder_of_a_sweep_is_a_folder(tmp_path):
    assert run_files.load_sweep_file(tmp_path / "none", resume=True) is None
    assert run_files.load_sweep_file(tmp_path, resume=False) is None
    (tmp_path / "file").touch()
    with pytest.raises(pearl.errors.SpecError, match="file: is a file, not a folder"):
        run_files.load_sweep_file(tmp_path / "file", resume=True)


def test_no_folder_is_needed_for_a_plan_and_one_is_for_a_run():
    with pytest.raises(pearl.errors.SpecError, match="`out`, a folder for the runs, is needed"):
        pearl.sweep(SPEC)
    for restarts in (-1, True, 1.0):
        with pytest.raises(pearl.errors.SpecError, match="restarts is"):
            pearl.sweep(SPEC, out=Path("never"), restarts=restarts)
