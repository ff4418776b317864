"""A plan with several lanes computes the same, wherever its lanes run and whatever the timing."""

import functools
import math
import random
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from pearl import load
from pearl.errors import SpecError
from pearl.runtime.lanes.lane_runner import LaneRunner
from pearl.runtime.protocol import run_context
from pearl.training.trainer import Trainer
from tests.lanes import SECONDS, cut, differing, planned, replay_spec, spread, told, trained
from tests.processes import workers

SLACK = {"policy_lag": 2, "prefetch": 1, "insertion_lag": 1}
CASES = {
    "dqn": ("dqn", {}, {}),
    "dqn, prioritised": (
        "dqn",
        {"priority_staleness": 2},
        {"replay": {"capacity": 1000, "kind": "prioritised", "fanout": 8}},
    ),
    "ddpg": ("ddpg", {}, {}),
    "td3": ("td3", {}, {}),
    "sac": ("sac", {}, {}),
}


@functools.cache
def slack_plan(case):
    name, limits, options = CASES[case]
    return planned(replay_spec(name, {**SLACK, **limits}, **options))


@functools.cache
def alone(case):
    """The run of `slack_plan` in one thread."""
    return trained(*slack_plan(case), "one")


def jitter(monkeypatch, seconds):
    monkeypatch.setattr(
        run_context, "RunContext", functools.partial(run_context.RunContext, jitter_s=seconds)
    )


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", CASES)
def test_threads_with_random_sleeps_compute_what_one_thread_computes(case, monkeypatch):
    system, plan = slack_plan(case)
    assert len([k for k in plan.lanes if k.order]) > 1
    assert sum(c.slack for c in plan.edges) > 0
    jitter(monkeypatch, 0.0003)
    assert differing(alone(case), trained(system, plan, "threads")) == []


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", ["dqn, prioritised", "sac"])
def test_processes_with_random_sleeps_compute_what_one_thread_computes(case, monkeypatch):
    system, plan = slack_plan(case)
    jitter(monkeypatch, 0.0003)
    assert differing(alone(case), trained(system, plan, "processes")) == []


@functools.cache
def sequential(case):
    """The plan without slack on one lane, and its run: the sequential program."""
    name, _, options = CASES[case]
    spec = replay_spec(name, **options)
    spec["limits"]["max_lanes"] = 1
    system, plan = planned(spec)
    trainer = trained(system, plan, "one")
    assert trainer.protocol.is_single_lane
    return system, plan, trainer


@pytest.mark.parametrize("case", CASES)
def test_without_slack_several_lanes_compute_what_the_sequential_program_computes(case):
    system, plan, single = sequential(case)
    tasks = [t.task for t in plan.tasks]
    r = random.Random(7)
    for lanes in (2, 3, len(tasks)):
        order = r.sample(tasks, len(tasks))
        where = {t: i % lanes for i, t in enumerate(order)}
        several = trained(system, spread(plan, where), "threads")
        assert len(several.protocol.lanes) == lanes
        assert differing(single, several) == []


@pytest.mark.parametrize("case", CASES)
def test_slack_changes_what_is_computed(case):
    assert differing(alone(case), sequential(case)[2]) != []


ROLLOUTS = {
    "ppo": {"rollout_steps": 16, "minibatches": 2, "epochs": 2},
    "a2c": {"rollout_steps": 8},
}


def without_replay(name):
    """A plan for one lane of an algorithm without a replay."""
    spec = replay_spec("dqn")
    options = {"name": name, "env": "CartPole-v1", "num_envs": 4, **ROLLOUTS.get(name, {})}
    if name not in ROLLOUTS:
        options |= {"env": "FrozenLake-v1"}
    spec |= {"algorithm": options, "limits": {"max_lanes": 1}}
    return planned(spec, variants=("native", "gymnasium"))


