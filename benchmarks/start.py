"""From process start to the first gradient step, and to the end of a short run: `python -m
benchmarks.start [SPEC …] [--beside CHECKOUT] [--pairs N] [--plan] [--whole] [--workers]`.

Runs `pearl train SPEC --steps 2000` (with `--whole` the spec's own steps), without a plan, in a
process of its own with caches of its own: cold (all empty), then warm (as the cold run left them).
With `--beside` the same by the source tree at CHECKOUT (`git worktree add FOLDER COMMIT`), in
turns: a pair is one cold and one warm run of each, and a ratio is the median of those of the pairs.
With `--plan` each tree makes its plan before, and the runs calibrate nothing before they train.
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

from benchmarks.bars import Bar, finish

HERE = Path(__file__).resolve().parents[1]
SPECS = ("dqn_cartpole", "ppo_cartpole", "ddpg_pendulum", "td3_pendulum", "sac_pendulum")
QUICK = ("dqn_cartpole",)
WARM_S, COLD_SHARE = 1.0, 0.4
"""Asked: CPU-seconds of a warm start; the share a cold one takes of those of the tree beside."""
WHOLE, WHOLE_S = "ppo_cartpole", 20.0
"""The spec whose whole run with empty caches, the timing after it included, has a bar, and the
CPU-seconds that it may take."""
STEPS, LIMIT_S = 2_000, 900
"""Env steps of a run, and seconds of wall time that it may take."""
WORKERS, CORES = "dqn, two worker processes", 4
"""The run of `--workers`, and the cores that its plan is for (as in `benchmarks.chaos`), whatever
this machine has."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


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


Runs = dict[str, list[Start]]
"""`cold` and `warm` → one run a pair."""


def _environment(tree: Path, caches: Path) -> dict[str, str]:
    path = os.pathsep.join(str(tree / folder) for folder in (".", "devices", "estimators"))
    kept = {"NUMBA_CACHE_DIR": caches / "numba", "PEARL_CACHE_DIR": caches / "pearl"}
    found = os.environ | ONE_THREAD | {name: str(folder) for name, folder in kept.items()}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found | {"XDG_CACHE_HOME": str(caches / "user"), "PYTHONPATH": path}


def _spent(tree: Path, caches: Path, command: list[str]) -> float:
    """CPU seconds of a command of this tree and its children."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-P", *command],
            cwd=tree,
            env=_environment(tree, caches),
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
            sys.exit(f"{tree}: {' '.join(command[1:])}: {said.read().decode()[-2000:]}")
    return used.ru_utime + used.ru_stime


def start(tree: Path, spec: str, plan: Path | None, caches: Path, *, whole: bool) -> Start:
    """One run of `spec`. whole: to the end of its own steps."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        command = [str(HERE / "benchmarks" / "first_step.py")]
        if spec == WORKERS and plan:
            command += [
                "--firing",
                str(CORES),
                str(seen),
                "train",
                str(plan.with_name("spec.yaml")),
            ]
        else:
            command += [str(seen), "train", f"configs/{spec}.yaml"]
        command += [] if whole else ["--steps", str(STEPS)]
        command += ["--out", f"{folder}/run"] + (["--plan", str(plan)] if plan else [])
        before = set(caches.rglob("calibration*.json"))
        begin_s = time.time()
        cpu_s = _spent(tree, caches, command)
        end_s = time.time() - begin_s
        if not seen.exists():
            sys.exit(f"{tree}: {spec}: nothing was seen in its env steps")
        first = json.loads(seen.read_text())
        if spec == WORKERS and first["workers"] != 2:
            sys.exit(f"{tree}: {spec}: {first['workers']} worker processes; the plan is for 2")
        new = bool(set(caches.rglob("calibration*.json")) - before)
    return Start(first["at_s"] - begin_s, first["cpu_s"], end_s, cpu_s, new)


def _installed(tree: Path, folder: Path) -> None:
    """Compile the tree's sources, and the libraries that a run imports, to bytecode, as an
    installation does."""
    _spent(tree, folder, ["-m", "compileall", "-q", "pearl", "devices", "estimators"])
    imports = "import gymnasium, highspy, jinja2, networkx, numba, scipy.optimize, torch, typer"
    _spent(tree, folder, ["-c", imports])


