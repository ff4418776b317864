"""What a second core is worth: `python -m benchmarks.two_cores [--quick] [--json PATH]`.

Each figure is a ratio of wall times taken in turns with a control: two processes that each multiply
matrices, against one of them alone. A round counts only if its control reaches 1.8; where too few
do within the time limit the machine was shared, and the reading is void.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.bars import Bar, Part, show, verdict
from benchmarks.peers_workloads import WORKLOADS
from benchmarks.start import ONE_THREAD
from pearl.planner import planner

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


LEAST_ROUNDS = 5


def interleaved(
    one: Callable[[], float],
    two: Callable[[], float],
    control: Control,
    wanted: int,
    limit_s: float,
) -> Reading:
    """Rounds of one, two and the control in turns, until `wanted` of them count or the time is up.
    one, two: run a stretch and return the seconds of a unit of work."""
    begin, rounds = time.monotonic(), list[tuple[float, float, float]]()
    one(), two()
    while time.monotonic() - begin < limit_s:
        before = control.ratio()
        a, b = one(), two()
        rounds.append((min(before, control.ratio()), a, b))
        if sum(r[0] >= CONTROL for r in rounds) >= wanted:
            break
    counted = [r for r in rounds if r[0] >= CONTROL] or rounds
    return Reading(
        median(a / b for _, a, b in counted),
        median(c for c, _, _ in counted),
        len(rounds),
        sum(r[0] >= CONTROL for r in rounds),
        median(a for _, a, _ in counted),
        median(b for _, _, b in counted),
    )


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


def updates(wanted: int, limit_s: float) -> Part:
    """W3 and W5: the call that samples and learns, on one core and on two."""
    import pearl
    from pearl.algorithms import algorithm
    from pearl_estimators.host.benchmark_kernels import bound

    rows, bars, values = [], [], {}
    control = Control()
    for name in PAIRS:
        load = WORKLOADS[name]
        graph = algorithm(load.algorithm).graph(pearl.load(load.ours()))
        kernel = next(f.kernel for f in graph.fusions if f.name == "learn")
        calls = [bound(kernel, variant) for variant in ("native", "native-pair")]
        one, two = (stretch(call) for call in calls)
        found = interleaved(one, two, control, wanted, limit_s)
        rows.append(
            [
                f"{name}: {load.what}",
                f"{1e3 * found.one_s:.2f} ms",
                f"{1e3 * found.two_s:.2f} ms",
                f"{found.ratio:.2f}",
                f"{found.control:.2f}",
                f"{found.counted} of {found.rounds}",
            ]
        )
        measured = f"{found.ratio:.2f} x" + (" (void)" if found.void else "")
        bars.append(Bar(f"{name} on two cores", measured, "1.5 x", _met(found, 1.5)))
        values[name] = found.__dict__
    control.close()
    title = "A gradient step on two cores"
    return Part(title, ["", "one", "two", "ratio", "control", "rounds"], rows, bars, [], values)


SLOW_US = (30, 200)
"""CPU time of a step of the slow environments, in microseconds."""
ONE_LANE: dict[str, object] = {"max_lanes": 1}
TWO_LANES: dict[str, object] = {"max_lanes": 2, "policy_lag": 2, "replicas": {"env_step": 2}}


def lanes(wanted: int, limit_s: float) -> Part:
    """W1 with eight slow environments: whole runs by the plan of one lane and by that of two."""
    rows, bars, values = [], [], {}
    control = Control()
    for us in SLOW_US:
        one, two = (_trainer(us, limits) for limits in (ONE_LANE, TWO_LANES))
        predicted = two.plan.value / one.plan.value
        found = interleaved(_run(one), _run(two), control, wanted, limit_s)
        split = [t.shares for t in two.plan.tasks if t.task == "env_step"]
        rows.append(
            [
                f"W1, 8 environments of {us} us",
                f"{1 / found.one_s:.0f} /s ({one.plan.value:.0f})",
                f"{1 / found.two_s:.0f} /s ({two.plan.value:.0f})",
                f"{found.ratio:.2f} ({predicted:.2f})",
                f"{found.control:.2f}",
                f"{found.counted} of {found.rounds}",
            ]
        )
        measured = f"{found.ratio:.2f} x, {predicted:.2f} x predicted"
        measured += " (void)" if found.void else ""
        bars.append(Bar(f"W1 at {us} us on two lanes", measured, "1.7 x", _met(found, 1.7)))
        values[f"W1 {us} us"] = found.__dict__ | {
            "predicted": predicted,
            "env_steps_split": split[0] if split else (),
        }
    control.close()
    title = "Env steps per second of wall time with slow environments, measured (predicted)"
    return Part(title, ["", "one", "two", "ratio", "control", "rounds"], rows, bars, [], values)


def chosen(wanted: int, limit_s: float) -> Part:
    """W1 with native environments: whether the planner's number of lanes is the better one."""
    import pearl
    from benchmarks.estimators.plans import several_lanes_wanted

    rows, bars, values = [], [], {}
    control = Control()
    for name in ("W1x8", "W1x1"):
        spec = WORKLOADS[name].ours()
        spec["limits"] = {"max_lanes": 2, "policy_lag": 2}
        system = pearl.load(spec, set={"train.steps": NATIVE_STEPS, "train.lanes": "processes"})
        alone = pearl.load(spec, set={"train.steps": NATIVE_STEPS, "limits.max_lanes": 1})
        with several_lanes_wanted():
            several = pearl.plan(system)
        plan = pearl.plan(system)
        count = len({t.lane for t in plan.tasks})
        one, two = pearl.compile(alone), pearl.compile(system, plan=several)
        found = interleaved(_run(one), _run(two), control, wanted, limit_s)
        rows.append(
            [
                f"{name}: {WORKLOADS[name].what}",
                str(count),
                f"{found.ratio:.2f} ({two.plan.value / one.plan.value:.2f})",
                f"{found.control:.2f}",
                f"{found.counted} of {found.rounds}",
                plan.note,
            ]
        )
        right = found.ratio >= NEAR if count > 1 else found.ratio <= planner.MIN_GAIN
        measured = f"{count}, two are {found.ratio:.2f} x one" + (" (void)" if found.void else "")
        asked = "2 only if not slower, 1 only if two gain little"
        bars.append(Bar(f"lanes chosen for {name}", measured, asked, right and not found.void))
        values[name] = found.__dict__ | {"lanes": count, "note": plan.note}
    control.close()
    title = "Two lanes over one with native environments, measured (predicted)"
    columns = ["", "lanes chosen", "ratio", "control", "rounds", "why"]
    return Part(title, columns, rows, bars, [], values)


