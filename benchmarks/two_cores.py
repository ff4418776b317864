"""What a second core is worth: `python -m benchmarks.two_cores [--quick] [--json PATH] [PART …]`.

Each figure is a ratio of wall times taken in turns with a control: two processes that each multiply
matrices, against one of them alone. A round counts only if its control reaches 1.8; where too few
do within the time limit the machine was shared, and the reading is void.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.bars import ONE_THREAD, Bar, Part
from benchmarks.peers_workloads import WORKLOADS
from benchmarks.run import main

CONTROL = 1.8
PAIRS = ("W3", "W5")
ROUND_S = 0.05
"""Seconds that each of the four stretches of a round takes, about."""


def multiply() -> None:
    """The control's process: for each line of input so many products; then it says the seconds."""
    import numpy as np

    a = np.ones((256, 256), np.float32)
    out = np.empty_like(a)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            np.dot(a, a, out=out)
        print(time.perf_counter() - begin, flush=True)


class Control:
    """Two processes on one thread each. `ratio` says how much faster two are than one, now."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.two_cores", "--multiply"]
        self._both = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **ONE_THREAD},
            )
            for _ in range(2)
        ]
        self._count = 10
        for _ in range(3):  # as many products as fill a stretch
            self._count = max(1, round(self._count * ROUND_S / self._time(self._both[:1])))

    def _time(self, which: list[subprocess.Popen[str]]) -> float:
        for process in which:
            assert process.stdin is not None
            process.stdin.write(f"{self._count}\n")
            process.stdin.flush()
        return max(float(p.stdout.readline()) for p in which if p.stdout is not None)

    def ratio(self) -> float:
        return 2 * self._time(self._both[:1]) / self._time(self._both)

    def close(self) -> None:
        for process in self._both:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(timeout=10)


@dataclass(frozen=True)
class Reading:
    """The median ratio over the rounds that count, and of their controls. rounds: all of them;
    counted: those whose control reached CONTROL."""

    ratio: float
    control: float
    rounds: int
    counted: int
    one_s: float
    two_s: float

    @property
    def void(self) -> bool:
        return self.counted < LEAST_ROUNDS


Found = TypeVar("Found")
LEAST_ROUNDS = 5
LIMIT_S, QUICK_S = 120.0, 20.0
"""For the rounds of one figure."""


def rounds_of(
    run: Callable[[], Found], control: Control, wanted: int, limit_s: float
) -> list[tuple[float, Found]]:
    """Rounds of the control and of `run`, until `wanted` of them count or the time is up: the
    control's ratio, and what `run` returned."""
    begin, rounds = time.monotonic(), list[tuple[float, Found]]()
    while time.monotonic() - begin < limit_s:
        before = control.ratio()
        found = run()
        rounds.append((min(before, control.ratio()), found))
        if sum(c >= CONTROL for c, _ in rounds) >= wanted:
            break
    return rounds


def interleaved(
    one: Callable[[], float],
    two: Callable[[], float],
    control: Control,
    wanted: int,
    limit_s: float,
) -> Reading:
    """The ratio of one to two, which run a stretch and return the seconds of a unit of work."""
    one(), two()
    rounds = rounds_of(lambda: (one(), two()), control, wanted, limit_s)
    counted = [r for r in rounds if r[0] >= CONTROL] or rounds
    return Reading(
        median(a / b for _, (a, b) in counted), median(c for c, _ in counted), len(rounds),
        sum(r[0] >= CONTROL for r in rounds), median(a for _, (a, _) in counted),
        median(b for _, (_, b) in counted),
    )  # fmt: skip


def stretch(call: Callable[[], object]) -> Callable[[], float]:
    """Seconds of one call, timed over ROUND_S."""
    call()
    begin = time.perf_counter()
    call()
    repeats = max(1, round(ROUND_S / (time.perf_counter() - begin)))

    def timed() -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begin) / repeats

    return timed


Case = tuple[str, Callable[[], float], Callable[[], float], float | None, dict[str, Any], list[str]]
"""A figure's name; stretches of one and of two; the predicted ratio; what else the JSON keeps; and
cells of its own after the name."""


