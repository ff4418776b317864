"""From process start to the first gradient step: `python -m benchmarks.start [--quick]`.

Runs `pearl train SPEC --plan plan.json` in a process of its own, with a compile cache and a user
cache of its own: cold (both empty), then warm (both as the cold run left them). The clock starts
before the process does and stops when `learner.step` has left 0, so that the random actions before
learning starts are in it.
Wall time is what a user waits for; CPU-seconds are what an idle core would take.
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
from pathlib import Path

from benchmarks.bars import Bar, finish

SPECS = ("dqn_cartpole", "ddpg_pendulum", "td3_pendulum", "sac_pendulum")
QUICK = ("dqn_cartpole",)
WARM_S, COLD_S = 1.0, 15.0
STEPS = 2_000
"""Env steps asked of the run; it is ended at its first gradient step."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

Times = tuple[float, float]
"""Wall and CPU seconds."""


def child(arguments: list[str]) -> int:
    """What `first_step` starts: the command line, watched for its first gradient step."""
    from pearl.cli import main as pearl
    from pearl_devices import Buffers, Call, Kernel, cpu

    plain: Callable[[Kernel, str, Buffers], Call] = cpu.bind

    def watched(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
        call = plain(kernel, variant, buffers)

        def run() -> None:
            call()
            if "learner.step" in buffers and buffers["learner.step"][0] > 0:
                found = {"at_s": time.time(), "cpu_s": time.process_time()}
                found["torch"] = "torch" in sys.modules
                print(json.dumps(found), flush=True)
                os._exit(0)

        return run

    cpu.bind = watched
    sys.argv = ["pearl", *arguments]
    pearl()
    return 1


def first_step(spec: str, plan: Path, caches: Path) -> Times:
    """Seconds to the first gradient step of `spec` by `plan`, with these caches."""
    where = {"NUMBA_CACHE_DIR": str(caches / "numba"), "XDG_CACHE_HOME": str(caches / "user")}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.start", "--child", "train", spec]
        command += ["--plan", str(plan), "--steps", str(STEPS), "--out", f"{folder}/run"]
        begin_s = time.time()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=str(Path(__file__).parents[1]),
            env=os.environ | ONE_THREAD | where,
            timeout=300,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{spec}: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["torch"]:
        sys.exit(f"{spec}: a native plan imported torch")
    return found["at_s"] - begin_s, found["cpu_s"]


def measure(spec: str, repeats: int) -> dict[str, list[Times]]:
    """`cold`: one run; `warm`: `repeats` runs with the caches that it left."""
    from pearl import load, plan

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        native = {"limits.variants": {"update": ["native"], "env_step": ["native"]}}
        plan(load(spec, set=native)).save(file)
        caches = Path(folder) / "caches"
        cold = [first_step(spec, file, caches)]
        return {"cold": cold, "warm": [first_step(spec, file, caches) for _ in range(repeats)]}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--child"]:
        return child(given[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--repeats", type=int, default=5, help="warm starts of each (default 5)")
    options = parser.parse_args(given)
    specs = QUICK if options.quick else SPECS
    found = {spec: measure(spec, options.repeats) for spec in specs}
    rows, bars = [], []
    for spec, times in found.items():
        for which, asked in (("warm", WARM_S), ("cold", COLD_S)):
            wall = statistics.median(t[0] for t in times[which])
            cpu = statistics.median(t[1] for t in times[which])
            rows.append([spec, which, f"{wall:.2f} s", f"{cpu:.2f} s", str(len(times[which]))])
            text = f"{spec}, {which}: first gradient step"
            bars.append(Bar(text, f"{wall:.2f} s", f"at most {asked:g} s", wall <= asked))
    columns = ["spec", "caches", "wall, median", "CPU", "runs"]
    left_out = [spec for spec in SPECS if spec not in specs]
    return finish("start", columns, rows, bars, left_out, options.json, {"seconds": found})


if __name__ == "__main__":
    sys.exit(main())
