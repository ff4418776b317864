"""How times to a solution are summed up, and that the runs of the libraries can be asked for."""

from __future__ import annotations

import math

import pearl
from benchmarks import time_to_solution as table
from benchmarks.time_to_solution import BEGIN, BY_NAME, CASES, Watch


def run(wall_s: float, *, solved: bool = True) -> dict[str, object]:
    return {"wall_s": wall_s, "cpu_s": wall_s, "env_steps": 1_000, "solved": solved}


def test_a_run_that_is_not_solved_counts_as_endless() -> None:
    assert table.middle([run(1.0), run(2.0), run(9.0, solved=False)], "wall_s") == 2.0
    assert math.isinf(table.middle([run(1.0), run(9.0, solved=False)], "wall_s"))


def test_a_bar_compares_the_medians_of_runs() -> None:
    runs = {"ours": {"0": run(2.0)}, "sb3": {"0": run(9.0)}, "xla": {"0": run(3.0)}, "sbx": {}}
    case = BY_NAME["PPO CartPole-v1"]
    bars = table.tables("it", [case], {case.name: runs})
    met = {bar.what.rpartition(" ")[2]: (bar.measured, bar.met) for bar in bars}
    assert met == {"sb3": ("4.5×", False), "xla": ("1.5×", True)}


def test_the_clock_begins_with_the_process(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv(BEGIN, "0")
    watch = Watch(BY_NAME["SAC Pendulum-v1"])
    assert not watch.solved(1_000, -900.0)
    assert watch.solved(2_000, -150.0)
    found = watch.result()
    assert (found["env_steps"], found["solved"]) == (2_000, True)
    assert 0 < found["cpu_s"] < found["wall_s"]


def test_every_case_is_a_spec_of_ours() -> None:
    for case in CASES:
        system = pearl.load(case.ours())
        assert system.train.evaluate_every == case.evaluate_every
        assert getattr(system.algorithm, "batch_size", 0) == (
            0 if case.steady == "W4" else case.load.batch
        )
