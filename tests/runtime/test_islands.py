"""Lanes of other hosts compute what the lanes of one host compute, whatever happens to them."""

import random
import re
import typing
from dataclasses import replace

import pytest

from pearl.cluster import batching, lane_server, remote_worker
from pearl.cluster.lane_server import LaneServer, RemoteLostError
from pearl.cluster.remote_worker import RemoteWorker
from pearl.training import loop
from pearl.training.trainer import Trainer
from pearl_devices import Link
from tests import faulty_envs, learners
from tests.lanes import cut, differing, planned, replay_spec, spread, told, trained
from tests.runtime.test_any_order import any_order_system, assert_bound_and_ratio, trainer_of
from tests.runtime.test_faults import gym_plan
from tests.runtime.test_protocol import (
    alone,
    groups_plan,
    jitter,
    replicas_plan,
    sequential,
    slack_plan,
    without_replay,
)
from tests.runtime.test_stop_word import Amid, cuts

__all__ = ["cuts"]  # a fixture


def apart(system, plan, together=0):
    """The system and the plan with each lane but that which updates on a host of its own; the first
    `together` of them on one."""
    host = system.platform.devices[0]
    lanes = [k.lane for k in plan.lanes if k.width > 0]
    home = next(k.lane for k in plan.lanes if any(e.task == "learn" for e in k.order))
    host_of = {k: "home" if k == home else f"node{i}" for i, k in enumerate(lanes)}
    host_of |= dict.fromkeys([k for k in lanes if k != home][:together], "several")
    name = {h: host.name if h == "home" else h for h in host_of.values()}
    devices = [replace(host, name=name[h], host=h) for h in dict.fromkeys(host_of.values())]
    devices.sort(key=lambda d: d.host != "home")
    platform = replace(system.platform, devices=tuple(devices), links=_links(host.name, devices))
    moved = replace(
        plan,
        lanes=tuple(replace(k, device=name[host_of[k.lane]]) for k in plan.lanes),
        tasks=tuple(replace(t, device=name[host_of[t.lane]]) for t in plan.tasks),
    )
    return replace(system, platform=platform), moved


def _links(home, devices):
    return tuple(Link(home, d.name, 1e-4, 1e9) for d in devices if d.name != home)


class Here(LaneServer):
    """An outpost in this process, each made noted in `made`."""

    made: typing.ClassVar = []
    dies_at_start = False
    """Whether the next one that takes the place of another is lost as it begins."""

    def __init__(self, island, *, losses=0):
        self.gone, self.losses = False, losses
        Here.made.append(self)

    def start(self, arrays):
        if Here.dies_at_start and self.losses:
            Here.dies_at_start, self.gone = False, True
            raise RemoteLostError("it is gone at once")
        super().start(arrays)

    def push(self, messages):
        if self.gone:
            raise RemoteLostError("it is gone")
        super().push([m.copy() for m in messages])

    def pull(self, timeout_s):
        if self.gone:
            raise RemoteLostError("it is gone")
        return super().pull(min(timeout_s, 0.05))

    def kill(self):
        self.gone = True
        super().kill()


@pytest.fixture(autouse=True)
def here(monkeypatch):
    from pearl.cluster import ray_lane_client

    Here.made, Here.dies_at_start = [], False
    monkeypatch.setattr(ray_lane_client, "RayLaneClient", Here)


