"""What is asked for is checked before anything runs; names, packing and statistics of it."""

from __future__ import annotations

import numpy as np
import pytest

from pearl.errors import SpecError
from pearl.population import members, packing, search
from pearl.population.statistics import interquartile_mean, interval
from pearl.spec.reading import load

SPEC = {
    "algorithm": {
        "name": "dqn",
        "env": "CartPole-v1",
        "hidden": [16],
        "batch_size": 64,
        "learning_starts": 100,
    },
    "platform": "host",
    "limits": {"max_lanes": 1},
    "train": {"steps": 600},
}
RATE = "algorithm.learning_rate"


@pytest.mark.parametrize(
    ("text", "seeds"), [("0..3", [0, 1, 2, 3]), ("7", [7]), ("4, 0..1", [4, 0, 1])]
)
def test_seeds_are_ranges_and_lists(text, seeds):
    assert members.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "3..1", "a", "0..", "-1", "0...4", "0..99999999999", "1,,2"])
def test_other_seeds_are_refused(text):
    with pytest.raises(SpecError, match="--seeds"):
        members.parse_seeds(text)


def test_values_are_read_as_in_a_file():
    assert members.parse_over(f"{RATE}=1e-4,3e-4") == (RATE, [1e-4, 3e-4])
    assert members.parse_over("algorithm.hidden=[64, 64],[32]")[1] == [[64, 64], [32]]
    assert members.parse_over("algorithm.hidden=")[1] == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"over": {"algorithm.learning_rat": [1e-4]}}, "learning_rate"),
        ({"over": {RATE: []}}, "has no values"),
        ({"over": {RATE: 1e-4}}, "a list of values"),
        ({"over": {RATE: [1e-4, 3e-4, 1e-4]}}, "twice"),
        ({"over": {RATE: [1e-4, -1.0]}}, "with .*learning_rate=-1: .*learning_rate"),
        ({"over": {RATE: [1e-4]}, "set": {RATE: 1e-3}}, "is set to 0.001 too"),
        ({"over": {"train.seed": [1, 2]}}, "--seeds"),
        ({"over": {"algorithm.n_step": [1, 2], "algorithm.batch_size": [0]}}, "batch_size=0"),
        ({"seeds": []}, "the list is empty"),
        ({"seeds": [1, 1]}, "given twice"),
        ({"seeds": [-1]}, "seed is -1"),
        ({"seeds": range(10_001)}, "at most 10,000"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(more, why):
    with pytest.raises(SpecError, match=why):
        members.build_population(SPEC, **more)


def test_every_combination_is_a_setting_with_a_run_a_seed():
    over = {RATE: [1e-4, 1e-3], "algorithm.hidden": [[16], [8, 8]]}
    found = members.build_population(SPEC, seeds=[3, 5], over=over)
    assert [s.name for s in found.settings] == [
        "learning_rate=0.0001,hidden=16",
        "learning_rate=0.0001,hidden=8x8",
        "learning_rate=0.001,hidden=16",
        "learning_rate=0.001,hidden=8x8",
    ]
    assert [s.system.algorithm.learning_rate for s in found.settings] == [1e-4, 1e-4, 1e-3, 1e-3]
    assert [r.run for r in found.runs()[1]] == [
        "learning_rate=0.0001,hidden=8x8,seed=3",
        "learning_rate=0.0001,hidden=8x8,seed=5",
    ]


@pytest.mark.parametrize(
    ("asha", "tournament", "over", "why"),
    [
        ({"eta": 1, "min_steps": 100}, None, {RATE: [1e-4, 1e-3]}, "eta is 1"),
        ({"eta": 3, "min_steps": 600}, None, {RATE: [1e-4, 1e-3]}, "min_steps is 600"),
        ({"eta": 3, "min_steps": 100}, None, {}, "nothing varies"),
        ({"eta": 3}, None, {RATE: [1e-4]}, "eta, min_steps must be whole"),
        ({"eta": 3, "min_steps": 9}, None, {"train.steps": [500, 600]}, "cannot be varied"),
        (None, {"rounds": 2, "members": 2, "board": 1}, {"algorithm.hidden": [[8], [16]]}, "sizes"),
        (None, {"rounds": 601, "members": 2, "board": 1}, {RATE: [1e-4, 1e-3]}, "rounds is 601"),
    ],
)
def test_ways_of_searching_that_cannot_be_are_refused(asha, tournament, over, why):
    found = members.build_population(SPEC, over=over)

    def check():
        search.check(*search.search_kind(asha, tournament), found, seeds_given=False)

    with pytest.raises(SpecError, match=why):
        check()


def test_a_sweep_without_final_evaluation_is_refused():
    found = members.build_population({**SPEC, "train": {"steps": 600, "final_episodes": 0}})
    with pytest.raises(SpecError, match="final_episodes is 0"):
        search.check("sweep", {}, found, seeds_given=False)


def need(cores=1, seconds=1.0, size=1e9, shares=None):
    return packing.ResourceRequest(cores, shares or {}, size, seconds, None)


def slots(needs, runs, *places):
    held, why = packing.allocate_slots(needs, runs, places or packing.local_host())
    return tuple(cores for _, cores in held), why


def test_slots_are_bounded_by_cores_memory_devices_and_runs(monkeypatch):
    monkeypatch.setattr(packing, "usable_cores", lambda: (0, 2, 4, 6))
    monkeypatch.setattr(packing, "free_memory", lambda: (3.5e9, 0.0))
    assert slots([need(size=1.0)], 9) == (((0,), (2,), (4,), (6,)), "4 cores")
    assert slots([need(2, size=1.0)], 9)[0] == ((0, 2), (4, 6))
    assert slots([need()], 9) == (((0,), (2,), (4,)), "3.5 GB of free memory")
    assert slots([need(size=1.0)], 2) == (((0,), (2,)), "the runs")
    half = slots([need(size=1.0, shares={"gpu": 0.5})], 9)
    assert half == (((0,), (2,)), "device gpu")
    with pytest.raises(SpecError, match=r"not even one run fits: 3\.5 GB"):
        slots([need(size=4e9)], 9)


def test_runs_go_round_nodes_each_as_far_as_its_cores_memory_and_gpus_go():
    big = packing.RunHost("big", (0, 1, 2, 3), 16e9)
    small = packing.RunHost("small", (0, 1), 1.5e9, gpus=False)
    held, why = packing.allocate_slots([need()], 9, [small, big])
    assert [host for host, _ in held] == ["small", "big", "big", "big", "big"]
    assert [cores for host, cores in held if host == "big"] == [(0,), (1,), (2,), (3,)]
    assert why == "1.5 GB of free memory of small"
    assert [host for host, _ in packing.allocate_slots([need()], 2, [small, big])[0]] == [
        "small",
        "big",
    ]
    shares = [need(shares={"gpu": 0.5})]
    assert [host for host, _ in packing.allocate_slots(shares, 9, [small, big])[0]] == [
        "big",
        "big",
    ]
    with pytest.raises(SpecError, match="not even one run fits: device gpu of small"):
        packing.allocate_slots(shares, 9, [small])


def packed_with(rates):
    """Packings with plans that do so many env steps a second on so many cores."""

    def pack(population, planner, slowdowns, hosts):
        runs, rate = len(population.settings) * len(population.seeds), rates[planner.cores]
        needs = (need(planner.cores, 600 / rate, 1.0),)
        held = slots(needs, runs, *hosts)[0]
        seconds = -(-runs // len(held)) * 600 / rate
        return packing.Packing(planner.cores, held, (), (), needs, seconds, "", ())

    return pack


@pytest.mark.parametrize(
    ("seeds", "rates", "cores"),
    [
        (4, {1: 100.0, 2: 150.0, 4: 180.0}, 1),  # four at once end in 6 s, in pairs in 8 s
        (1, {1: 100.0, 2: 150.0, 4: 180.0}, 4),  # one run alone: all cores
        (3, {1: 100.0, 2: 210.0, 4: 220.0}, 2),  # 6 s, 2 × 2.86 s, 3 × 2.73 s
    ],
)
def test_the_packing_that_ends_the_set_first_is_chosen(seeds, rates, cores, monkeypatch):
    monkeypatch.setattr(packing, "usable_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(packing, "pack", packed_with(rates))
    free = {"limits.max_lanes": None}
    found = members.build_population(SPEC, seeds=range(seeds), set=free)
    assert packing.compare_packings(found, packing.local_host())[0].cores == cores
    held = members.build_population(SPEC, seeds=range(seeds), set={"limits.max_lanes": 1})
    assert [p.cores for p in packing.compare_packings(held, packing.local_host())] == [1]


def test_settings_of_one_graph_have_one_plan_and_others_their_own():
    planner = packing.Planner(1)
    one, same, other = (
        planner.plan(load(SPEC, set=more))
        for more in ({}, {RATE: 1e-3}, {"algorithm.batch_size": 32})
    )
    assert one is same
    assert one is not other


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    scores = np.array([100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 2.0, 3.0, 500.0, 0.0])
    assert interquartile_mean(scores) == pytest.approx((1 + 2 + 2 + 3 + 3 + 4) / 6)
    assert interquartile_mean(np.array([3.0, 1.0, 2.0])) == 2.0  # nothing is left out of three


def test_the_interval_holds_the_mean_of_what_was_drawn_in_nineteen_of_twenty_sets():
    draw = np.random.default_rng(0)
    found = [interval(draw.normal(5.0, 1.0, 40), n) for n in range(100)]
    inside = sum(f.low <= 5.0 <= f.high for f in found)
    assert 88 <= inside <= 100
    assert interval([3.0]) == (3.0, 3.0, 3.0)


def test_the_interval_narrows_with_more_seeds():
    scores = np.random.default_rng(0).normal(10.0, 2.0, 400)
    few, many = interval(scores[:10]), interval(scores)
    assert few.low < few.mean < few.high
    assert many.high - many.low < 0.4 * (few.high - few.low)