@pytest.mark.parametrize("name", ["ppo", "a2c", "q_learning", "sarsa"])
def test_algorithms_without_a_replay_compute_the_same_on_several_lanes(name):
    system, plan = without_replay(name)
    single = trained(system, plan, "one")
    tasks = [t.task for t in plan.tasks]
    for lanes in (2, len(tasks)):
        where = {t: i % lanes for i, t in enumerate(random.Random(3).sample(tasks, len(tasks)))}
        several = trained(system, spread(plan, where), "threads")
        assert not several.protocol.is_single_lane
        assert differing(single, several) == []


def groups_plan(variant):
    """A plan with four groups of environments, which are stepped by a variant."""
    limits = {"env_groups": 4, "policy_lag": 3}
    system, plan = planned(replay_spec("dqn", limits, n_step=3), variants=("native", variant))
    if variant == "gymnasium":
        tasks = [replace(t, variant=variant) if t.task == "step" else t for t in plan.tasks]
        plan = replace(plan, tasks=tuple(tasks))
    return system, plan


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("variant", "hosting"),
    [("native", "threads"), ("gymnasium", "threads"), ("gymnasium", "processes")],
)
def test_groups_of_environments_compute_the_same_everywhere(variant, hosting, monkeypatch):
    system, plan = groups_plan(variant)
    one = trained(system, plan, "one")
    assert one.protocol.groups == {"act": 4, "step": 4}
    first = {one.session.arrays[f"env.obs{at}"][0, 0] for at in ("", "@1", "@2", "@3")}
    assert len(first) == 4
    jitter(monkeypatch, 0.0002)
    assert differing(one, trained(system, plan, hosting)) == []


def test_a_row_finds_its_environments_next_one_in_whatever_group_it_is():
    limits = {"env_groups": 4, "max_lanes": 1}
    system, plan = planned(replay_spec("dqn", limits, n_step=3))
    a = trained(system, plan, "one").session.arrays
    replay = {n: a[f"replay.{n}"] for n in ("obs", "next_obs", "terminated", "truncated")}
    head, filled = (int(v) for v in a["replay.cursor"])
    followed = 0
    for row in range(filled - 8):
        at = (head - filled + row) % len(replay["obs"])
        after = (at + 8) % len(replay["obs"])
        if not replay["terminated"][at] and not replay["truncated"][at]:
            assert (replay["next_obs"][at] == replay["obs"][after]).all()
            followed += 1
    assert followed > 500


def test_returns_over_several_steps_end_at_the_newest_row_of_each_group():
    """Rows hold their own number as reward; the cursor stands amid a round of four groups of two,
    so that of two neighbouring rows one may be followed and the other may not."""
    from pearl_devices import buffers, kernel
    from pearl_devices.primitives.replay.ring import bind_sample

    sizes = {"envs": 8, "obs": 1, "act": 0, "capacity": 32, "prioritised": 0, "fanout": 8}
    draw = kernel("replay_sample", {**sizes, "batch": 400, "steps": 1, "n_step": 3})
    a = buffers.allocate([draw], {})
    a["replay.reward"][:] = range(32)
    a["hyper.discount"][:] = 1.0
    for stored in (20, 32 + 12):
        a["replay.cursor"][:] = stored % 32, min(stored, 32)
        bind_sample(draw, a)()
        held = range(max(0, stored - 32), stored)
        for index, found in zip(a["batch.index"][0], a["batch.reward"][0], strict=True):
            row = next(r for r in held if r % 32 == index)
            assert found == sum(r % 32 for r in (row, row + 8, row + 16) if r < stored)


def test_lanes_of_one_thread_that_wait_for_each_other_are_named(monkeypatch):
    monkeypatch.setattr(LaneRunner, "try_advance", lambda *given, **more: False)
    run = trained(*slack_plan("dqn"), "one").run
    assert run.status == "failed"
    assert re.search(r"lanes wait for each other: .*cpu\.\d waits for", run.message)


def test_slack_that_cannot_be_run_is_said():
    system, plan, _ = sequential("dqn")
    edges = [replace(e, slack=1) if (e.src, e.dst) == ("act", "step") else e for e in plan.edges]
    with pytest.raises(SpecError, match="act → step would be empty firings of step"):
        Trainer(system, replace(plan, edges=tuple(edges)))