def losing(times, steps, chosen=None):
    """A progress listener that loses islands, not before all lanes have gone on since the last."""
    dice, lost, last = random.Random(5), [], [0]

    def lose(progress):
        alive = [p for p in Here.made if not p.gone]
        due = max(steps * (len(lost) + 1), last[0] + steps // 2)
        if len(lost) < times and alive and progress.env_steps > due:
            lost.append(chosen(alive) if chosen else dice.choice(alive))
            lost[-1].gone, last[0] = True, progress.env_steps

    lose.lost = lost
    return lose


@pytest.fixture
def often(monkeypatch):
    """Progress is told of all the time."""
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    monkeypatch.setattr(loop, "ROUNDS", 8)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", ["dqn, prioritised", "sac"])
def test_lanes_of_other_hosts_compute_what_one_thread_computes(case, monkeypatch):
    system, plan = apart(*slack_plan(case))
    jitter(monkeypatch, 0.0003)
    monkeypatch.setattr(remote_worker, "MAX_LOG_BYTES", 20_000)
    pauses, on_pause = [], RemoteWorker.on_pause
    monkeypatch.setattr(RemoteWorker, "on_pause", lambda w: (pauses.append(w), on_pause(w))[1])
    assert differing(alone(case), trained(system, plan, "ray")) == []
    assert len(pauses) > 2 * len(set(pauses))  # whenever the messages for a lost host were too many
    assert len(Here.made) == len([k for k in plan.lanes if k.width > 0]) - 1


def moved(name, *tasks):
    system, plan = without_replay(name)
    return system, spread(plan, {t.task: int(t.task in tasks) for t in plan.tasks})


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("planned", "together"),
    [
        (lambda: moved("ppo", "act", "step"), 0),
        (lambda: moved("a2c", "step"), 0),
        (lambda: moved("q_learning", "act", "step"), 0),
        (lambda: groups_plan("native"), 0),
        (lambda: groups_plan("gymnasium"), 0),
        (replicas_plan, 0),
        (replicas_plan, 2),
    ],
)
def test_other_plans_compute_the_same_over_hosts(planned, together):
    """No replay, groups of environments, copies of actors; no longer run: each algorithm without a
    replay both with its inference on the other host and without."""
    system, plan = planned()
    several = trained(*apart(system, plan, together), "ray")
    assert differing(trained(system, plan, "one"), several) == []


def test_lost_islands_do_their_firings_again_and_nothing_is_lost(often, tmp_path):
    case, lose = "dqn, prioritised", losing(6, 200)
    system, plan = apart(*slack_plan(case))
    often, Here.dies_at_start = told(system, checkpoint_every=504), True
    trainer = trained(often, plan, "ray", progress=lose, out=tmp_path)
    assert (trainer.run.status, len(lose.lost), trainer.run.restarts) == ("done", 6, 7)
    assert not Here.dies_at_start
    assert "firings since the last pause were repeated" in trainer.run.events[0]
    assert trainer.run.lost_transitions == 0
    assert differing(alone(case), trainer) == []


def test_a_lane_of_another_host_that_fails_ends_the_run_by_name(monkeypatch):
    def failing(*given, **more):
        runner = bind_lane(*given, **more)
        runner.serve = lambda: 1 / 0
        return runner

    bind_lane = lane_server.bind_lane
    monkeypatch.setattr(lane_server, "bind_lane", failing)
    run = trained(*apart(*slack_plan("sac")), "ray").run
    assert run.status == "failed"
    assert re.search(r"lane cpu\.\d failed: ZeroDivisionError: division by zero", run.message)


def test_a_failure_of_a_firing_that_is_done_again_counts_once(often, tmp_path):
    armed, killed = tmp_path / "armed", []
    args = {"fault": "raise", "armed": str(armed)}
    system, plan = gym_plan(args=args, on_env_failure="restart", checkpoint_every=0)

    def kill(progress):
        if faulty_envs.BORN[0] == 5 and not killed:  # it has failed, and another is in its place
            armed.touch()
            faulty_envs.BORN[0] = 0
            killed.append(next(p for p in Here.made if "step" in p.lane_group.tasks))
            killed[0].gone = True

    run = trained(*apart(system, plan), "ray", steps=800, progress=kill).run
    assert (run.status, len(killed), armed.exists()) == ("done", 1, False)  # it has failed twice
    assert (run.restarts, run.lost_transitions) == (2, 1)


def test_a_run_goes_on_over_hosts_from_a_checkpoint_of_processes_and_back(tmp_path):
    system, plan = slack_plan("sac")
    where = apart(system, plan)
    for first, then in (("threads", "ray"), ("ray", "threads")):
        folder = tmp_path / first
        cut(Trainer(told(where[0], lanes=first), where[1], seed=3), 800, steps=2000, out=folder)
        again = Trainer(told(where[0], lanes=then), where[1], seed=3)
        assert again.train(steps=2000, out=folder, resume=True).status == "done"
        assert differing(alone("sac"), again) == []


@pytest.mark.parametrize("then", ["threads", "ray"])
def test_a_run_over_hosts_stops_amid_an_iteration_and_goes_on(then, cuts, tmp_path):
    """Also a task is counted whose results no other host reads: here that which acts."""
    system, plan = planned(
        replay_spec("sac", {"policy_lag": 2, "prefetch": 1, "insertion_lag": 1}, replay_ratio=2)
    )
    where, whole = apart(system, plan), trained(system, plan, "one", steps=800)
    cuts.append("first")
    amid = Amid(whole.graph.updates)
    trainer = Trainer(told(where[0], lanes="ray"), where[1], seed=3)
    assert trainer.train(steps=800, out=tmp_path, callbacks=[amid]).status == "stopped"
    assert trainer.session.state.under_way
    again = Trainer(told(where[0], lanes=then), where[1], seed=3)
    assert again.train(steps=800, out=tmp_path, resume=True).status == "done"
    assert differing(whole, again) == []


