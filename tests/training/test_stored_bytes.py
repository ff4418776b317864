"""Observations that are uint8 are stored as uint8, with the bits of a run that stores float32."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import pearl
from pearl.algorithms import ppo
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Task
from pearl.planning.runs import CHECKPOINT
from pearl.spec import user_code
from pearl.spec.user_code import build_graph
from pearl_devices import backend
from pearl_devices.buffers import specs
from pearl_devices.kernels import kernel
from pearl_devices.kernels.examples import fill_arrays
from pearl_devices.kernels.record import size_bytes
from pearl_devices.primitives.replay import observations
from tests.lanes import differing

PICTURES = "tests.picture_envs:Pictures"
REPLAY = {
    "name": "dqn", "batch_size": 4, "learning_starts": 16, "n_step": 3,
    "replay": {"capacity": 40, "kind": "prioritised"},
}  # fmt: skip
PPO = {"name": "ppo", "rollout_steps": 6, "epochs": 2, "minibatches": 2}
BY_STEP = {
    "name": "a2c",
    "rollout_steps": 6,
    "returns": {"n_step": 2},
    "normalise_advantages": False,
}
TORCH = {task: ["torch"] for task in ("store", "advantages", "learn")}


def trainer(kind, algorithm=REPLAY, *, floats=False, limits=None, **more):
    """A run on such an environment; with `floats`, stored as before."""
    system = pearl.load({
        "algorithm": {
            "env": PICTURES, "env_args": {"kind": kind}, "num_envs": 2, "hidden": [8],
            **algorithm, **more,
        },
        "limits": {"max_lanes": 1, **(limits or {})},
        "train": {"steps": 120, "calibrate_after": False, "evaluate_episodes": 1},
    })  # fmt: skip
    if floats:
        system = replace(system, env=replace(system.env, units=0))
    return pearl.compile(system)


def assert_alike(small, large, *names):
    """The runs end with the same bits, except that the first stores these arrays as uint8."""
    small.train()
    large.train()
    a, b = small.session.arrays, large.session.arrays
    unit = np.float32(1 / small.system.env.units)
    for name in names:
        assert a[name].dtype == np.uint8
        assert b[name].nbytes == 4 * a[name].nbytes
        np.testing.assert_array_equal(a[name] * unit, b[name])
    assert [n for n in differing(small, large) if n not in names] == []
    assert len({int(v) for v in a[names[0]].ravel()}) > 100


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("image", {}),
        ("stack", {"replay": {"capacity": 40, "kind": "uniform"}}),
        ("bytes", {}),
        ("dict", {}),
    ],
)
def test_a_replay_of_bytes_computes_what_one_of_floats_computes(kind, more):
    made = (trainer(kind, floats=floats, **more) for floats in (False, True))
    assert_alike(*made, "replay.obs", "replay.next_obs")


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("kind", "algorithm", "more"),
    [
        ("image", PPO, {}),
        ("bytes", PPO, {"limits": {"variants": TORCH}}),
        ("stack", BY_STEP, {}),
        ("image", BY_STEP, {"limits": {"variants": TORCH}}),
        ("stack", PPO, {"returns": {"n_step": 2}, "frame_stack": 2}),
        ("tuple", PPO, {}),
        ("stack", PPO, {"network": "tests.picture_envs:network"}),
    ],
)
def test_a_rollout_of_bytes_computes_what_one_of_floats_computes(kind, algorithm, more):
    made = (trainer(kind, algorithm, floats=floats, **more) for floats in (False, True))
    assert_alike(*made, "rollout.obs", "rollout.next_obs")


@pytest.mark.parametrize(("algorithm", "array"), [(REPLAY, "replay.obs"), (PPO, "rollout.obs")])
def test_a_run_of_bytes_resumes_and_takes_what_was_stored_as_floats(algorithm, array, tmp_path):
    whole, old = trainer("image", algorithm), trainer("image", algorithm, floats=True)
    whole.train()
    old.train(steps=60, out=tmp_path)
    resumed = trainer("image", algorithm)
    assert resumed.train(steps=120, out=tmp_path, resume=True).status == "done"
    a, b = whole.session.arrays, resumed.session.arrays
    assert a[array].dtype == b[array].dtype == np.uint8
    np.testing.assert_array_equal(a[array], b[array])
    assert (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("algorithm", "limits"), [(REPLAY, {}), (PPO, {}), (PPO, {"variants": TORCH})]
)
def test_numbers_that_are_no_bytes_are_refused(algorithm, limits):
    wrong = {"kind": "image", "wrong": True}
    run = trainer("image", algorithm, env_args=wrong, limits=limits).train()
    assert run.status == "failed"
    assert "uint8" in run.message


def test_the_memory_that_is_asked_for_is_that_of_bytes():
    rows = 40
    wanted = rows * (2 * 100 + 4 + 8 + 2)
    held = build_graph(trainer("stack").system).states["replay"]
    assert 0 < held - wanted < 60 * rows  # the tree of priorities, the cursor
    rows = 2 * 6
    graph = build_graph(trainer("stack", PPO).system)
    wanted = rows * (2 * 100 + 4 + 8 + 2 + 4 + 3 * 4)  # log density; value, advantage, return
    assert graph.states["rollout"] == wanted + 8
    (sent,) = (e.bytes for e in graph.edges if (e.src, e.dst) == ("advantages", "learn"))
    assert sent == rows * (100 + 8 + 4 + 3 * 4)


def test_learners_that_share_a_rollout_of_bytes_compute_the_gradients_of_floats():
    sizes = {
        "envs": 8, "horizon": 8, "obs": 4, "act": 0, "batch": 32, "steps": 2, "epochs": 1,
        "tanh": 1, "actor": (4, 8, 2), "critic": (4, 8, 1), "learners": 2, "learner": 1,
    }  # fmt: skip
    found = []
    for units in ({}, {"units": 255}):
        of = kernel(
            "learner_gradient.ppo", {**sizes, **units}, program="pearl.algorithms.ppo:losses"
        )
        arrays = fill_arrays([of], seed=3)
        seen = np.random.default_rng(4).integers(0, 256, arrays["rollout.obs"].shape)
        arrays["rollout.obs"][:] = seen if units else seen * np.float32(1 / 255)
        arrays["rollout.advantage"][:] = np.random.default_rng(5).normal(0, 1, (8, 8))
        backend("cpu").bind(of, "torch", arrays)()
        found.append(arrays["gradient.1.actor"].copy())
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def test_a_space_of_parts_is_stored_as_bytes_if_all_parts_have_one_unit():
    units = {kind: trainer(kind).system.env.units for kind in ("dict", "tuple", "mixed", "floats")}
    assert units == {"dict": 255, "tuple": 1, "mixed": 0, "floats": 0}


@pytest.mark.parametrize(
    ("name", "dtype"), [("SHADES", "float32"), ("LOOKS", "float32"), ("PAYS", "uint8")]
)
def test_a_kernel_of_the_user_gets_the_floats_that_it_changes_or_takes(name, dtype, monkeypatch):
    def graph(system):
        own = kernel(f"tests.picture_envs:{name}", envs=2, obs=24, horizon=6)
        return inserted(ppo.graph(system), Task("own", own), after="step", before="store")

    system = trainer("image", PPO).system
    monkeypatch.setattr(user_code, "algorithm", lambda name: SimpleNamespace(graph=graph))
    found = build_graph(system)
    stored = specs(found.task("advantages").kernel)
    assert stored["rollout.obs"][1] == stored["rollout.next_obs"][1] == dtype
    held = sum(size_bytes(spec) for name, spec in stored.items() if name.startswith("rollout."))
    assert found.states["rollout"] == held


def test_every_byte_comes_back_and_other_numbers_do_not_pass():
    every, out = np.arange(256, dtype=np.uint8).reshape(4, 64), np.zeros((4, 64), np.uint8)
    for units in (np.float32(1), np.float32(255)):
        seen, back = np.zeros((4, 64), np.float32), np.zeros((4, 64), np.float32)
        observations.unpack(every, np.float32(1 / units), seen)
        observations.pack(seen, units, out)
        np.testing.assert_array_equal(out, every)
        observations.unpack(out, np.float32(1 / units), back)
        np.testing.assert_array_equal(back, seen)
        for wrong in (-1, 256, 0.5, np.nan, np.inf):
            with pytest.raises(ValueError, match="uint8"):
                observations.pack(np.full((1, 64), wrong / units, np.float32), units, out[:1])
