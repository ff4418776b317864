"""What a run goes on with: its steps, the schedules that follow them, its plan, seed and files."""

import csv
import logging
import os

import numpy as np
import pytest
import yaml

import pearl
from pearl import run_folder
from pearl.cli import app
from pearl.errors import SpecError
from pearl.planner import planner
from pearl.training.checkpoints import checkpoint
from tests.lanes import cut
from tests.training.test_trainer import DDPG, SMALL, arrays, assert_equal

FILE = "checkpoint.safetensors"
PPO = {"algorithm": {"name": "ppo", "env": "CartPole-v1", "num_envs": 4, "rollout_steps": 8,
                     "hidden": [8], "epochs": 2, "minibatches": 2, "anneal": True},
       "platform": "host",
       "train": {"steps": 320, "evaluate_every": 0, "final_episodes": 0,
                 "checkpoint_every": 96}}  # fmt: skip
A2C = {**PPO, "algorithm": {**PPO["algorithm"], "name": "a2c"}}
A2C["algorithm"] = {k: v for k, v in A2C["algorithm"].items() if k not in ("epochs", "minibatches")}
SCHEDULED = pytest.mark.parametrize("spec", [PPO, A2C, SMALL], ids=["ppo", "a2c", "dqn"])


def with_steps(spec, steps):
    return pearl.load(spec, set={"train.steps": steps})