def test_in_any_order_over_hosts_the_bound_and_the_ratio_are_kept(often, tmp_path):
    lose = losing(2, 600, lambda alive: alive[-1])
    trainer = trainer_of(any_order_system(2, "threads", {"checkpoint_every": 1000}))
    system, plan = apart(told(trainer.system, lanes="ray"), trainer.plan)
    trainer = Trainer(system, plan, seed=3)
    run = trainer.train(steps=2400, out=tmp_path, progress=lose)
    assert (run.status, run.restarts, run.lost_transitions) == ("done", 2, 0)
    assert len(lose.lost) == 2
    assert_bound_and_ratio(trainer, run, 2, 2400)
    assert trainer.session.arrays["replay.cursor"][1] == 1000
    assert sum(t["messages_from"] for t in run.traffic) >= 2400 // 2


def crossing(graph, tasks, inside):
    """Bytes of an iteration that edges carry out of these tasks, or into them. Among learners, what
    several tasks read goes out once: a shard of a mean, or what each of several reductions reads.
    """
    sent, several = {}, any(t.name.startswith("gradient_") for t in graph.tasks)
    for n, e in enumerate(graph.edges):
        if (e.src in tasks, e.dst in tasks) == (inside, not inside):
            read = (e.dst if e.src.startswith("gradient_") else "") if several else n
            sent[e.src, read] = e.bytes * graph.repetition[e.src]
    return sum(sent.values())


def learners_plan(*given):
    system, plan = learners.planned_with(*given)
    return system, learners.apart(plan)


def spread_dqn(*tasks):
    system, plan, _ = sequential("dqn, prioritised")
    return system, spread(plan, {t.task: int(t.task in tasks) for t in plan.tasks})


@pytest.mark.parametrize(
    "planned",
    [
        lambda: spread_dqn("step"),
        lambda: moved("ppo", "act", "step", "store", "advantages"),
        lambda: learners_plan("dqn, prioritised", 4, "star"),
        lambda: learners_plan("ppo", 2, "star"),
        lambda: learners_plan("dqn, prioritised", 4, "shards"),
    ],
)
def test_messages_and_bytes_are_those_of_the_plan(planned):
    """And what is computed is the same."""
    system, plan = planned()
    trainer = trained(*apart(system, plan), "ray", steps=400)
    assert differing(trained(system, plan, "one", steps=400), trainer) == []
    c = trainer.session.compiled
    iterations = trainer.run.env_steps // c.graph.env_steps
    found = zip(
        c.remote_groups,
        batching.plan_flows(c.protocol, c.remote_groups),
        trainer.run.traffic,
        strict=True,
    )
    for island, flows, traffic in found:
        for way, side, inside in (("to", "inbound", False), ("from", "outbound", True)):
            payload = crossing(c.graph, island.tasks, inside) * iterations
            messages = sum(flow.messages(0, iterations) for flow in getattr(flows, side))
            assert traffic[f"messages_{way}"] == messages
            assert traffic[f"payload_bytes_{way}"] == payload


def test_a_lost_learner_does_its_firings_again(often, tmp_path):
    lose = losing(2, 150, lambda alive: alive[0])
    system, plan = learners_plan("dqn, prioritised", 2)
    one = trained(system, plan, "one", steps=600)
    system, plan = apart(told(system, checkpoint_every=200), plan)
    lost = trained(system, plan, "ray", steps=600, progress=lose, out=tmp_path)
    assert (lost.run.status, len(lose.lost), lost.run.restarts) == ("done", 2, 2)
    assert differing(one, lost) == []


def test_each_message_brings_the_firings_that_are_due() -> None:
    flow = batching.MessageFlow(("fast", "slow"), (4, 1), every=3)
    assert flow.messages(1, 4) == 4
    assert [flow.boundary(message, 1, 4) for message in range(4)] == [
        [7, 1], [10, 2], [13, 3], [16, 4]
    ]  # fmt: skip
    assert batching.MessageFlow(("fast", "slow"), (4, 1), every=5).boundary(2, 1, 4) == [16, 4]
