"""Actors of uneven speed in any order: in threads and in processes, with environments of all kinds,
no row is older than the bound, the replay ratio is exact, and what goes wrong is named."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pearl import load
from pearl.errors import SpecError
from pearl.planner import planner
from pearl.runtime.lanes.async_learner import AsyncLearner
from pearl.training import loop
from pearl.training.checkpoints import checkpoint
from pearl.training.trainer import CHECKPOINT, Trainer, compile
from pearl_devices.base import UnsupportedError
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.classic import cartpole_move
from tests import faulty_envs
from tests.lanes import cut, replay_spec, told, untimed
from tests.processes import handles, left, until, workers
from tests.runtime.test_faults import WALK, killing

HOSTS = ("threads", "processes")
COPIES = {"one": 4, "threads": 4, "processes": 2}
UNEVEN = "tests.uneven_envs:Uneven"
DYING = "tests.uneven_envs:Dying"


def any_order_system(lag, lanes="threads", train=None, variant="native", **options):
    """Copies of the actors, and a core for each and for the lane that learns."""
    copies = COPIES[lanes]
    limits = {
        "max_lanes": copies + 1,
        "replicas": {"act": copies, "step": copies},
        "any_order": True,
        "policy_lag": lag,
        "variants": {"step": [variant]},
    }
    spec = replay_spec("dqn", limits, **{"replay_ratio": "1/8"} | options)
    spec["train"] |= train or {}
    system = load(spec)
    host = replace(system.platform.devices[0], width=copies + 1, max_lanes=copies + 1)
    system = replace(system, platform=replace(system.platform, devices=(host,)))
    return told(system, lanes=lanes)


def outside_system(lag, lanes, env, args=None, num_envs=4, **train):
    """The same with an environment outside the arrays."""
    given = {"env": env, "num_envs": num_envs, "env_args": args or {}}
    return any_order_system(lag, lanes, train, "gymnasium", **given)


def trainer_of(system):
    plan = planner.plan(untimed(system))
    faulty_envs.BORN[0] = 0
    for name in ("armed", "claim"):
        if system.algorithm.env_args.get(name):
            Path(system.algorithm.env_args[name]).touch()
    return Trainer(system, plan, seed=3)


def steps_of(trainer):
    rings = [n for n in trainer.session.arrays if n.startswith("rng.env_step#")]
    return [int(trainer.session.arrays[n][1]) for n in rings]


def uneven(monkeypatch, lag):
    """Copy 0 of step waits, twice amid the run, until the others have come to the bound.

    Returns: of each wait, the most steps that another copy was granted since that of copy 0.
    """
    from pearl_devices import cpu

    bind, grant, bound, learners = cpu.bind, AsyncLearner._grant, [], []
    gained, granted = [], []

    def granting(learner, room):
        learners[:], own = [learner], learner._granted[0]
        grant(learner, room)
        if learner._granted[0] > own:
            granted[:] = learner._granted

    def binding(kernel, variant, buffers):
        call, holds = bind(kernel, variant, buffers), [10, 20]
        if kernel.kind != "env_step":
            return call
        bound.append(call)

        def step():
            (learner,) = learners
            if holds and learner._newest > holds[0]:
                holds.pop(0)
                until(lambda: learner._newest - learner._version[0] >= lag, "the bound")
                more = zip(learner._granted, granted, strict=True)
                gained.append(max(now - before for now, before in more))
            call()

        return step if len(bound) == 1 else call

    monkeypatch.setattr(AsyncLearner, "_grant", granting)
    monkeypatch.setattr(cpu, "bind", binding)
    return gained


def assert_bound_and_ratio(trainer, run, lag, steps, ratio=8):
    copies = len(steps_of(trainer))
    per_take = trainer.graph.task("step").environments // copies
    ages = {int(age): count for age, count in run.lags["policy_lag"].items()}
    assert sum(ages.values()) == steps // per_take
    assert max(ages) <= lag
    assert run.updates == trainer.session.arrays["learner.step"][0] == (steps - 64) // ratio
    assert steps // per_take <= sum(steps_of(trainer)) <= steps // per_take + copies
    return ages


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lanes", "env", "lag", "options", "ratio"),
    [
        ("threads", "native", 0, {"num_envs": 8, "replay_ratio": "1"}, 1),
        ("threads", "native", 1, {"num_envs": 4}, 8),  # two vector steps an update
        ("threads", "native", 3, {"num_envs": 8, "replay_ratio": "1"}, 1),
        ("threads", "native", 6, {}, 8),
        ("threads", UNEVEN, 3, {}, 8),
        ("processes", "native", 3, {}, 8),
        ("processes", UNEVEN, 1, {}, 8),
    ],
)
def test_in_any_order_no_row_is_older_than_the_bound_and_the_ratio_is_exact(
    lanes, env, lag, options, ratio, monkeypatch, tmp_path
):
    """Pairs of hosting, environment, bound and firings of an iteration; not their product."""
    if env == "native":
        system = any_order_system(lag, lanes, **options)
    else:
        args = {"claim": str(tmp_path / "claim"), "slow_s": 0.004}
        system = outside_system(lag, lanes, env, args, num_envs=8)
    held = (lanes, env) == ("threads", "native")
    gained = uneven(monkeypatch, lag) if held else []
    trainer = trainer_of(system)
    assert "not reproducible" in " ".join(str(trainer.report()).split())
    run = trainer.train(steps=800)
    ages = assert_bound_and_ratio(trainer, run, lag, 800, ratio)
    if held:
        assert max(ages) == lag
        assert len(gained) == 2
        # Between two syncs three copies make all rows, so one of them makes two at least.
        assert min(gained) >= 2 or lag < 2
        # What evaluation reads is what sync copied last, whichever slot that was.
        read = trainer.session.arrays[trainer.session.latest_array_name("policy.q")]
        np.testing.assert_array_equal(read, trainer.session.arrays["learner.q"])
    assert not workers()


@pytest.mark.parametrize(
    ("versions", "ready", "budget", "chosen"),
    [
        ((4, 4, 4), (0, 1, 2), [3, 6], 0),
        ((4, 4, 4), (), [3, 6], None),
        ((4, 3, 4), (0, 1, 2), [3, 6], 1),  # the oldest
        ((4, 3, 4), (0, 2), [3, 6], 0),
        ((4, 3, 4), (0, 2), [1, 6], None),  # row 1 must be stored next
        ((3, 4, 3), (1, 2), [2, 6], 2),  # rows 0 and 2 must be stored within two
        ((3, 4, 3), (1,), [2, 6], None),
        ((3, 4, 3), (1, 2), [3, 6], 2),
    ],
)
def test_rows_whose_deadlines_are_tight_are_stored_first(versions, ready, budget, chosen):
    """Three actors, whose rows may be one copy old, have begun their next step."""
    stepped = [int(i in ready) for i in range(3)]
    learner = AsyncLearner.__new__(AsyncLearner)
    learner.control = SimpleNamespace(read=stepped.__getitem__)
    learner._copies = learner._stepped = range(3)
    learner._bound, learner._newest, learner._version = 1, 4, list(versions)
    learner._granted, learner._stored = [1] * 3, [0] * 3
    assert learner._choose_actor(budget) == chosen


def lanes_here():
    """The threads of lanes, also such as another test's environment blocks."""
    return {t for t in threading.enumerate() if t.name.startswith("cpu.")}