@pytest.mark.sweep(2)
@SCHEDULED
def test_schedules_follow_the_steps_of_the_run_and_not_those_of_the_spec(spec):
    steps = spec["train"]["steps"]
    asked, meant = pearl.compile(spec), pearl.compile(with_steps(spec, 3 * steps))
    asked.train(steps=3 * steps)
    meant.train()
    assert_equal(arrays(asked), arrays(meant))
    asked.train(steps=steps // 2)
    meant = pearl.compile(with_steps(spec, steps // 2))
    meant.train()
    assert_equal(arrays(asked), arrays(meant))


@pytest.mark.sweep(4)
@SCHEDULED
@pytest.mark.parametrize("how", ["steps", "spec", "the spec's own"])
def test_a_finished_run_is_extended_and_says_so(spec, how, tmp_path, caplog):
    plan, steps = pearl.plan(pearl.load(spec)), spec["train"]["steps"]
    first = pearl.compile(spec, plan=plan)
    begun = steps // 2 if how == "the spec's own" else steps
    assert first.train(steps=begun, out=tmp_path).status == "done"
    assert checkpoint.load(tmp_path / FILE).about["progress"]["total_steps"] == begun
    before = {name: a.copy() for name, a in arrays(first).items()}
    ends = steps if how == "the spec's own" else 2 * steps
    given = with_steps(spec, ends) if how == "spec" else spec
    second = pearl.compile(given, plan=plan)
    run = second.train(out=tmp_path, resume=True, steps=ends if how == "steps" else None)
    assert (run.status, run.env_steps) == ("done", ends)
    follow = "replay.beta" if spec is SMALL else "hyper.anneal"
    said = f"is now to end at {ends} env steps, no longer at {begun}; changed accordingly: {follow}"
    assert said in run.events[0]
    assert said in caplog.text
    whole = pearl.compile(with_steps(spec, ends), plan=plan)
    np.testing.assert_array_equal(second.session.arrays[follow], whole.session.arrays[follow])
    for name in ("learner.q",) if spec is SMALL else ("learner.actor", "learner.critic"):
        assert not np.array_equal(second.session.arrays[name], before[name])
    assert checkpoint.load(tmp_path / FILE).about["progress"]["total_steps"] == ends


@SCHEDULED
def test_a_longer_run_that_was_cut_goes_on_to_its_own_end_bit_for_bit(spec, tmp_path, caplog):
    plan, steps = pearl.plan(pearl.load(spec)), 2 * spec["train"]["steps"]
    whole, half, again = (pearl.compile(spec, plan=plan) for _ in range(3))
    whole.train(steps=steps)
    cut(half, steps // 3, steps=steps, out=tmp_path)
    run = again.train(out=tmp_path, resume=True)
    assert (run.status, run.env_steps, run.events) == ("done", steps, ())
    assert_equal(arrays(whole), arrays(again))
    assert not caplog.records


def test_keys_of_train_may_change_where_a_run_goes_on(tmp_path):
    plan = pearl.plan(pearl.load(DDPG))
    pearl.compile(DDPG, plan=plan).train(steps=200, out=tmp_path)
    changed = {"train.steps": 240, "train.evaluate_every": 80, "train.evaluate_episodes": 2,
               "train.final_episodes": 3, "train.checkpoint_every": 40, "train.lanes": "threads",
               "train.env_time_limit": "5 s"}  # fmt: skip
    other = pearl.compile(pearl.load(DDPG, set=changed), plan=plan)
    run = other.train(out=tmp_path, resume=True)
    assert (run.env_steps, len(run.returns["eval_returns"])) == (240, 3)


@pytest.mark.parametrize("way", ["train", "compile"])
def test_another_seed_is_refused_where_a_run_goes_on(way, tmp_path):
    plan = pearl.plan(pearl.load(DDPG))
    pearl.compile(DDPG, plan=plan, seed=3).train(steps=40, out=tmp_path)
    early, late = ({"seed": 9}, {}) if way == "compile" else ({}, {"seed": 9})
    with pytest.raises(SpecError, match="began with seed 3, and seed 9 was given"):
        pearl.compile(DDPG, plan=plan, **early).train(out=tmp_path, resume=True, **late)
    assert pearl.compile(DDPG, plan=plan).train(out=tmp_path, resume=True).status == "done"
    again = pearl.compile(DDPG, plan=plan, seed=3)
    assert again.train(out=tmp_path, resume=True, seed=3).status == "done"


TORCH = {"limits.variants": {"learn": ["torch"], "act": ["torch"]}}


def test_a_run_goes_on_with_the_plan_in_its_checkpoint_unless_one_is_given(tmp_path, monkeypatch):
    torch = pearl.plan(pearl.load(DDPG, set=TORCH))
    native = pearl.plan(pearl.load(DDPG))
    pearl.compile(DDPG, plan=torch).train(steps=200, out=tmp_path)
    monkeypatch.setattr("pearl.planner.plan_cache.plan_graph", lambda problem: native)
    again = pearl.compile(DDPG)  # which makes another plan, as after an upgrade
    assert again.plan == native
    run = again.train(steps=240, out=tmp_path, resume=True)
    assert run.plan.task("learn").variant == again.plan.task("learn").variant == "torch"
    given = pearl.compile(DDPG, plan=torch.to_json())
    assert given.train(steps=280, out=tmp_path, resume=True).plan == torch


def test_a_plan_that_a_run_cannot_go_on_with_is_refused_with_the_way_out(tmp_path, monkeypatch):
    torch, native = pearl.plan(pearl.load(DDPG, set=TORCH)), pearl.plan(pearl.load(DDPG))
    pearl.compile(DDPG, plan=torch).train(steps=200, out=tmp_path)
    with pytest.raises(SpecError, match="plan of the checkpoint differs from the given one; leave"):
        pearl.compile(DDPG, plan=native).train(out=tmp_path, resume=True)
    again = pearl.compile(DDPG)

    def gone(whole, torn, system):
        raise SpecError("plan: learn runs as 'torch' on cpu, which offers nothing for it")

    monkeypatch.setattr("pearl.training.compiled.check_stated_plan", gone)
    with pytest.raises(SpecError) as error:
        again.train(out=tmp_path, resume=True)
    first, second = error.value.problems
    assert first.endswith(
        "checkpoint.safetensors: plan: learn runs as 'torch' on cpu, which offers nothing for it"
    )
    assert second.endswith("the run cannot continue here with its plan; give another one (--plan)")


def test_the_command_plans_nothing_where_a_run_goes_on(tmp_path, monkeypatch, capsys):
    spec, out = tmp_path / "spec.yaml", tmp_path / "run"
    spec.write_text(yaml.safe_dump(DDPG))
    pearl.compile(spec).train(steps=200, out=out)

    def never(*_, **__):
        raise AssertionError("a plan was made")

    monkeypatch.setattr("pearl.planner.plan_cache.plan_graph", never)
    monkeypatch.setattr(planner, "plan", never)
    command = ["train", str(spec), "--out", str(out), "--resume"]
    assert status([*command, "--steps", "400", "--seed", "9"]) == 2
    assert "began with seed 0, and seed 9 was given" in capsys.readouterr().err
    assert status([*command, "--set", "algorithm.num_envs=4"]) == 2
    assert "algorithm.num_envs was 2 and is now 4" in capsys.readouterr().err
    assert status([*command, "--steps", "400"]) == 0
    assert "no longer at 200" in capsys.readouterr().err


def status(arguments):
    with pytest.raises(SystemExit) as ended:
        app(arguments)
    return ended.value.code


def test_where_there_is_nothing_to_go_on_from_the_run_begins_and_says_so(tmp_path, caplog):
    plan = pearl.plan(pearl.load(DDPG))
    whole, begun = pearl.compile(DDPG, plan=plan), pearl.compile(DDPG, plan=plan)
    whole.train()
    folder = tmp_path / "run"
    folder.mkdir()
    plan.save(folder / "plan.json")  # what a run killed before its first checkpoint leaves
    (folder / "metrics.csv").write_text("env_steps,updates,wall_s\n8,1,0.1\n16,2,0.2\n")
    run = begun.train(out=folder, resume=True)
    assert run.status == "done"
    said = f"there is no checkpoint in {folder}: the run starts from the beginning"
    assert run.events == (said,)
    assert said in caplog.text
    assert_equal(arrays(whole), arrays(begun))
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert pearl.compile(DDPG, plan=plan).train(out=tmp_path / "new", resume=True).events


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [*csv.reader(file)]


def test_metrics_that_cannot_be_replaced_are_left_as_they_are(tmp_path, monkeypatch):
    plan = pearl.plan(pearl.load(DDPG))
    pearl.compile(DDPG, plan=plan).train(steps=200, out=tmp_path)
    first = rows(tmp_path)

    write = run_folder.write

    def full(folder, name, data):
        if name == "metrics.csv":
            raise OSError(28, os.strerror(28))
        write(folder, name, data)

    monkeypatch.setattr(run_folder, "write", full)
    run = pearl.compile(DDPG, plan=plan).train(steps=240, out=tmp_path, resume=True)
    assert "metrics.csv gets no new rows: No space left on device" in run.events
    assert rows(tmp_path) == first
