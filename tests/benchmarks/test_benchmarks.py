"""What decides in the benchmarks: statistics, the results file, what is run, and the bars."""

import json
import sys

import gymnasium
import numpy as np
import pytest

from benchmarks import peers
from benchmarks.bars import ABSENT
from benchmarks.peers_table import ASKED
from benchmarks.peers_workloads import WORKLOADS
from benchmarks.returns import RETURNS
from benchmarks.returns_cases import CASES
from pearl_devices.user_imports import make_environment

CASE = CASES[0]


def run(final: float) -> dict[str, object]:
    return {"final": final, "last_20": final, "cpu_s": 1.0, "version": "1"}


def test_known_optima_are_those_of_backward_induction():
    for case in CASES:
        if case.optimum is None or case.algorithm["env"] not in gymnasium.registry:
            continue  # an older gymnasium has other versions
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


def test_peers_that_were_not_run_are_named_as_absent(tmp_path, capsys):
    file = tmp_path / "r.json"
    for seed in range(CASE.seeds):
        RETURNS.add(file, CASE, "ours", seed, run(500.0))
    status = RETURNS.main(None, ["--cases", CASE.name, "--results", str(file), "--show"])
    assert status == ABSENT
    assert f"absent: sb3, {CASE.seeds} runs" in capsys.readouterr().out


def test_every_bar_compares_rows_that_are_run():
    for asked in ASKED:
        assert asked.within(peers.ROWS), asked.text
    rows = {row for names in peers.ROWS.values() for row in names}
    assert rows <= set(peers.RUNS)
    for load, names in peers.ROWS.items():
        assert set(names) & set(peers.PEERS) == set(WORKLOADS[load].peer_steps), load


def test_a_run_of_ours_gives_its_rate_memory_and_variants(capsys):
    assert peers.main(["--one", "W1x1", "ours, smallest", "--steps", "3000"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["per_cpu_s"] > 0
    assert given["rss_bytes"] > 2**20
    assert given["variants"]["step"] == "native"
    assert given["torch"] == ("torch" in sys.modules)