@pytest.mark.parametrize("acted", [1, 10**6])
def test_transitions_acted_with_parameters_that_cannot_be_are_refused(acted, tmp_path):
    system, before = any_order_system(4), lanes_here()
    trainer_of(system).train(steps=800, out=tmp_path)
    stored = checkpoint.load(tmp_path / CHECKPOINT)
    arrays = {name: stored.read(name) for name in stored.places}
    arrays["any_order.acted"][1] = acted
    checkpoint.save(tmp_path / CHECKPOINT, arrays, stored.about)
    with pytest.raises(UnsupportedError, match=f"any_order.acted of actor 1 is {acted}: "):
        trainer_of(system).train(steps=1600, out=tmp_path, resume=True)
    assert lanes_here() <= before


def unfollowed(arrays):
    """How many stored rows whose episode went on have no row that goes on from where they end."""
    rows = int(arrays["replay.cursor"][1])
    obs = {o.tobytes() for o in arrays["replay.obs"][:rows]}
    over = (arrays["replay.terminated"][:rows] | arrays["replay.truncated"][:rows]) & 1 > 0
    ends = arrays["replay.next_obs"][:rows]
    return sum(e.tobytes() not in obs for e, o in zip(ends, over, strict=True) if not o)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lanes", "env"), [("threads", "native"), ("threads", WALK), ("processes", WALK)]
)
def test_a_run_in_any_order_goes_on_and_may_have_more_steps_once_it_is_done(lanes, env, tmp_path):
    """Environments come back amid their episodes; no longer run: native ones in processes."""
    system = any_order_system(4, lanes) if env == "native" else outside_system(4, lanes, env)
    before = lanes_here()
    cut(trainer_of(system), 300, steps=600, out=tmp_path)
    for steps in (600, 960):
        trainer = trainer_of(system)
        assert trainer.train(steps=steps, out=tmp_path, resume=True).status == "done"
        arrays = trainer.session.arrays
        assert arrays["learner.step"][0] == (steps - 64) // 8
        assert int(arrays["replay.cursor"][1]) == steps
        if env == WALK:
            assert unfollowed(arrays) <= 4  # the newest row of each
            assert not (arrays["replay.truncated"] & ANEW).any()
    assert lanes_here() <= before
    assert not workers()