def test_groups_must_be_equal_and_need_a_replay():
    with pytest.raises(SpecError, match="a divisor of num_envs"):
        load(replay_spec("dqn", {"env_groups": 3}))
    spec = replay_spec("dqn", {"env_groups": 2})
    spec["algorithm"] = {"name": "ppo", "env": "CartPole-v1"}
    with pytest.raises(SpecError, match="acts in all environments at once"):
        load(spec)


@functools.cache
def replicas_plan():
    limits = {
        "policy_lag": 2,
        "prefetch": 1,
        "priority_staleness": 3,
        "max_lanes": 5,
        "replicas": {"step": 2, "act": 2},
    }
    replay = {"capacity": 1000, "kind": "prioritised", "fanout": 8}
    system, plan = planned(replay_spec("dqn", limits, replay=replay), cores=5)
    assert plan.task("step").replicas == 2
    return system, plan


def test_copies_of_actors_compute_the_same_everywhere_and_have_rows_of_their_own(monkeypatch):
    system, plan = replicas_plan()
    one = trained(system, plan, "one")
    jitter(monkeypatch, 0.0002)
    several = trained(system, plan, "threads")
    assert differing(one, several) == []
    rows = {t.task: t for t in several.run.tasks}
    assert rows["step#1"].measured_s > 0
    assert differing(one, trained(system, plan, "processes")) == []


@pytest.mark.parametrize("hosting", ["one", "threads"])
def test_the_lag_that_is_recorded_is_the_plans(hosting):
    system, plan = slack_plan("dqn, prioritised")
    slack = {(c.src, c.dst): c.slack for c in plan.edges}
    lags = trained(system, plan, hosting).run.lags
    late = slack["sample", "learn"] + slack["learn", "priorities"]
    assert late > 0
    assert max(lags["priority_staleness"], key=lags["priority_staleness"].get) == str(late)
    system, plan = planned(replay_spec("dqn", {"policy_lag": 2}))
    asked = {(c.src, c.dst): c.slack for c in plan.edges}["sync", "act"]
    lags = trained(system, plan, hosting).run.lags["policy_lag"]
    assert asked > 0
    assert max(lags, key=lags.get) == str(asked)
    assert max(map(int, lags)) == asked


def test_pauses_for_evaluations_and_checkpoints_change_no_bits(tmp_path):
    system, plan = slack_plan("dqn, prioritised")
    often = told(system, evaluate_every=300, checkpoint_every=200, evaluate_episodes=1)
    paused = trained(often, plan, "threads", out=tmp_path)
    assert differing(alone("dqn, prioritised"), paused) == []


@pytest.mark.parametrize("hosting", ["one", "threads", "processes"])
def test_ctrl_c_leaves_a_checkpoint_and_no_process_and_the_run_goes_on_bit_for_bit(
    hosting, tmp_path
):
    system, plan = slack_plan("dqn, prioritised")
    system = told(system, lanes=hosting)
    run = cut(Trainer(system, plan, seed=3), 800, steps=2000, out=tmp_path)
    assert run.env_steps < 2000
    assert not workers()
    resumed = Trainer(system, plan, seed=3)
    assert resumed.train(steps=2000, out=tmp_path, resume=True).status == "done"
    assert differing(alone("dqn, prioritised"), resumed) == []


def watched(monkeypatch, task, watch):
    """From now on every call of a task on the host goes through `watch`, with the arrays of it."""
    from pearl_devices import cpu

    bind = cpu.bind

    def binding(kernel, variant, buffers):
        call = bind(kernel, variant, buffers)
        return functools.partial(watch, call, buffers) if kernel.kind.startswith(task) else call

    monkeypatch.setattr(cpu, "bind", binding)