def _planned(tree: Path, spec: str, folder: Path) -> Path:
    """The plan that this tree makes."""
    file = folder / "plan.json"
    text = (
        "from pathlib import Path; from benchmarks.chaos import Case, prepare; "
        f"prepare(Case('dqn', 'processes', any_order=True), Path({str(folder / 'given')!r}))"
    )
    if spec == WORKERS:
        _spent(tree, folder / "caches", ["-c", text])
        return folder / "given" / "plan.json"
    text = f"import pearl; pearl.plan(pearl.load('configs/{spec}.yaml')).save({str(file)!r})"
    _spent(tree, folder / "caches", ["-c", text])
    return file


def measure(trees: list[Path], spec: str, pairs: int, *, by_plan: bool, whole: bool) -> list[Runs]:
    """The runs of each tree, in turns."""
    found: list[Runs] = [{"cold": [], "warm": []} for _ in trees]
    with tempfile.TemporaryDirectory() as folder:
        for tree in trees:
            _installed(tree, Path(folder))
        plans: list[Path | None] = [None] * len(trees)
        if by_plan or spec == WORKERS:
            for i, tree in enumerate(trees):
                own = Path(folder) / str(i)
                own.mkdir()
                plans[i] = _planned(tree, spec, own)
        for pair in range(pairs):
            order = list(enumerate(trees))
            for i, tree in order if pair % 2 == 0 else reversed(order):
                with tempfile.TemporaryDirectory() as caches:
                    for which in found[i]:
                        found[i][which].append(
                            start(tree, spec, plans[i], Path(caches), whole=whole)
                        )
    return found


def _median(runs: list[Start], of: Callable[[Start], float]) -> str:
    return f"{statistics.median(map(of, runs)):.2f} s"


def ratio(mine: list[Start], other: list[Start], of: Callable[[Start], float]) -> float:
    """The median of the pairs' quotients."""
    return statistics.median(of(a) / of(b) for a, b in zip(mine, other, strict=True))


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
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="an older source tree")
    parser.add_argument("--pairs", type=int, default=5, help="cold and warm starts (default 5)")
    parser.add_argument("--plan", action="store_true", help="by a plan that was made before")
    parser.add_argument("--whole", action="store_true", help="train to the end of the spec's steps")
    parser.add_argument("--workers", action="store_true", help=f"only {WORKERS}")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    if options.beside and not (options.beside / "pearl").is_dir():
        parser.error(f"--beside {options.beside}: no source tree of PEARL")
    trees = [HERE] + ([options.beside.resolve()] if options.beside else [])
    if options.workers and options.specs:
        parser.error("--workers: takes no SPEC, for its plan is that of a spec of its own")
    specs = tuple(options.specs) or (QUICK if options.quick else SPECS)
    first = "gradient step"
    if options.workers:
        specs, first = (WORKERS,), "firing"
    rows: list[list[str]] = []
    bars, kept = [], {}
    for spec in specs:
        found = measure(trees, spec, options.pairs, by_plan=options.plan, whole=options.whole)
        kept[spec] = [{which: [asdict(s) for s in r[which]] for which in r} for r in found]
        for which in ("cold", "warm"):
            for name, runs in zip(("here", "beside"), found, strict=False):
                times = sum(s.calibrated for s in runs[which])
                cells = [_median(runs[which], of) for of in FIGURES]
                rows.append([spec, which, name, *cells, f"{times} of {len(runs[which])}"])
            if options.beside:
                shares = [ratio(found[0][which], found[1][which], of) for of in FIGURES]
                rows.append([spec, which, "ratio", *(f"{share:.2f}" for share in shares), ""])
                if which == "cold" and spec != WORKERS:
                    text = f"{spec}, cold: CPU to the first gradient step, of the tree beside"
                    asked = f"at most {COLD_SHARE:.0%}"
                    bars.append(Bar(text, f"{shares[1]:.0%}", asked, shares[1] <= COLD_SHARE))
        if options.whole and spec == WHOLE:
            bars.append(whole_run(spec, found[0]["cold"]))
        if spec != WORKERS:
            cpu_s = statistics.median(s.step_cpu_s for s in found[0]["warm"])
            text = f"{spec}, warm: CPU to the first gradient step"
            bars.append(Bar(text, f"{cpu_s:.2f} s", f"at most {WARM_S:g} s", cpu_s <= WARM_S))
    columns = [
        "spec",
        "caches",
        "tree",
        f"first {first}: wall",
        "CPU",
        "end: wall",
        "CPU",
        "calibrated",
    ]
    left_out = [] if options.workers else [spec for spec in SPECS if spec not in specs]
    return finish("start", columns, rows, bars, left_out, options.json, {"seconds": kept})


if __name__ == "__main__":
    sys.exit(main())
