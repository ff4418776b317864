"""From process start to the first gradient step, and to the end of a short run: `python -m
benchmarks.start [SPEC …] [--pairs N] [--whole] [--workers] [--json FILE]`.

Runs `pearl train SPEC --steps 2000` (with `--whole` the spec's own steps), without a plan, in a
process of its own with caches of its own: cold (all empty), then warm (as the cold run left them).
With `--workers` the run is DQN with two actors in any order, each in a worker process, and the time
is that to the first firing, whichever process it is of.
The clock starts before the process does. CPU-seconds are those of the process and its children,
thus what an idle core would take: conclude from them where the machine is not quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bars import ONE_THREAD, Bar, finish

HERE = Path(__file__).resolve().parents[1]
SPECS = ("dqn_cartpole", "ppo_cartpole", "ddpg_pendulum", "td3_pendulum", "sac_pendulum")
QUICK = ("dqn_cartpole",)
WARM_S = 1.0
"""Asked: CPU-seconds of a warm start."""
WHOLE, WHOLE_S = "ppo_cartpole", 20.0
"""The spec whose whole run with empty caches, the timing after it included, has a bar, and the
CPU-seconds that it may take."""
STEPS, LIMIT_S = 2_000, 900
"""Env steps of a run, and seconds of wall time that it may take."""
WORKERS, CORES = "dqn, two worker processes", 4
"""The run of `--workers`, and the cores that its plan is for (as in `benchmarks.chaos`), whatever
this machine has."""


@dataclass(frozen=True)
class Start:
    """Wall and CPU seconds of a run to its first gradient step (`--workers`: to its first firing)
    and to its end. calibrated: the run
    left a calibration, the time of which is in it."""

    step_s: float
    step_cpu_s: float
    end_s: float
    end_cpu_s: float
    calibrated: bool


def _spent(caches: Path, command: list[str]) -> float:
    """CPU seconds of a command of this tree and its children."""
    path = os.pathsep.join(str(HERE / folder) for folder in (".", "devices", "estimators"))
    kept = {"NUMBA_CACHE_DIR": "numba", "PEARL_CACHE_DIR": "pearl", "XDG_CACHE_HOME": "user"}
    env = os.environ | ONE_THREAD | {name: str(caches / folder) for name, folder in kept.items()}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-P", *command],
            cwd=HERE,
            env=env | {"PYTHONPATH": path},
            stdout=said,
            stderr=said,
        )
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            ended, status, used = os.wait4(child.pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline_s:
                child.kill()
            time.sleep(0.002)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command[1:])}: {said.read().decode()[-2000:]}")
    return used.ru_utime + used.ru_stime


def start(spec: str, given: Path, caches: Path, *, whole: bool) -> Start:
    """One run of `spec`. given: the folder of the spec and plan of WORKERS. whole: to the end of
    its own steps."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        command = [str(HERE / "benchmarks" / "first_step.py")]
        if spec == WORKERS:
            command += ["--firing", str(CORES), str(seen), "train", str(given / "spec.yaml")]
            command += ["--plan", str(given / "plan.json")]
        else:
            command += [str(seen), "train", f"configs/{spec}.yaml"]
        command += [] if whole else ["--steps", str(STEPS)]
        before = set(caches.rglob("calibration*.json"))
        begin_s = time.time()
        cpu_s = _spent(caches, [*command, "--out", f"{folder}/run"])
        end_s = time.time() - begin_s
        if not seen.exists():
            sys.exit(f"{spec}: nothing was seen in its env steps")
        first = json.loads(seen.read_text())
        if spec == WORKERS and first["workers"] != 2:
            sys.exit(f"{spec}: {first['workers']} worker processes; the plan is for 2")
        new = bool(set(caches.rglob("calibration*.json")) - before)
    return Start(first["at_s"] - begin_s, first["cpu_s"], end_s, cpu_s, new)


def measure(spec: str, pairs: int, *, whole: bool) -> dict[str, list[Start]]:
    """`cold` and `warm` → one run a pair."""
    found: dict[str, list[Start]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        caches, given = Path(folder) / "caches", Path(folder) / "given"
        # Bytecode of the sources and of the libraries, as an installation has it.
        _spent(caches, ["-m", "compileall", "-q", "pearl", "devices", "estimators"])
        imports = "import gymnasium, highspy, jinja2, networkx, numba, scipy.optimize, torch, typer"
        _spent(caches, ["-c", imports])
        if spec == WORKERS:
            text = "from pathlib import Path; from benchmarks.chaos import Case, prepare; "
            text += f"prepare(Case('dqn', 'processes', any_order=True), Path({str(given)!r}))"
            _spent(caches, ["-c", text])
        for _ in range(pairs):
            with tempfile.TemporaryDirectory() as own:
                for runs in found.values():
                    runs.append(start(spec, given, Path(own), whole=whole))
    return found


FIGURES: tuple[Callable[[Start], float], ...] = (
    lambda s: s.step_s,
    lambda s: s.step_cpu_s,
    lambda s: s.end_s,
    lambda s: s.end_cpu_s,
)


def whole_run(spec: str, cold: list[Start]) -> Bar:
    """The bar of a whole run, which is not met where no core was free to time kernels after it."""
    cpu_s, timed = statistics.median(s.end_cpu_s for s in cold), all(s.calibrated for s in cold)
    measured = f"{cpu_s:.1f} s" + ("" if timed else ", without timing kernels: the host was busy")
    text = f"{spec}, cold: CPU to the end of the whole run"
    return Bar(text, measured, f"at most {WHOLE_S:g} s", timed and cpu_s <= WHOLE_S)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", metavar="SPEC", help=f"default: {', '.join(SPECS)}")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--pairs", type=int, default=5, help="cold and warm starts (default 5)")
    parser.add_argument("--whole", action="store_true", help="train to the end of the spec's steps")
    parser.add_argument("--workers", action="store_true", help=f"only {WORKERS}")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    if options.workers and options.specs:
        parser.error("--workers: takes no SPEC, for its plan is that of a spec of its own")
    specs = tuple(options.specs) or (QUICK if options.quick else SPECS)
    first = "gradient step"
    if options.workers:
        specs, first = (WORKERS,), "firing"
    rows: list[list[str]] = []
    bars, kept = [], {}
    for spec in specs:
        found = measure(spec, options.pairs, whole=options.whole)
        kept[spec] = {which: [asdict(s) for s in runs] for which, runs in found.items()}
        for which, runs in found.items():
            times = sum(s.calibrated for s in runs)
            cells = [f"{statistics.median(map(of, runs)):.2f} s" for of in FIGURES]
            rows.append([spec, which, *cells, f"{times} of {len(runs)}"])
        if options.whole and spec == WHOLE:
            bars.append(whole_run(spec, found["cold"]))
        if spec != WORKERS:
            cpu_s = statistics.median(s.step_cpu_s for s in found["warm"])
            text = f"{spec}, warm: CPU to the first gradient step"
            bars.append(Bar(text, f"{cpu_s:.2f} s", f"at most {WARM_S:g} s", cpu_s <= WARM_S))
    columns = ["spec", "caches", f"first {first}: wall", "CPU", "end: wall", "CPU", "calibrated"]
    left_out = [] if options.workers else [spec for spec in SPECS if spec not in specs]
    return finish("start", columns, rows, bars, left_out, options.json, {"seconds": kept})


if __name__ == "__main__":
    sys.exit(main())
