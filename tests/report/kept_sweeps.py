"""Results of sweeps made by hand, whose pages are kept in `tests/report/texts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pearl.population.results import Sweep
from pearl.population.setting_results import SettingResult, SweepRun
from pearl.report.html import page_html
from pearl.report.terminal import page_text
from tests.report.kept_pages import bare

RATE = "algorithm.learning_rate"
CURVE = ((100.0, 10.0, 5.0, 15.0), (200.0, 40.0, 30.0, 50.0))


def setting(name: str, done: int, steps: int | None, *iqm: float) -> SettingResult:
    """A setting of three runs. iqm: its mean, low and high end; none before a run is done."""
    values, (mean, low, high) = {RATE: 1e-3}, iqm or (None, None, None)
    return SettingResult(name, values, 3, done, steps, mean, low, high, CURVE if iqm else ())


SETTINGS = (
    setting("slow", 3, 400, 20.0, 11.0, 29.5),
    setting("best", 3, 400, 50.0, 30.0, 70.0),
    setting("near", 2, 400, 25.25, 21.0, 30.0),
    setting("short", 3, 200, 90.0, 80.0, 100.0),
    setting("none", 0, None),
)


def run(name: str, status: str, **more: Any) -> SweepRun:
    return SweepRun(name, name.partition(",")[0], 3, {RATE: 3e-4}, 400, status=status, **more)


RUNS = (
    run("best,seed=3", "done", eval_mean=50.0, last_eval_mean=49.25, env_steps=400,
        env_steps_per_s=1234.5, wall_s=9.0, cpu_s=100.0, restarts=1),
    run("near,seed=3", "done", eval_mean=30.0, env_steps=400, cpu_s=23.0),
    run("slow,seed=3", "failed", message="ended with exit status 2"),
    run("slow,seed=4", "died", message="ended by signal SIGKILL"),
    run("slow,seed=5", "interrupted"),
    run("short,seed=3", "waiting"),
    run("short,seed=4", "running", parent="best,seed=3"),
)  # fmt: skip
PACKING: Mapping[str, Any] = {
    "slots": [[0, 2], [4]],
    "timeline": [
        {"run": "best,seed=3", "slot": 0, "begin_s": 0.0, "end_s": 119.96},
        {"run": "near,seed=3", "slot": 1, "begin_s": 120.0, "end_s": 7199.0},
        {"run": "slow,seed=3", "slot": 0, "begin_s": 7200.0, "end_s": 9000.0},
    ],
}
BOARD: tuple[Mapping[str, Any], ...] = (
    {"run": "member-1-round-2", "score": 71.5, "steps": 400, "values": {RATE: 8e-4}},
    {"run": "member-2", "score": 12.0, "steps": 200, "values": {RATE: 1e-3}},
)


def sweep() -> Sweep:
    return Sweep(
        "failed", "sweep", "dqn_cartpole", {"best": "0" * 64}, (3, 4, 5), {RATE: (3e-4, 1e-3)},
        {}, PACKING, "15 runs, 2 at once", {}, SETTINGS, RUNS, BOARD, (), 150.0, out="sweeps/x",
    )  # fmt: skip


def sweeps() -> str:
    """The pages of a sweep with close settings, in the terminal, and of other kinds of sweep."""
    whole = sweep()
    best, near, slow = (s for s in whole.ranked() if s.steps == 400)
    unequal = replace(whole, status="done", settings=(slow, best), message="so far")
    halved = replace(whole, kind="asha", settings=(near, best), over={})
    shown = (
        whole,
        unequal,
        halved,
        replace(whole, status="done", settings=(best,), runs=RUNS[:1], seeds=(3,)),
        replace(whole, status="interrupted", settings=SETTINGS[-1:], runs=RUNS[2:5]),
        replace(whole, status="planned", settings=SETTINGS[-1:], runs=RUNS[5:6]),
        replace(whole, status="planned", kind="asha", settings=(), runs=()),
        replace(whole, status="done", kind="tournament"),
    )
    texts = [page_text(whole.page("2026-01-02"), 100, details=True), *map(str, shown)]
    findings = [[f"{s.title}: {s.finding}" for s in each.sections()] for each in shown]
    return "\n\n".join((*texts, *map(str, findings), whole._csv()))


SWEEPS: dict[str, Callable[[], str]] = {
    "sweep.txt": sweeps,
    "sweep.html": lambda: bare(page_html(sweep().page("2026-01-02"))),
}
