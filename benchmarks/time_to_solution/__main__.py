"""From process start to a solved task: `python -m benchmarks.time_to_solution [CASE …]
[--seeds N] [--cold N] [--peers FOLDER] [--json FILE]`.

Every run is a process of its own on one thread, which ends at its first evaluation that reaches the
threshold. All libraries have the same network, batch, replay ratio and evaluation; they take turns,
seed by seed. Warm: machine code that an earlier run kept is there (ours: compiled kernels,
calibration and plans; sbx and XLA: JAX's persistent compilation cache). Cold: nothing is there.
Medians over the seeds; a run that does not get there counts as endless. The peers' interpreters are
those of `benchmarks.peers`. Cases that the JSON file has from before, by the same settings, are
shown and judged with the new ones.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bars import ABSENT, Bar, show, verdict
from benchmarks.peers import ONE_THREAD, interpreters
from benchmarks.time_to_solution.cases import CASES, Case
from benchmarks.time_to_solution.runs import BEGIN, RUNS

Runs = dict[str, list[dict[str, Any]]]
"""Who → what each run gave; those of a seed stand at equal places."""
CARTPOLE = {"sb3": 5.0, "sbx": 3.0}
"""Asked of wall time where starting is most of it; elsewhere the steady ratio is."""
PREPARING_SEED = 1_000
LIMIT_S = 1_800.0


def measure(case: str, who: str, seed: int, python: str, caches: Path) -> Any:
    """One run in a process of its own; a text says why there is none."""
    command = [python, "-m", "benchmarks.time_to_solution", "--one", case, who, "--seed", str(seed)]
    where = {
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "PEARL_CACHE_DIR": str(caches / "pearl"),
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=str(Path(__file__).parents[2]),
        env=os.environ | ONE_THREAD | where | {BEGIN: str(time.monotonic())},
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == ABSENT:
        return done.stderr.strip().splitlines()[-1]
    if done.returncode:
        sys.exit(f"{case}, {who}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one(case: str, who: str, seed: int) -> int:
    """What `measure` starts: prints what the run gives as JSON."""
    try:
        print(json.dumps(RUNS[who](CASES[case], seed)))
    except ModuleNotFoundError as error:
        print(f"{who}: {error}", file=sys.stderr)
        return ABSENT
    return 0


def collect(
    name: str, who: Sequence[str], seeds: int, cold: int, pythons: Mapping[str, str]
) -> tuple[Runs, Runs, dict[str, str]]:
    """Warm runs, cold runs, and who is absent and why."""
    absent: dict[str, str] = {}
    warm: Runs = {each: [] for each in who}
    first: Runs = {each: [] for each in who}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(-max(cold, 1), seeds):
            for each in who:
                if each in absent:
                    continue
                # The last cold run leaves its caches to the warm ones.
                caches = Path(folder) / (f"{-turn}" if turn < 0 else "1")
                seed = PREPARING_SEED - turn if turn < 0 else turn
                given = measure(name, each, seed, pythons.get(each, sys.executable), caches)
                if isinstance(given, str):
                    absent[each] = given
                    continue
                (first if turn < 0 else warm)[each].append(given)
                state = "cold" if turn < 0 else "warm"
                print(f"{name}, {each}, {state}, seed {seed}: {_brief(given)}", flush=True)
    return warm, first, absent


def _brief(given: Mapping[str, Any]) -> str:
    reached = "solved" if given["solved"] else "not solved"
    return (
        f"{reached} after {given['env_steps']:,} env steps, {given['wall_s']:.1f} s, "
        f"{given['cpu_s']:.1f} CPU-s"
    )


def middle(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """The median over runs; one that was not solved counts as endless."""
    return median(run[key] if run["solved"] else math.inf for run in runs)


def rows_of(name: str, state: str, runs: Runs) -> list[list[str]]:
    rows = []
    for who, given in runs.items():
        if not given:
            continue
        walls = sorted(run["wall_s"] for run in given if run["solved"])
        rows.append(
            [
                name,
                state,
                who,
                f"{middle(given, 'wall_s'):.1f} s",
                f"{walls[0]:.1f} – {walls[-1]:.1f}" if walls else "",
                f"{middle(given, 'cpu_s'):.1f} s",
                f"{middle(given, 'env_steps'):,.0f}",
                f"{len(walls)} of {len(given)}",
            ]
        )
    return rows


def bars_of(name: str, case: Case, warm: Runs, cold: Runs) -> list[Bar]:
    """What is asked of a case, where the libraries it is about were measured."""
    bars = []
    walls = {who: middle(runs, "wall_s") for who, runs in warm.items() if runs}
    ours = walls.pop("ours", math.inf)
    asked = CARTPOLE if "CartPole" in name else steady(case)
    for who, theirs in walls.items():
        least = max(asked.get(who, 1.0), 1.0)
        ratio = theirs / ours
        text = f"{name}, warm: wall time to {case.threshold:g} beside {who}"
        bars.append(Bar(text, f"{ratio:.1f}×", f"at least {least:.1f}×", ratio >= least))
    firsts = {who: middle(runs, "wall_s") for who, runs in cold.items() if runs}
    if firsts:
        who = min(firsts, key=lambda each: firsts[each])
        text = f"{name}, cold: {who} is first"
        spent = ", ".join(
            f"{each} {wall:.0f} s, of it {_share(each, warm, wall)} more than warm"
            for each, wall in firsts.items()
        )
        bars.append(Bar(text, spent, "said", met=True))
    return bars


def _share(who: str, warm: Runs, cold_s: float) -> str:
    """The part of a cold run that a warm one does not have: compiling, timing, planning."""
    if not warm[who] or not math.isfinite(cold_s):
        return "an unknown part"
    return f"{max(0.0, 1 - middle(warm[who], 'wall_s') / cold_s):.0%}"


def steady(case: Case) -> dict[str, float]:
    """Ours over each library in env steps per CPU-second, as `benchmarks.peers` last kept them."""
    file = Path(__file__).parents[1] / "results" / "peers.json"
    kept = json.loads(file.read_text())["runs"].get(case.steady, {})
    rates = {who: median(run["per_cpu_s"] for run in runs) for who, runs in kept.items() if runs}
    return {who: rates["ours"] / rate for who, rate in rates.items() if who in RUNS}


def before(file: str | None) -> dict[str, Any]:
    """The cases that a results file has by the settings of today, in their order here."""
    if file is None or not Path(file).exists():
        return {}
    held = json.loads(Path(file).read_text(encoding="utf-8"))["cases"]
    settings = {name: json.loads(json.dumps(asdict(case))) for name, case in CASES.items()}
    return {n: held[n] for n in CASES if n in held and held[n]["settings"] == settings[n]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=10, help="warm runs of each (default 10)")
    parser.add_argument("--cold", type=int, default=1, help="cold runs of each (default 1)")
    parser.add_argument("--who", default=",".join(RUNS), help="libraries, with commas between")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peers", metavar="FOLDER", help="of environments named as the peers")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return one(options.one[0], options.one[1], options.seed)
    names, who = options.cases or [*CASES], options.who.split(",")
    wrong = [name for name in names if name not in CASES] + [w for w in who if w not in RUNS]
    if wrong or options.seeds < 1 or options.cold < 1:
        parser.error(f"{', '.join(wrong)}: cases are {', '.join(CASES)}, who {', '.join(RUNS)}")
    pythons = interpreters(options.peer, options.peers)
    for package in ("pearl", "devices", "estimators", "benchmarks"):  # as an installation does
        compileall.compile_dir(Path(__file__).parents[2] / package, quiet=1)
    kept = before(options.json)
    missing: dict[str, str] = {}
    for name in names:
        case = CASES[name]
        print(f"{name}: {json.dumps(asdict(case))}", flush=True)
        warm, cold, absent = collect(name, who, options.seeds, options.cold, pythons)
        kept[name] = {"settings": asdict(case), "warm": warm, "cold": cold}
        missing |= {f"{name}, {each}": why for each, why in absent.items()}
    rows: list[list[str]] = []
    bars: list[Bar] = []
    for name, found in kept.items():
        rows += rows_of(name, "warm", found["warm"]) + rows_of(name, "cold", found["cold"])
        bars += bars_of(name, CASES[name], found["warm"], found["cold"])
    columns = ["case", "caches", "who", "wall, median", "range", "CPU", "env steps", "solved"]
    show("time to solution", columns, rows)
    status = verdict("time to solution", bars, [], options.json, {"cases": kept})
    for row, why in missing.items():
        print(f"absent: {row}: {why}")
    return ABSENT if missing else status


if __name__ == "__main__":
    sys.exit(main())
