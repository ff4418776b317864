"""How times to a solution are summed up, and that the runs of the libraries can be asked for."""

from __future__ import annotations

from benchmarks import time_to_solution as table
from benchmarks.time_to_solution import BY_NAME


def run(wall_s: float, *, solved: bool = True) -> dict[str, object]:
    return {"wall_s": wall_s, "cpu_s": wall_s, "env_steps": 1_000, "solved": solved}


def test_a_bar_compares_the_medians_of_runs() -> None:
    runs = {"ours": {"0": run(2.0)}, "sb3": {"0": run(9.0)}, "xla": {"0": run(3.0)}, "sbx": {}}
    case = BY_NAME["PPO CartPole-v1"]
    bars = table.tables("it", [case], {case.name: runs})
    met = {bar.what.rpartition(" ")[2]: (bar.measured, bar.met) for bar in bars}
    assert met == {"sb3": ("4.5×", False), "xla": ("1.5×", True)}