NATIVE_STEPS = 40_000
NEAR = 0.97
"""Ratio from which two lanes are not slower than one."""


def _trainer(us: int, limits: dict[str, object]) -> Any:
    import pearl

    spec = WORKLOADS["W1x8"].ours()
    spec["algorithm"] |= {"env": "benchmarks.slow_env:cartpole", "env_args": {"us": us}}
    spec["limits"] = limits
    spec["train"]["steps"] = round(RUN_S / (8 * (us + 15) * 1e-6)) * 8
    return pearl.compile(spec)


RUN_S = 0.6
"""Seconds that a whole run of one lane takes, about."""


def _run(trainer: Any) -> Callable[[], float]:
    def run() -> float:
        found = trainer.train().env_steps_per_s
        if not found:
            raise RuntimeError(f"{trainer.system.train.steps} env steps have no steady stretch")
        return float(1 / found)

    return run


def _met(found: Reading, asked: float) -> bool:
    return not found.void and found.ratio >= asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--multiply", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each figure")
    parser.add_argument("--only", nargs="*", choices=("updates", "lanes", "chosen"))
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.multiply:
        multiply()
        return 0
    rounds = 7 if arguments.quick else 25
    parts = {
        "updates": lambda: updates(rounds, arguments.limit),
        "lanes": lambda: lanes(LEAST_ROUNDS if arguments.quick else 9, arguments.limit),
        "chosen": lambda: chosen(LEAST_ROUNDS if arguments.quick else 9, arguments.limit),
    }
    done = [parts[name]() for name in arguments.only or parts]
    for part in done:
        show(part.title, part.columns, part.rows)
    bars = [bar for part in done for bar in part.bars]
    values = {name: value for part in done for name, value in part.values.items()}
    left_out = [name for name in parts if arguments.only and name not in arguments.only]
    return verdict("two_cores", bars, left_out, arguments.json, values)


if __name__ == "__main__":
    sys.exit(main())