def part(
    title: str, own: list[str], cases: Iterator[Case], judged: Callable[..., Bar], rounds: int
) -> Part:
    """The figures of these cases in turn. own: heads of the cells of their own. rounds: wanted."""
    limit_s = QUICK_S if rounds < 9 else LIMIT_S
    rows, bars, values = [], [], {}
    control = Control()
    for name, one, two, predicted, more, cells in cases:
        found = interleaved(one, two, control, rounds, limit_s)
        ratio = f"{found.ratio:.2f}" + (f" ({predicted:.2f})" if predicted else "")
        rates = [f"{1 / found.one_s:,.1f} /s", f"{1 / found.two_s:,.1f} /s"]
        counted = f"{found.counted} of {found.rounds}"
        rows.append([name, *cells, *rates, ratio, f"{found.control:.2f}", counted])
        bars.append(judged(name, found, " (void)" if found.void else "", more))
        values[name] = found.__dict__ | ({"predicted": predicted} if predicted else {}) | more
    control.close()
    columns = ["", *own, "one", "two", "ratio (predicted)", "control", "rounds"]
    return Part(title, columns, rows, bars, [], values)


def faster(least: float) -> Callable[..., Bar]:
    """The bar of a ratio that is asked for."""

    def bar(name: str, found: Reading, mark: str, more: dict[str, Any]) -> Bar:
        met = not found.void and found.ratio >= least
        return Bar(f"{name}: two over one", f"{found.ratio:.2f} x{mark}", f"{least} x", met)

    return bar


def updates(rounds: int) -> Part:
    """W3 and W5: the call that samples and learns, on one core and on two."""
    import pearl
    from pearl.algorithms import algorithm
    from pearl_estimators.host.benchmark_kernels import bind_filled

    def cases() -> Iterator[Case]:
        for name in PAIRS:
            load = WORKLOADS[name]
            graph = algorithm(load.algorithm).graph(pearl.load(load.ours()))
            kernel = next(f.kernel for f in graph.fusions if f.name == "learn")
            one, two = (stretch(bind_filled(kernel, v)) for v in ("native", "native-pair"))
            yield name, one, two, None, {}, [load.what]

    return part("A gradient step on two cores", ["what"], cases(), faster(1.5), rounds)


SLOW_US = (30, 200)
"""CPU time of a step of the slow environments, in microseconds."""
ONE_LANE: dict[str, object] = {"max_lanes": 1}
TWO_LANES: dict[str, object] = {"max_lanes": 2, "policy_lag": 2, "replicas": {"step": 2}}


def lanes(rounds: int) -> Part:
    """W1 with eight slow environments: whole runs by the plan of one lane and by that of two."""

    def cases() -> Iterator[Case]:
        for us in SLOW_US:
            one, two = (_trainer(us, limits) for limits in (ONE_LANE, TWO_LANES))
            split = [t.shares for t in two.plan.tasks if t.task == "step"]
            more = {"env_steps_split": split[0] if split else ()}
            predicted = [f"{one.plan.value:,.0f}, {two.plan.value:,.0f}"]
            ratio = two.plan.value / one.plan.value
            yield f"W1 {us} us", _run(one), _run(two), ratio, more, predicted

    title = "Env steps per second of wall time with slow environments"
    return part(title, ["predicted /s"], cases(), faster(1.7), min(rounds, 9))


RUN_S = 0.6
"""Seconds that a whole run of one lane takes, about."""


def _trainer(us: int, limits: dict[str, object]) -> Any:
    import pearl

    spec = WORKLOADS["W1x8"].ours()
    spec["algorithm"] |= {"env": "benchmarks.slow_env:cartpole", "env_args": {"us": us}}
    spec["limits"] = limits
    spec["train"]["steps"] = round(RUN_S / (8 * (us + 15) * 1e-6)) * 8
    return pearl.compile(spec)


def _run(trainer: Any) -> Callable[[], float]:
    def run() -> float:
        found = trainer.train().env_steps_per_s
        if not found:
            raise RuntimeError(f"{trainer.system.train.steps} env steps have no steady stretch")
        return float(1 / found)

    return run


PARTS = {
    "updates": "a gradient step on two cores",
    "lanes": "two lanes with slow environments",
}


def run(name: str, quick: bool, data: Path | None) -> Part:
    """A part. Needs no data of others."""
    made: Part = globals()[name](LEAST_ROUNDS + 2 if quick else 25)
    return made


if __name__ == "__main__":
    if sys.argv[1:] == ["--multiply"]:
        multiply()
    else:
        sys.exit(main("two_cores", PARTS, run=run))
