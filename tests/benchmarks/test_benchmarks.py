"""What decides in the benchmarks: statistics, the results file, what is run, and the bars."""

import json
import sys

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.bars import ABSENT, named_pythons
from benchmarks.kept_runs import read
from benchmarks.peers_table import ASKED, bars_of, ratio
from benchmarks.peers_workloads import WORKLOADS, Clock
from benchmarks.returns import RETURNS
from benchmarks.returns_cases import BY_NAME, CASES, Case
from benchmarks.returns_table import tables
from pearl_devices.user_imports import make_environment

CASE = CASES[0]


def run(final: float) -> dict[str, object]:
    return {"final": final, "last_20": final, "cpu_s": 1.0, "version": "1"}


def test_runs_are_added_one_by_one_and_only_the_missing_ones_are_asked_for(tmp_path):
    file = tmp_path / "r.json"
    for seed in (0, 2):
        RETURNS.add(file, CASE, "ours", seed, run(400.0 + seed))
    held = read(file)
    assert RETURNS.current(held, CASE, "ours")["2"]["final"] == 402.0
    lacking = RETURNS.missing(held, [CASE], 4, ["ours", "sb3"])
    assert [(who, seed) for _, who, seed in lacking] == [
        ("ours", 1), ("ours", 3), ("sb3", 0), ("sb3", 1), ("sb3", 2), ("sb3", 3),
    ]  # fmt: skip


def test_runs_of_other_settings_are_not_counted_and_are_replaced(tmp_path):
    file = tmp_path / "r.json"
    old = Case(CASE.name, CASE.steps + 1, CASE.algorithm)
    RETURNS.add(file, old, "ours", 0, run(1.0))
    assert RETURNS.current(read(file), CASE, "ours") == {}
    RETURNS.add(file, CASE, "ours", 1, run(2.0))
    assert list(RETURNS.current(read(file), CASE, "ours")) == ["1"]


def test_a_file_that_is_no_results_file_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "r.json"
    file.write_text('{"runs": []}')
    with pytest.raises(SystemExit, match="no results file"):
        RETURNS.main(None, ["--results", str(file), "--show"])
    assert file.read_text() == '{"runs": []}'


def test_every_case_is_a_sound_spec_and_no_two_share_a_name():
    import pearl

    assert len(BY_NAME) == len({case.name for case in BY_NAME.values()})
    for case in CASES:
        if "v5" not in case.name:  # those need the extra mujoco
            system = pearl.load(case.spec())
            assert system.train.steps == case.steps


def test_known_optima_are_those_of_backward_induction():
    for case in CASES:
        if case.optimum is None:
            continue
        env = make_environment(case.algorithm["env"], case.algorithm.get("env_args", {}))
        table = env.unwrapped.P  # type: ignore[attr-defined]
        values = np.zeros(len(table))
        for _ in range(env.spec.max_episode_steps):  # type: ignore[union-attr, arg-type]
            values = np.array(
                [
                    max(
                        sum(p * (r + (0.0 if over else values[to])) for p, to, r, over in outcomes)
                        for outcomes in actions.values()
                    )
                    for actions in table.values()
                ]
            )
        start = env.unwrapped.initial_state_distrib  # type: ignore[attr-defined]
        assert case.optimum == pytest.approx(float(start @ values))


@pytest.mark.parametrize(("mine", "met"), [(450.0, True), (250.0, False)])
def test_the_bar_is_the_low_end_of_the_lowest_peers_interval(mine, met, capsys):
    def scores(value: float, spread: float) -> dict[str, dict[str, object]]:
        return {str(s): run(value + spread * (s - 4.5)) for s in range(10)}

    given = {"ours": scores(mine, 1), "sb3": scores(400, 20), "sbx": scores(500, 0)}
    (bar,) = tables("returns", [CASE], {CASE.name: given})
    assert bar.met is met
    assert "sb3" in bar.asked
    assert 300 < float(bar.asked.split()[2].rstrip(",")) < 400


def test_peers_that_were_not_run_are_named_as_absent(tmp_path, capsys):
    file = tmp_path / "r.json"
    for seed in range(CASE.seeds):
        RETURNS.add(file, CASE, "ours", seed, run(500.0))
    status = RETURNS.main(None, ["--cases", CASE.name, "--results", str(file), "--show"])
    assert status == ABSENT
    assert f"absent: sb3, {CASE.seeds} runs" in capsys.readouterr().out


def test_the_clock_leaves_out_the_warm_up_and_refuses_to_say_a_rate_without_more():
    clock = Clock(100)
    clock.tick(100)
    with pytest.raises(RuntimeError, match="no more than the warm-up"):
        clock.rate()
    clock.tick(50)
    clock.tick(50)
    assert clock.begin is not None
    assert clock.begin[0] == 150
    while clock.rate() > 1e6:  # as process_time moves on the rate falls
        pass


def test_ratios_are_taken_pair_by_pair_and_against_the_fastest():
    def runs(*rates: float) -> list[dict[str, float]]:
        return [{"per_cpu_s": r} for r in rates]

    found = {"a": runs(10, 20, 30), "b": runs(1, 4, 3), "c": runs(2, 1, 1)}
    assert ratio(found, "a", ["b"]) == 10.0  # of 10, 5, 10
    assert ratio(found, "a", ["b", "c"]) == 5.0  # of 5, 5, 10


def test_a_bar_needs_all_its_rows_and_says_if_it_is_missed():
    assert bars_of({"W4": {"ours": [{"per_cpu_s": 9.0}]}}) == []
    found = {"W1x8": {"ours": [{"per_cpu_s": 9.0}], "xla": [{"per_cpu_s": 9.0}]}}
    (bar,) = bars_of(found)
    assert not bar.met
    assert bar.asked == "at least 1.50×"


def test_every_bar_compares_rows_that_are_run():
    for asked in ASKED:
        assert asked.within(peers.ROWS), asked.text
    rows = {row for names in peers.ROWS.values() for row in names}
    assert rows <= set(peers.RUNS)
    for load, names in peers.ROWS.items():
        assert set(names) & set(peers.PEERS) == set(WORKLOADS[load].peer_steps), load


def test_every_workload_is_a_sound_spec():
    import pearl

    for name, load in WORKLOADS.items():
        assert pearl.load(load.ours()).algorithm.num_envs == load.envs, name


def test_an_unknown_peer_and_a_missing_interpreter_are_named(tmp_path):
    with pytest.raises(SystemExit, match="give NAME=PYTHON"):
        named_pythons(["numpy=/bin/sh"], peers.PEERS)
    with pytest.raises(SystemExit, match="there is no file"):
        named_pythons([f"sb3={tmp_path}/python"], peers.PEERS)


def test_a_run_of_ours_gives_its_rate_memory_and_variants(capsys):
    assert peers.main(["--one", "W1x1", "ours, smallest", "--steps", "3000"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["per_cpu_s"] > 0
    assert given["rss_bytes"] > 2**20
    assert given["variants"]["env_step"] == "native"
    assert given["torch"] == ("torch" in sys.modules)
