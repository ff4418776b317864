"""What is asked for is checked before anything runs; names, packing and statistics of it."""

from __future__ import annotations

import numpy as np
import pytest

from pearl.errors import InfeasibleError, SpecError
from pearl.population import members, packing, search
from pearl.population.statistics import interquartile_mean, interval
from pearl_devices.system import host_system

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


def test_values_are_read_as_in_a_file():
    assert members.parse_over(f"{RATE}=1e-4,3e-4") == (RATE, [1e-4, 3e-4])
    assert members.parse_over("algorithm.hidden=[64, 64],[32]")[1] == [[64, 64], [32]]
    assert members.parse_over("algorithm.hidden=")[1] == []
    for text in (RATE, " =1"):
        with pytest.raises(SpecError, match=r"the form must be key\.path=value,value"):
            members.parse_over(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("eta=3, min_steps = 10", None),
        ("eta=3", "min_steps is missing$"),
        ("eta=3,eta=3", "'eta=3' is not understood; write eta=N,min_steps=N$"),
        ("eta=3,min_steps=1e3", "'min_steps=1e3' is not understood"),
        ("eta=3,min_steps=1" + "0" * 18, "is not understood"),
        ("eta=3,other=1", "'other=1' is not understood"),
    ],
)
def test_options_are_whole_numbers_by_name(text, why):
    if why is None:
        found = members.parse_options("--asha", text, search.ASHA)
        assert found == {"eta": 3, "min_steps": 10}
        return
    with pytest.raises(SpecError, match=f"^--asha '{text}': .*{why}"):
        members.parse_options("--asha", text, search.ASHA)


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
        ({"eta": 3, "min_steps": 100}, None, {}, "nothing varies"),
        ({"eta": 3}, None, {RATE: [1e-4]}, "eta, min_steps must be whole"),
        ({"eta": 3, "min_steps": 9}, None, {"train.steps": [500, 600]}, "cannot be varied"),
        (None, {"rounds": 2, "members": 2, "board": 1}, {"algorithm.hidden": [[8], [16]]}, "sizes"),
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
    with pytest.raises(SpecError, match=r"^as-given: train\.final_episodes is 0"):
        search.check("sweep", {}, found, seeds_given=False)


def need(cores=1, seconds=1.0, size=1e9, shares=None):
    return packing.ResourceRequest(cores, shares or {}, size, seconds, None)


def slots(needs, runs, *places):
    held, why = packing.allocate_slots(needs, runs, places or packing.local_host())
    return tuple(cores for _, cores in held), why


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


def test_a_run_that_fits_nowhere_is_said_with_its_needs():
    hosts = packing.RunHost("a", (0,), 9e9), packing.RunHost("b", (0, 1), 0.5e9)
    with pytest.raises(SpecError) as caught:
        packing.allocate_slots([need(2, size=1.234e9), need(1, size=2.0)], 1, hosts)
    (problem,) = caught.value.problems
    start = "not even one run fits: 1 cores of a, but a run needs 2 cores and 1.23 GB; lower "
    assert problem.startswith(start)


def packed_with(rates):
    """Packings with plans that do so many env steps a second on so many cores, or infeasible."""

    def pack(population, planner, slowdowns, hosts):
        if planner.cores not in rates:
            raise InfeasibleError(f"not with {planner.cores}")
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
        (4, {2: 150.0, 4: 180.0}, 2),  # with one core, no plan meets the limits
    ],
)
def test_the_packing_that_ends_the_set_first_is_chosen(seeds, rates, cores, monkeypatch):
    monkeypatch.setattr(host_system, "usable_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(packing, "pack", packed_with(rates))
    free = {"limits.max_lanes": None}
    found = members.build_population(SPEC, seeds=range(seeds), set=free)
    assert packing.compare_packings(found, packing.local_host())[0].cores == cores
    held = members.build_population(SPEC, seeds=range(seeds), set={"limits.max_lanes": 1})
    if 1 in rates:
        assert [p.cores for p in packing.compare_packings(held, packing.local_host())] == [1]
    monkeypatch.setattr(packing, "pack", packed_with({}))
    with pytest.raises(InfeasibleError, match="not with 1"):
        packing.compare_packings(found, packing.local_host())


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    scores = np.array([100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 2.0, 3.0, 500.0, 0.0])
    assert interquartile_mean(scores) == pytest.approx((1 + 2 + 2 + 3 + 3 + 4) / 6)
    assert interquartile_mean(np.array([3.0, 1.0, 2.0])) == 2.0  # nothing is left out of three


def test_the_interval_is_that_of_the_drawn_means():
    """By the definition: draws with replacement, the mean of each, and their percentiles."""
    scores = [1.0, 2.0, 3.0, 10.0, 4.0]
    drawn = np.random.default_rng(7).integers(0, 5, (40, 5))
    means = sorted(sum(sorted(scores[i] for i in row)[1:4]) / 3 for row in drawn)
    found = interval(scores, 7, resamples=40)
    assert found.mean == pytest.approx(3.0)
    for end, share in ((found.low, 0.025), (found.high, 0.975)):
        below, rest = divmod(share * 39, 1)
        expected = means[int(below)] + rest * (means[int(below) + 1] - means[int(below)])
        assert end == pytest.approx(expected)
    whole = interval(scores)
    assert whole == interval(scores, 0, resamples=2_000)
    assert whole != interval(scores, 1)
    assert interval([2.0]) == (2.0, 2.0, 2.0)
