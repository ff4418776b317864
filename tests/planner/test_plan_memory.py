"""A plan is remembered for exactly the problem that it solves, and checked when it is read."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import pearl
from pearl.planner import plan_cache, planner
from pearl_estimators.host import calibrator

SPEC = {
    "algorithm": {"name": "ddpg", "env": "Pendulum-v1", "batch_size": 64, "num_envs": 2},
    "platform": "cpu_gpu_fpga",
    "train": {"steps": 400},
}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty user's cache, in which plans are kept."""
    monkeypatch.setattr(plan_cache, "KEPT", 64)
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def made(monkeypatch):
    """The systems that were planned, a line each."""
    systems, plain = [], planner.plan_graph
    monkeypatch.setattr(
        plan_cache, "plan_graph", lambda problem: systems.append(problem.system) or plain(problem)
    )
    return systems


def compiled(changes=None):
    return pearl.compile(SPEC, set=changes or {}, emulate=True)


def kept(folder):
    return sorted((folder / "plans").glob("*.json"))


def test_a_spec_that_is_compiled_again_is_not_planned_again(folder, made):
    first, second = compiled().plan, compiled({"train.steps": 800, "train.seed": 3}).plan
    assert (len(made), len(kept(folder))) == (1, 1)
    assert plan_cache.NOTE not in first.note
    assert second.note.endswith(plan_cache.NOTE)
    assert first.spec_sha256 != second.spec_sha256 == pearl.load(SPEC, set={
        "train.steps": 800, "train.seed": 3}).sha256  # fmt: skip
    same = {"note": "", "spec_sha256": ""}
    assert replace(first, **same) == replace(second, **same)
    assert second.problem.costs.modes == first.problem.costs.modes
    assert second.problem.limits == first.problem.limits
    assert str(pearl.explain(second, time_limit_s=2.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.batch_size": 128}, {"algorithm.hidden": [32, 64]}, {"platform": "cpu_gpu"},
        {"objective": "power_efficiency"}, {"limits.max_lanes": 1}, {"limits.policy_lag": 1},
    ],
    ids=str,
)  # fmt: skip
def test_another_problem_has_another_plan(folder, made, changes):
    system = pearl.load(SPEC)
    problem = planner.build_problem(system)
    plan_cache.cache_plan(problem, planner.plan_graph(problem))
    other = pearl.load(SPEC, set=changes)
    assert plan_cache.load_cached_plan(planner.build_problem(system)) is not None
    assert plan_cache.load_cached_plan(planner.build_problem(other)) is None


def test_another_calibration_or_version_or_source_has_another_plan(folder, made, monkeypatch):
    compiled()
    system = pearl.load(SPEC)
    problem = planner.build_problem(system)

    def known():
        return plan_cache.load_cached_plan(problem) is not None

    assert known()
    calibration = folder / "calibration-0.json"
    calibration.write_text("{}")
    assert not known()
    plan_cache.cache_plan(problem, planner.plan_graph(problem))
    assert known()
    calibration.write_text("[]")  # of the same name, as long, with another content
    assert not known()
    calibration.unlink()
    assert known()
    for name, other in (("digest_sources", lambda: "others"), ("versions", lambda: {"numba": "0"})):
        with monkeypatch.context() as patch:
            patch.setattr(plan_cache, name, other)
            assert not known()
    with monkeypatch.context() as patch:
        patch.setattr(calibrator, "skipped_groups", lambda: {"dqn": "this host is busy"})
        assert not known()
    number = replace(system.platform.devices[0], peak_flops_per_s=1.0)
    platform = replace(system.platform, devices=(number, *system.platform.devices[1:]))
    assert (
        plan_cache.load_cached_plan(replace(problem, system=replace(system, platform=platform)))
        is None
    )
    assert known()


def test_a_file_that_is_damaged_or_altered_is_made_anew(folder, made):
    compiled()
    (file,) = kept(folder)
    whole = file.read_text()
    other, slow = json.loads(whole), json.loads(whole)
    other["digest"] = "0"
    for task in slow["plan"]["tasks"]:
        task["variant"] = "none such"
    for number, text in enumerate((whole[:-40], json.dumps(other), json.dumps(slow), "[]"), 2):
        file.write_text(text)
        assert plan_cache.NOTE not in compiled().plan.note
        assert len(made) == number
        assert json.loads(file.read_text())["digest"] == file.stem
    assert plan_cache.NOTE in compiled().plan.note


def test_plans_that_others_may_write_are_not_read(folder, made):
    compiled()
    (folder / "plans").chmod(0o777)
    compiled()
    assert len(made) == 2


def test_plans_used_longest_ago_are_left_out(folder, made, monkeypatch):
    monkeypatch.setattr(plan_cache, "KEPT", 2)
    for size in (64, 128, 64, 256):
        compiled({"algorithm.batch_size": size})
    assert (len(made), len(kept(folder))) == (3, 2)
    compiled({"algorithm.batch_size": 64})
    assert len(made) == 3


def test_a_warm_start_imports_no_solver(folder, tmp_path):
    """Two runs of the command line: the second has the plan of the first."""
    command = """
import sys
from pearl.cli import main
sys.argv = ["pearl", "train", "dqn_cartpole", "--emulate", "--steps", "8", "--out", sys.argv[1],
            "--set", "platform=cpu_gpu", "--set", "train.final_episodes=1"]
try:
    main()
finally:
    heavy = ("scipy.linalg", "scipy.sparse", "scipy.optimize", "networkx", "torch", "highspy",
             "pearl.solvers.solver", "pearl.planner.energy_front")
    print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    found = []
    for run in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", command, str(tmp_path / run)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(done.stderr.splitlines()[-1])
    assert "pearl.solvers.solver" in found[0]
    assert found[1] == "[]"