def test_the_replay_ratio_is_exact_at_the_end_and_within_a_hundredth_on_the_way(monkeypatch):
    """Rows that are stored, and draws, as each draw begins."""
    roomy = replay_spec("dqn", {**SLACK}, replay={"capacity": 8000, "kind": "uniform"})
    system, plan = planned(roomy)
    jitter(monkeypatch, 0.0002)
    seen = []

    def draw(call, arrays):
        seen.append((int(arrays["replay.cursor"][1]), int(arrays["rng.replay_sample"][1])))
        return call()

    watched(monkeypatch, "replay_sample", draw)
    trainer = Trainer(told(system, lanes="threads"), plan, seed=3)
    trainer.train(steps=2400)
    a, per = trainer.session.arrays, trainer.graph.env_steps
    assert a["rng.replay_sample"][1] == a["learner.step"][0] == (2400 - 64) // 4
    assert len(seen) > 100
    slack = (1 + SLACK["prefetch"] + SLACK["insertion_lag"]) * per
    for rows, draws in seen:
        assert abs((rows - 64) / 4 - draws) <= slack / 4
    assert abs((seen[-1][0] - seen[0][0]) / 4 - seen[-1][1]) <= seen[-1][1] / 100


@pytest.mark.parametrize("hosting", ["one", "threads"])
def test_a_paced_plan_keeps_its_pace_on_several_lanes(hosting):
    system, plan = slack_plan("dqn")
    paced = replace(plan, pace_s=0.002)
    begin = time.perf_counter()
    slow = trained(system, paced, hosting, steps=1600)
    assert time.perf_counter() - begin >= 200 * 0.002
    assert differing(slow, trained(system, plan, hosting, steps=1600)) == []


class Later:
    """A firing that is complete some time after its call returned: once five more were issued, or
    all that does not wait for it is long done."""

    def __init__(self, issued, write):
        self.issued, self.number, self.write, self.asked = issued, len(issued), write, 0

    def done(self):
        self.asked += 1
        if len(self.issued) <= self.number + 5 and self.asked < 200:
            return False
        if self.write:
            self.write()
            self.write = None
        return True


@pytest.mark.parametrize("hosting", ["one", "threads"])
def test_a_call_that_is_complete_later_is_waited_for_by_its_readers_alone(hosting, monkeypatch):
    """Eight environments in groups of one: while one waits for its action, others step."""
    limits = {"env_groups": 8, "policy_lag": 7, "max_lanes": 1}
    system, plan = planned(
        replay_spec("dqn", limits),
        seconds={**SECONDS, "act": 8 * SECONDS["step"]},
        occupied={"act": 1e-6},
    )
    assert plan.task("act").occupancy_s < plan.task("act").seconds
    assert "act" in Trainer(system, plan).protocol.asynchronous
    at_once = trained(system, plan, "one", steps=240)
    issued, others = [], []

    def issue(call, _):
        others.append(sum(each.write is not None for each in issued[-8:]))
        issued.append(Later(issued, call))
        return issued[-1]

    watched(monkeypatch, "inference", issue)
    later = trained(system, plan, hosting, steps=240)
    assert len(others) == 240
    assert np.median(others) >= 4
    assert differing(at_once, later) == []


def uneven(plan, seed):
    """The plan with random shares of the environments and, of every data channel, a random capacity
    of at least its own: the copies of a task then differ, as they do in plans of the solver."""
    r = random.Random(seed)
    first = r.randint(1, 7)

    def roomier(channel):
        if channel.capacity is None:
            return channel
        more = r.choice((0, 0, 1, 3, 7)) * math.gcd(channel.production, channel.consumption)
        return replace(channel, capacity=channel.capacity + more)

    shared = replace(
        plan,
        tasks=tuple(replace(t, shares=(first, 8 - first)) if t.shares else t for t in plan.tasks),
    )
    return shared, replace(shared, edges=tuple(roomier(c) for c in plan.edges))


@pytest.mark.parametrize("seed", range(4))
def test_copies_with_uneven_capacities_compute_what_even_ones_compute(seed):
    system, plan = replicas_plan()
    shared, changed = uneven(plan, seed)
    even = trained(system, shared, "one", steps=400)
    for hosting in ("one", "threads"):
        assert differing(even, trained(system, changed, hosting, steps=400)) == []
