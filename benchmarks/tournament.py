"""Rounds of a tournament without a barrier, in virtual time: `python -m benchmarks.tournament`.

The same trials, of log-normal length, go through two schedules. Without a barrier a slot begins the
next round as soon as it is free; with one, a generation begins when the last trial of the one
before has ended. Both pack trials into slots in the same way. Times are drawn for the seeds 0, 1,
…, so that the figures are the same on every machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

from benchmarks.bars import Bar, finish
from pearl.population.driver import Journal, VirtualExecutor, drive
from pearl.population.schedulers import GridScheduler, RunStage
from pearl.population.tournament import Tournament

SIGMA = 0.5
"""Deviation of the logarithm of a trial's time."""
ROUNDS = 100
CASES = ((16, 8, 1.35), (8, 4, 1.25))
"""Members, slots, and the gain asked for."""
IDLE = 0.05


def seconds(seed: int, stage: RunStage) -> float:
    """Time of a trial, the same in both schedules."""
    return random.Random(f"{seed} {stage.run}").lognormvariate(0.0, SIGMA)


def compared(members: int, slots: int, seed: int) -> tuple[float, float]:
    """Rounds of the tournament over those of the barrier in the same time, and the idle share of
    the tournament's slots."""
    values = {"algorithm.learning_rate": 3e-4}
    first = [RunStage(f"m{n}", f"m{n}", values, n, 1) for n in range(members)]
    over = {"algorithm.learning_rate": (1e-4, 1e-3)}
    free = VirtualExecutor(slots, lambda s: seconds(seed, s), lambda s: seconds(seed + 1, s))
    tournament = Tournament(first, rounds=ROUNDS, size=4, over=over, seed=seed)
    drive(tournament, free, Journal())
    together_s = 0.0
    for at in range(1, ROUNDS + 1):
        names = [m.run if at == 1 else f"{m.run}-round-{at}" for m in first]
        generation = VirtualExecutor(slots, lambda s: seconds(seed, s))
        drive(GridScheduler([RunStage(n, n, values, 0, 1) for n in names]), generation, Journal())
        together_s += generation.now_s
    busy_s = sum(end - begin for _, _, begin, end in free.timeline)
    return together_s / free.now_s, 1 - busy_s / (slots * free.now_s)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2 seeds and not 20")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    rows, bars, values = [], [], {}
    for members, slots, asked in CASES:
        found = [compared(members, slots, seed) for seed in range(2 if options.quick else 20)]
        gain, idle = statistics.median(g for g, _ in found), statistics.median(i for _, i in found)
        name = f"{members} members on {slots} slots"
        spread = f"{min(g for g, _ in found):.2f} to {max(g for g, _ in found):.2f}"
        rows.append([name, f"{gain:.2f}", spread, f"{100 * idle:.1f} %", str(len(found))])
        bars.append(Bar(f"{name}: rounds", f"{gain:.2f} x", f"{asked:g} x", gain >= asked))
        bars.append(Bar(f"{name}: idle", f"{100 * idle:.1f} %", "at most 5 %", idle <= IDLE))
        values[name] = {"gain": [g for g, _ in found], "idle": [i for _, i in found]}
    columns = ["", "rounds over a barrier's", "spread", "idle", "seeds"]
    return finish("tournament", columns, rows, bars, [], options.json, values)


if __name__ == "__main__":
    sys.exit(main())
