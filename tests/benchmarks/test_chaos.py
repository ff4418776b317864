"""The benchmark of killed runs, on a run of a second: what it kills, and what it notices."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import chaos
from pearl.training.trainer import CHECKPOINT
from pearl_devices.system import host_system

CASE = chaos.Case("dqn", "one")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def found(work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chaos.STEPS, "dqn", 4000)
        patch.setattr(host_system, "usable_cpus", host_system.usable_cpus)
        yield chaos.chaos((CASE,), 2, 0, work)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(found, capsys):
    kills = [kill for seen in found for kill in seen.kills]  # on a busy host of several runs
    assert not any(seen.wrong or seen.left for seen in found)
    assert len(kills) >= 2
    assert {who for _, who in kills} == {"main"}
    assert chaos.shown(found, [], None, {}) == 0
    assert (
        f"bar: runs of {len(found)} with {len(kills)} kills not as promised | 0"
        in capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learner.q", "replay.obs", "rng.env_step"])
def test_another_number_in_a_checkpoint_is_noticed(found, work, name, tmp_path):
    whole = work / CASE.name.replace(" ", "_") / "whole"
    other = shutil.copytree(whole, tmp_path / "other")
    seen = chaos.Seen(CASE.name)
    chaos.compare(CASE, whole, other, seen)
    assert not seen.wrong
    arrays = load_file(other / CHECKPOINT)
    flat = arrays[name].reshape(-1)
    flat[-1] = flat[-1] + 1
    save_file(arrays, other / CHECKPOINT)
    chaos.compare(CASE, whole, other, seen)
    assert seen.wrong == [f"{name} differs"]
    assert chaos.shown([seen], [], None, {}) == 1


def test_every_algorithm_and_hosting_is_a_case():
    from pearl.algorithms import ALGORITHMS

    assert {c.algorithm for c in chaos.CASES} == set(ALGORITHMS)
    assert {(c.lanes, c.any_order) for c in chaos.CASES} == {
        ("one", False), *((lanes, order) for lanes in ("threads", "processes") for order in (0, 1)),
    }  # fmt: skip
    assert set(np.unique([c.steps for c in chaos.CASES])) == set(chaos.STEPS.values())
