"""What looking costs: `python -m benchmarks.looks [--quick] [--json PATH]`.

So that progress and Ctrl-C come soon, compiled gradient steps look at a word, and a thread sets it
from time to time (`pearl.training.loop.stopping_at_intervals`). Two
processes train by one plan, in pairs whose order alternates: one process as it is shipped, one that
starts no such thread and whose compiled code looks at nothing. Asked: the median of their CPU times
within 2 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.bars import Bar, finish
from benchmarks.peers_workloads import LEARNING_STARTS, WORKLOADS
from benchmarks.start import ONE_THREAD

MOST = 1.02
"""CPU-seconds with looks over those without, at most."""
WIDE: dict[str, Any] = {
    "algorithm": {
        "name": "dqn",
        "env": "CartPole-v1",
        "num_envs": 256,
        "hidden": [1024, 1024],
        "batch_size": 4096,
        "replay_ratio": "1/64",
        "learning_starts": 4096,
        "replay": {"capacity": 65_536},
    },
    "platform": "host",
    "limits": {"max_lanes": 1},
    "train": {"evaluate_every": 0, "final_episodes": 0},
}
"""An iteration of it is four gradient steps, each of some tenths of a second or more."""


def loads(*, quick: bool) -> dict[str, tuple[dict[str, Any], int, int]]:
    """What is trained: spec, env steps of a stretch, pairs of stretches."""
    w1 = LEARNING_STARTS + (20_000 if quick else 200_000)
    wide = 4096 + 256 * (1 if quick else 4)
    return {
        "W1, 8 environments": (WORKLOADS["W1x8"].ours(), w1, 5 if quick else 25),
        "256 environments, 1024-1024, batch 4,096": (WIDE, wide, 3 if quick else 11),
    }


def blind() -> None:
    """Have this process look at nothing. To be called before any algorithm's code is imported."""
    from pearl.training import loop
    from pearl_devices.primitives.native import fast
    from pearl_devices.primitives.updates import iterations, stop_word

    @fast
    def ended(stop, done, steps):  # type: ignore[no-untyped-def]
        return done == steps

    @fast
    def goes_on(loop):  # type: ignore[no-untyped-def]
        if loop.more[0] == 0:
            return False
        loop.more[0] -= 1
        return True

    stop_word.ended, iterations.goes_on = ended, goes_on
    loop.stopping_at_intervals = contextlib.nullcontext  # type: ignore[assignment]


def child(folder: Path, how: str) -> None:
    """Train one stretch a line of input, and say its CPU-seconds."""
    if how == "without":
        blind()
    import pearl

    given = json.loads((folder / "given.json").read_text())
    system = pearl.load(given["spec"], set={"train.steps": given["steps"]})
    plan = folder / "plan.json"
    if not plan.exists():
        pearl.plan(system).save(plan)
    trainer = pearl.compile(system, plan=plan)
    for _ in sys.stdin:
        begin = time.process_time()
        trainer.train()
        print(time.process_time() - begin, flush=True)


class Trained:
    """A process that trains. code: the folder of its machine code, None for the usual one."""

    def __init__(self, folder: Path, how: str, code: Path | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.looks", "--child", str(folder), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ONE_THREAD | ({"NUMBA_CACHE_DIR": str(code)} if code else {}),
        )

    def stretch_s(self) -> float:
        """CPU-seconds of the next stretch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit("looks: a process that trains ended; its error is above")
        return float(line)

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def measured(spec: dict[str, Any], steps: int, pairs: int) -> list[tuple[float, float]]:
    """CPU-seconds of stretches with and without looks, in pairs."""
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        (folder / "given.json").write_text(json.dumps({"spec": spec, "steps": steps}))
        both = []
        try:
            for how, code in (("with", None), ("without", folder / "code")):
                both.append(Trained(folder, how, code))
                both[-1].stretch_s()  # compiles
            for turn in range(pairs):
                order = both if turn % 2 == 0 else both[::-1]
                times = [each.stretch_s() for each in order]
                found.append((times[0], times[1]) if turn % 2 == 0 else (times[1], times[0]))
        finally:
            for each in both:
                each.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short stretches, few pairs")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(Path(arguments.child[0]), arguments.child[1])
        return 0
    rows, bars, values = [], [], {}
    for name, (spec, steps, pairs) in loads(quick=arguments.quick).items():
        found = measured(spec, steps, pairs)
        ratios = [looked / not_looked for looked, not_looked in found]
        low, _, high = quantiles(ratios, n=4)
        rates = [f"{steps / median(side):.4g}" for side in zip(*found, strict=True)]
        ratio = median(ratios)
        rows.append([name, *rates, f"{ratio:.3f} ({low:.3f} to {high:.3f})", str(pairs)])
        bars.append(Bar(name, f"{ratio:.3f} x the CPU time", f"<= {MOST} x", ratio <= MOST))
        values[name] = {"cpu_s": found, "steps": steps}
    columns = ["", "with looks", "without", "CPU time, with / without (quartiles)", "pairs"]
    title = "Env steps a CPU-second"
    return finish(title, columns, rows, bars, [], arguments.json, {"loads": values})


if __name__ == "__main__":
    sys.exit(main())
