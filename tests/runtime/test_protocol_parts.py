"""The parts of a run, each by itself: records of times, arrays in slots, messages, recovery, the
order of one lane, environments that hang, programs of children. Clocks are the test's."""

from __future__ import annotations

import signal
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.planning.replicas import ReplicaSplit, split_graph
from pearl.runtime.environments import external_envs
from pearl.runtime.protocol import channels
from pearl.spec.reading import load
from pearl.spec.user_code import build_graph
from pearl_devices import buffers
from pearl_devices.kernels import kind_of
from pearl_devices.primitives.envs.asked import SINCE, Asked
from tests.lanes import replay_spec

# --- times of a lane


# --- clocks


# --- arrays


def rings(*counts, size=4):
    found = {}
    for i, count in enumerate(counts):
        mark = f"#{i}" if len(counts) > 1 else ""
        found[f"episode.count{mark}"] = np.array([count])
        found[f"episode.returns{mark}"] = np.array(
            [next((float(10 * i + n) for n in reversed(range(count)) if n % size == k), -1.0)
             for k in range(size)]
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("arrays", "last", "mean", "count"),
    [
        ({}, 20, None, 0),
        (rings(0), 20, None, 0),
        (rings(3), 20, 1.0, 3),
        (rings(6), 20, 3.5, 6),  # the ring has 2, 3, 4, 5
        (rings(6), 2, 4.5, 6),
        (rings(6, 2), 3, (4 + 5 + 10 + 11) / 4, 8),  # two of each
        (rings(6, 0), 2, 5.0, 6),
    ],
)
def test_the_mean_return_is_that_of_the_last_episodes_of_every_ring(arrays, last, mean, count):
    assert channels.mean_return(arrays, last) == mean
    assert channels.count_episodes(arrays) == count


def test_uneven_copies_share_out_the_rows_of_the_environments_without_gap_or_overlap():
    """8 environments as 5, 2 and 1: the copies have the rows 0 to 4, 5 and 6, and 7."""
    whole = build_graph(load(replay_spec("dqn", num_envs=8)))
    split = SimpleNamespace(graph=split_graph(whole, ReplicaSplit(("act", "step"), (5, 2, 1))))
    kernel = whole.task("act").kernel
    (name,) = [n for n, (shape, _) in kind_of(kernel).arrays(kernel).items() if shape[0] == 8][:1]
    arrays = dict(buffers.allocate([t.kernel for t in whole.tasks]))
    arrays |= {f"{n}#{copy}": array for n, array in arrays.items() for copy in range(3)}
    rows = np.arange(8)
    arrays[name].reshape(8, -1)[:] = rows[:, None]
    seen = []
    for copy in ("act#0", "act#1", "act#2"):
        task = split.graph.task(copy)
        view = channels.task_view(split, arrays, task.kernel, copy, {})[name]
        seen.append(view.reshape(len(view), -1)[:, 0].astype(int).tolist())
    assert seen == [[0, 1, 2, 3, 4], [5, 6], [7]]


# --- recovery


# --- one lane in this thread


# --- environments


@pytest.fixture
def awake(monkeypatch):
    """A clock, and a process that has run all the time."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(external_envs, "monotonic", lambda: now.s)
    monkeypatch.setattr(external_envs, "_awake", {"checked_s": 999.0, "since_s": 0.0})
    return now


class Silent(Asked):
    """An environment that is asked something since a time that a test sets."""

    def __init__(self, name, since_s=0.0):
        super().__init__()
        self.name, self.slot[:] = name, memoryview(array("d", [since_s, 3, 17, 2]))


def test_a_step_is_overdue_after_its_limit_of_time_in_which_the_process_ran(awake):
    env = Silent("E")
    envs = {"x": Silent("X"), "y": env}
    for seconds, since_s, overdue in (
        (0.0, None, False),
        (0.0, 998.0, False),
        (0.5, 998.0, True),
        (2.0, 998.0, True),
        (2.5, 998.0, False),  # it was stopped in between
        (2.0, 998.0, False),
        (0.5, 998.0, True),
        (0.0, 1006.0, False),
    ):
        awake.s, env.slot[SINCE] = awake.s + seconds, since_s or 0.0
        found = external_envs.describe_overdue_env(envs, 2.0)
        where = "environment 'E' of y, number 3, episode 2, step 17,"
        assert found == (f"{where} has not answered for 2 s" if overdue else None)


def test_the_timer_interrupts_a_step_and_leaves_the_one_before(awake):
    external_envs._awake["checked_s"] = awake.s = 10_000.0
    env = Silent("E", 1.0)
    before = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 50_000.0, 60_000.0)
    try:
        with external_envs.interrupting_overdue_envs({"y": env}, 4000.0):
            left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
            assert (left_s, every_s) == (pytest.approx(1000.0, abs=500.0), pytest.approx(1000.0))
            with pytest.raises(TimeoutError, match=r"not answered for 4000 s \(train.env_time_l"):
                signal.raise_signal(signal.SIGALRM)
            env.slot[SINCE] = 0.0
            signal.raise_signal(signal.SIGALRM)
        assert signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(60_000.0)
        with external_envs.interrupting_overdue_envs({}, 4000.0):
            assert signal.getsignal(signal.SIGALRM) is before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# --- children