@pytest.mark.parametrize("lanes", HOSTS)
def test_a_failing_environment_of_an_actor_is_named_and_started_anew(lanes, tmp_path):
    args = {"fault": "raise", "armed": str(tmp_path / "armed"), "which": 0}
    system = outside_system(4, lanes, WALK, args, on_env_failure="restart")
    run = trainer_of(system).train(steps=800)
    assert (run.status, run.env_steps, run.restarts, run.lost_transitions) == ("done", 800, 1, 1)
    (event,) = run.events
    assert event.startswith(f"environment '{WALK}', number ")
    assert "RuntimeError: the simulator has diverged" in event


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lanes", "fault", "policy"),
    [
        *(("threads", "block", policy) for policy in ("restart", "stop")),
        ("processes", "hard", "restart"),
        ("processes", "block", "stop"),
    ],
)
def test_an_environment_of_an_actor_that_does_not_answer_is_no_hang(lanes, fault, policy, tmp_path):
    args = {"fault": fault, "armed": str(tmp_path / "armed"), "which": 0, "at": 60}
    options = {"on_env_failure": policy, "env_time_limit": "300 ms", "checkpoint_every": 40}
    trainer = trainer_of(outside_system(4, lanes, WALK, args, **options))
    run = trainer.train(steps=4000, out=tmp_path / "run")
    reachable = lanes != "threads"
    assert run.status == ("done" if policy == "restart" and reachable else "failed")
    told = " ".join([*run.events, run.message or ""])
    assert "has not" in told
    if not reachable:
        assert "(actor " in run.message
        assert f"environment '{WALK}' of step#" in run.message
    assert (tmp_path / "run" / CHECKPOINT).exists()
    assert not workers()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("env", ["native", WALK])
def test_killed_actors_are_started_again_and_no_row_is_torn(env, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    monkeypatch.setattr(loop, "ROUNDS", 2)
    lag, kills = 4, 3
    steps = 400 * kills
    replay = {"capacity": 20_000, "kind": "uniform"}
    if env == "native":
        system = any_order_system(lag, "processes", num_envs=2, replay=replay)
    else:
        system = outside_system(lag, "processes", env, num_envs=2)
    trainer, before = trainer_of(system), handles()
    # What a copy was at is stored by then: it is not killed for the third time at one step.
    kill = killing(kills, 8 * (lag + 2))
    run = trainer.train(steps=steps, progress=kill, out=tmp_path)
    assert (run.status, len(kill.killed), run.restarts) == ("done", kills, kills), run.message
    assert "(actor " in run.events[0]
    assert "ended with signal 9 (killed); the lane was restarted" in run.events[0]
    arrays = trainer.session.arrays
    assert_bound_and_ratio(trainer, run, lag, steps)
    assert run.lost_transitions <= kills
    if env == "native":
        state = arrays["replay.obs"][:steps].astype(np.float64)
        for n in range(steps):
            cartpole_move(state, n, arrays["replay.action"][n])
        np.testing.assert_allclose(state, arrays["replay.next_obs"][:steps], rtol=1e-4, atol=1e-5)
        anew = int((arrays["replay.truncated"][:steps] & ANEW > 0).sum())
        assert anew <= run.lost_transitions
        assert unfollowed(arrays) <= 4 + run.lost_transitions
    assert not workers()
    del trainer, arrays
    assert left(before) == []


def test_an_actor_that_dies_whenever_it_is_started_ends_the_run_by_name(tmp_path):
    system = outside_system(4, "processes", DYING, {"armed": str(tmp_path / "armed")})
    run = trainer_of(system).train(steps=800, out=tmp_path / "run")
    assert run.status == "failed"
    assert "(actor " in run.message
    assert re.search(r"exit status 3 while environment .*, for the 3rd time", run.message)
    assert not workers()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n_step": 3}, "n_step must be 1"),
        ({"num_envs": 6}, "multiple of the copies"),
    ],
)
def test_what_cannot_be_had_in_any_order_is_said(change, text):
    with pytest.raises(SpecError, match=text):
        planner.plan(untimed(any_order_system(4, **change)))


def test_a_plan_with_copies_of_the_actors_can_be_given(tmp_path):
    system = any_order_system(1)
    found = planner.plan(untimed(system))
    found.save(tmp_path / "plan.json")
    assert compile(system, plan=tmp_path / "plan.json").plan == found
