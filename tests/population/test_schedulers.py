"""Which run goes on next: decisions by the order of ends alone, in virtual time and without."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pearl.errors import SpecError
from pearl.population.driver import Journal, StageEnd, VirtualExecutor, drive, replay_history
from pearl.population.schedulers import GridScheduler, RunStage, SuccessiveHalving
from pearl.population.tournament import FACTORS, Tournament

OVER = {"algorithm.learning_rate": (1e-4, 1e-3), "algorithm.hidden": ([64], [32])}


def stage(setting, seed=0, steps=900):
    values = {"algorithm.learning_rate": 3e-4, "algorithm.hidden": [64]}
    return RunStage(f"{setting},seed={seed}", setting, values, seed, steps)


class TestHalving:
    """The decisions of Algorithm 2 of Li et al. 2018, followed by hand."""

    def ask(self, scheduler, *scores):
        """End the stages under way with these scores, by run; returns what begins then."""
        for run, score in scores:
            scheduler.on_end(self.under_way.pop(run), score)
        found = []
        while len(self.under_way) < 2 and (s := scheduler.next()) is not None:
            self.under_way[s.run] = s
            found.append((s.setting, s.steps))
        return found

    def test_a_recorded_order_gives_these_promotions(self):
        self.under_way = {}
        halving = SuccessiveHalving([[stage(name)] for name in "abcdef"], (100, 300, 900), 3)
        assert self.ask(halving) == [("a", 100), ("b", 100)]
        assert self.ask(halving, ("b,seed=0", 5.0)) == [("c", 100)]
        assert self.ask(halving, ("a,seed=0", 1.0)) == [("d", 100)]
        # three have come through rung 0: the best of them goes on, before another begins
        assert self.ask(halving, ("c,seed=0", 9.0)) == [("c", 300)]
        assert self.ask(halving, ("d,seed=0", 7.0)) == [("e", 100)]
        assert self.ask(halving, ("e,seed=0", 2.0)) == [("f", 100)]
        # six: the best two may be at rung 1, one is there
        assert self.ask(halving, ("f,seed=0", 0.0)) == [("d", 300)]
        # two of rung 1 are too few for a promotion, and nothing new is left
        assert self.ask(halving, ("c,seed=0", 9.0), ("d,seed=0", 8.0)) == []
        assert [list(through) for through in halving.through] == [[*"bacdef"], ["c", "d"], []]

    def test_a_better_latecomer_is_promoted_too_and_a_failure_never(self):
        self.under_way = {}
        halving = SuccessiveHalving([[stage(name)] for name in "abcd"], (100, 900), 2)
        self.ask(halving)
        assert self.ask(halving, ("a,seed=0", 1.0), ("b,seed=0", None)) == [("a", 900), ("c", 100)]
        assert self.ask(halving, ("c,seed=0", 8.0)) == [("c", 900)]
        assert self.ask(halving, ("a,seed=0", 1.0)) == [("d", 100)]
        assert self.ask(halving, ("d,seed=0", None), ("c,seed=0", 3.0)) == []

    def test_a_setting_of_which_one_seed_failed_goes_on_no_further(self):
        settings = [[stage(name, seed) for seed in (0, 1)] for name in "ab"]
        halving = SuccessiveHalving(settings, (100, 900), 2)
        scores = (99.0, None, 1.0, 1.0)
        for s, score in zip([halving.next() for _ in range(4)], scores, strict=True):
            halving.on_end(s, score)
        assert halving.next().setting == "b"


def tournament(members=3, rounds=4, size=2, seed=0, rate=3e-4):
    values = {"algorithm.learning_rate": rate, "algorithm.hidden": [64]}
    first = [replace(stage("s", n, 100), run=f"m{n}", values=values) for n in range(members)]
    return Tournament(first, rounds=rounds, size=size, over=OVER, seed=seed)


def score(s):
    return random.Random(s.run).random() + s.steps


def play(order_seed, **more):
    """A tournament whose rounds end in a random order: what began, and the board."""
    draw, scheduler, busy, begun = random.Random(order_seed), tournament(**more), [], []
    while True:
        while len(busy) < 2 and (s := scheduler.next()) is not None:
            busy.append(s)
            begun.append(s)
        if not busy:
            return begun, scheduler.board
        s = busy.pop(draw.randrange(len(busy)))
        scheduler.on_end(s, score(s))


class TestTournament:
    def test_a_seed_decides_every_parent_value_and_stream(self):
        begun, _ = play(4, members=2, rounds=3)
        rate, hidden = OVER
        assert [
            (s.run, s.seed, s.steps, s.reason.removesuffix(" on the leaderboard"),
             round(s.values[rate], 9), s.values[hidden][0])
            for s in begun[2:]
        ] == [  # the seed is `random.Random("0 0").getrandbits(62)`, then "0 1", …
            ("m0-round-2", 1170846075381836863, 200, "from m0, 1 of 1", 0.000375, 32),
            ("m0-round-3", 3457208628156884004, 300, "from m0-round-2, 1 of 2", 0.00046875, 32),
            ("m1-round-2", 3509644982104725146, 200, "from m0, 2 of 2", 0.000375, 64),
            ("m1-round-3", 3458903356141268651, 300, "from m0-round-2, 1 of 2", 0.0003, 64),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("value", "given", "found", "of"),
        [
            (0.5, [0.1, 1.0], 0.625, FACTORS),
            (0.9, [0.1, 1], 1.0, FACTORS),
            (0.9, [1.5, 2.5], 1.5, FACTORS),
            (0.5, [0.1, True], True, [0.1, True]),
            (0.5, [0.1, "x"], "x", [0.1, "x"]),
            (2, [1, 2, 3], 3, [1, 2, 3]),
        ],
    )
    def test_a_number_is_multiplied_within_its_bounds_and_others_are_sampled(
        self, value, given, found, of
    ):
        asked = []
        draw = SimpleNamespace(choice=lambda options: asked.append(options) or options[-1])
        playing = Tournament([], rounds=1, size=1, over={"x": given}, seed=0)
        assert playing._perturbed(draw, "x", value) == found
        assert asked == [of]


class Flaky(VirtualExecutor):
    """Virtual time in which the process of a run dies so often."""

    def __init__(self, deaths):
        super().__init__(2, lambda s: 1.0 + s.seed)
        self.deaths = dict(deaths)

    def wait(self):
        end = super().wait()
        if self.deaths.get(end.stage.run, 0) > 0:
            self.deaths[end.stage.run] -= 1
            return StageEnd(end.slot, end.stage, "died", None, "ended by signal SIGKILL")
        return end


def test_a_schedule_in_virtual_time_and_its_history():
    """Two slots: the first run that ends leaves its slot to the third."""
    runs, told = [replace(stage("s", n), reason=f"why {n}") for n in (2, 0, 1)], []
    executor = VirtualExecutor(2, lambda s: 1.0 + s.seed, lambda s: float(s.seed))
    journal = Journal((), lambda *given: told.append(given))
    assert drive(GridScheduler(runs[1:]), executor, journal, runs[:1])
    a, b, c = runs
    assert executor.timeline == [(a, 0, 0.0, 3.0), (b, 1, 0.0, 1.0), (c, 1, 1.0, 3.0)]
    assert executor.now_s == 3.0
    assert journal.history == [
        {"event": "start", "run": "s,seed=0", "steps": 900, "why": "why 0"},
        {"event": "end", "run": "s,seed=0", "steps": 900, "score": 0.0, "why": None},
        {"event": "start", "run": "s,seed=1", "steps": 900, "why": "why 1"},
        {"event": "end", "run": "s,seed=2", "steps": 900, "score": 2.0, "why": None},
        {"event": "end", "run": "s,seed=1", "steps": 900, "score": 1.0, "why": None},
    ]
    assert [given[0] for given in told] == journal.history
    assert told[1][1:] == (b, StageEnd(1, b, "done", 0.0))
    assert Journal().record("start", a) is None


@pytest.mark.parametrize(("deaths", "ends"), [(2, 0.0), (3, None)])
def test_a_dead_run_is_started_again_a_bounded_number_of_times(deaths, ends):
    journal = Journal(restarts=2)
    runs = [stage("s", seed) for seed in range(3)]
    assert drive(GridScheduler(runs), Flaky({"s,seed=1": deaths}), journal)
    scores = {e["run"]: e["score"] for e in journal.history if e["event"] == "end"}
    assert scores == {"s,seed=0": 0.0, "s,seed=1": ends, "s,seed=2": 0.0}
    assert sum(e["event"] == "restart" for e in journal.history) == 2


@pytest.mark.parametrize("cut", [0, 1, 5, 11, 17])
def test_a_history_brings_a_scheduler_back_wherever_it_was_cut(cut):
    seconds = {n: random.Random(n).random() for n in range(99)}

    def clock():
        return VirtualExecutor(2, lambda s: seconds[s.seed % 99], score)

    whole, journal = tournament(), Journal()
    drive(whole, clock(), journal)
    again = tournament()
    under_way = replay_history(again, journal.history[:cut])
    starts = [e["run"] for e in journal.history[:cut] if e["event"] == "start"]
    ends = [e["run"] for e in journal.history[:cut] if e["event"] == "end"]
    assert [s.run for s in under_way] == [run for run in starts if run not in ends]
    rest = Journal(journal.history[:cut])
    drive(again, clock(), rest, under_way)
    assert sum(e["event"] == "end" for e in rest.history) == 12


def test_a_history_of_another_population_is_refused():
    journal = Journal()
    drive(tournament(), VirtualExecutor(2, lambda s: 1.0, score), journal)
    with pytest.raises(SpecError, match="started m2 to 100 env steps, but m0-round-2 to 200 would"):
        replay_history(tournament(members=2), journal.history)
    with pytest.raises(SpecError, match="but no run would start now: the history is of another"):
        replay_history(GridScheduler([]), journal.history)
    changed = [journal.history[0] | {"steps": 7}]
    with pytest.raises(SpecError, match="started m0 to 7 env steps, but m0 to 100 would start"):
        replay_history(tournament(), changed)
