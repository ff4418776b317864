"""SwiftRL (Gogineni et al. 2024, arXiv 2405.03967): tabular learning on UPMEM's memory.

Seconds of DPUs and of the CPU of a data sheet are modelled; both are parts of plans. Tables are
learned by simulated DPUs, which compute on this host. The success of a greedy policy is exact: the
probability, by the environment's own transitions, to reach the goal within an episode's limit.
"""

from __future__ import annotations

import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import pearl
from benchmarks.bars import Bar, Part, at_least, at_most
from benchmarks.literature import COLUMNS, command
from pearl.algorithms.families.offline import build, collected
from pearl_devices import cpu
from pearl_devices.buffers import allocate
from pearl_estimators import estimate

SYSTEM = "SwiftRL"
ENVS = {"FrozenLake-v1": (16, 4), "CliffWalking-v1": (48, 4)}
PLATFORM: dict[str, Any] = {
    "name": "xeon_upmem",
    "host": "cpu",
    "devices": {"cpu": "xeon_gold_6326", "pim": "upmem_2556"},
    "links": [{"between": ["cpu", "pim"], "latency": "20 us", "bandwidth": "6 GB/s"}],
}
SWEEPS, LIMIT = 100, 100
"""Sweeps of a run, and env steps of an episode of FrozenLake (gymnasium)."""
SCALE = 2**20
"""Of int32: the largest power of two that CliffWalking's rewards allow at a discount of 0.95."""
DPUS, TAUS = (1, 125, 2000), (1, 2, 10, 50)


def system(env: str = "FrozenLake-v1", **given: Any) -> pearl.System:
    """Offline learning. Beside keys of `offline`: tau, device, tasklets, name and discount."""
    options: dict[str, Any] = {"collect": 1_000_000, **given}
    tau, device = options.pop("tau", 1), options.pop("device", None)
    tasklets, name = options.pop("tasklets", None), options.pop("name", "q_learning")
    discount = options.pop("discount", 0.99)
    states, actions = ENVS[env]
    spec: dict[str, Any] = {
        "algorithm": {
            "name": name,
            "env": env,
            "spaces": {"states": states, "actions": actions},
            "discount": discount,
            "learning_rate": 0.1,
            "offline": options,
        },
        "platform": PLATFORM,
        "limits": {"averaging": tau, **({"pin": {"learn": device}} if device else {})},
    }
    if tasklets:
        raw = pearl.load(spec).raw
        raw["platform"]["devices"]["pim"]["figures"]["tasklets"] = tasklets
        spec = dict(raw)
    return pearl.load(spec)


def period_s(**given: Any) -> float:
    return pearl.plan(system(device="pim", **given)).period_s


def learned(found: pearl.System, sweeps: int, seed: int) -> tuple[np.ndarray[Any, Any], float]:
    """The averaged table after so many sweeps, and CPU-seconds of an update on this host."""
    graph = build(found.algorithm.name, found)
    sweep, average = (task.kernel for task in graph.tasks)
    arrays = allocate([sweep, average])
    rows, scale = sweep.dim("batch"), 2.0 ** sweep.dim("bits")
    log = collected(found.env.id, (), found.algorithm.offline.collect, seed)
    for field, numbers in log.items():
        array = arrays[f"log.{field}"]
        scaled = numbers[:rows] * (scale if field == "reward" else 1.0)
        array[:] = np.rint(scaled) if array.dtype.kind == "i" else scaled
    a = found.algorithm
    arrays["hyper.lr.q"][:], arrays["hyper.discount"][:] = a.learning_rate, a.discount
    learn, mean = cpu.bind(sweep, "native", arrays), cpu.bind(average, "native", arrays)
    start = time.process_time()
    for done in range(1, sweeps + 1):
        learn()
        if done % found.limits.averaging == 0:
            mean()
    return arrays["policy.q"], (time.process_time() - start) / (sweeps * rows)


def success(table: np.ndarray[Any, Any]) -> float:
    """Probability that the greedy policy reaches the goal of slippery FrozenLake in time."""
    made: Any = gymnasium.make("FrozenLake-v1")
    moves, actions = made.unwrapped.P, table.argmax(axis=1)
    value = np.zeros(len(moves))
    for _ in range(LIMIT):
        outcomes = [moves[s][actions[s]] for s in range(len(moves))]
        value = np.array([sum(p * (r + (not o) * value[n]) for p, n, r, o in x) for x in outcomes])
    return float(value[0])


def error(table: np.ndarray[Any, Any]) -> float:
    """Largest distance of a table from the optimal one (value iteration)."""
    made: Any = gymnasium.make("FrozenLake-v1")
    moves, best = made.unwrapped.P, np.zeros((16, 4))
    for _ in range(3000):
        value = best.max(axis=1)
        best = np.array(
            [
                [sum(p * (r + 0.99 * (not o) * value[n]) for p, n, r, o in x) for x in row.values()]
                for row in moves.values()
            ]
        )
    return float(np.abs(table - best).max())


def crossovers(rows: list[int]) -> tuple[list[list[str]], int]:
    """Least log from which plans take PIM, by τ and format; plans that enumeration contradicts."""
    found, wrong = [], 0
    for numbers, tau in product(("fp32", "int32"), (1, 10, 50)):
        first = None
        for size in rows:
            free = system(collect=size, chunks=2000, tau=tau, format=numbers)
            kernels = [t.kernel for t in build("q_learning", free).tasks]
            costs = {}
            for device in free.platform.devices:
                sweep, average = (estimate(k, device).latency_s for k in kernels)
                costs[device.name] = tau * sweep + average
            chosen = {t.device for t in pearl.plan(free).tasks}
            wrong += chosen != {min(costs, key=lambda name: costs[name])}
            if first is None and chosen == {"pim"}:
                first = size
        least = f"{first:,}" if first else f"above {rows[-1]:,}"
        found.append([f"{numbers}, τ = {tau}", f"at most {least}" if first == rows[0] else least])
    return found, wrong


def run(quick: bool, data: Path | None) -> Part:
    """The part. quick: one seed and a log of a tenth."""
    bars: list[Bar] = []
    rows: list[list[str]] = []
    values: dict[str, Any] = {}

    def row(claimed: str, here: str, how: str) -> None:
        rows.append([SYSTEM, claimed, here, how, command("pim")])

    for numbers in ("fp32", "int32"):
        times = {
            tau: period_s(chunks=125, tau=tau, format=numbers)
            / period_s(chunks=2000, tau=tau, format=numbers)
            for tau in (50, 10, 1)
        }
        values[f"scaling {numbers}"] = times
        told = ", ".join(f"{by:.1f}× at τ = {tau}" for tau, by in times.items())
        row("near-linear scaling, 125 to 2,000 cores", f"{numbers}: {told} of 16×", "modelled")
        bars.append(at_least(f"scaling of {numbers} at τ = 50", times[50], 14, "{:.1f}"))
        falls = times[50] > times[10] > times[1]
        bars.append(Bar(f"scaling of {numbers} falls to τ = 1", told, "falling", falls))
    wide = {n: period_s(chunks=2000, tau=50, tasklets=n) for n in (1, 4, 8, 11, 16, 24)}
    values["tasklets"] = wide
    told = ", ".join(f"{n}: {1e3 * s:.0f} ms" for n, s in wide.items())
    row("11 tasklets fill a DPU", f"an iteration at τ = 50 by tasklets: {told}", "modelled")
    flat = wide[11] == wide[16] == wide[24]
    bars.append(Bar("no gain beyond 11 tasklets", told, "flat", flat))
    both = period_s(chunks=2000, tau=50) / period_s(chunks=2000, tau=50, format="int32")
    row("INT32 spares float by software", f"int32 {both:.1f}× fp32 at 2,000 DPUs", "modelled")

    size, seeds = (100_000, (0,)) if quick else (1_000_000, (0, 1, 2))
    least: dict[tuple[int, int], list[float]] = {}
    cost = []
    for seed, dpus, tau in product(seeds, DPUS, TAUS):
        table, seconds = learned(system(collect=size, chunks=dpus, tau=tau), SWEEPS, seed)
        least.setdefault((dpus, tau), []).append(success(table))
        values[f"seed {seed}, {dpus} DPUs, tau {tau}"] = [success(table), error(table)]
        cost.append(seconds)
    for dpus in DPUS:
        told = ", ".join(f"{min(least[dpus, tau]):.3f} at τ = {tau}" for tau in TAUS)
        off = ", ".join(
            f"{max(values[f'seed {s}, {dpus} DPUs, tau {tau}'][1] for s in seeds):.3f}"
            for tau in TAUS
        )
        here = f"{dpus:,} DPUs, {size:,} steps: success {told}; error of values {off}"
        row("learns as well as one core", here, "simulated")
        if dpus < 2000:
            worst = min(x for tau in TAUS for x in least[dpus, tau])
            bars.append(at_least(f"success with {dpus} DPUs, any τ, any seed", worst, 0.70))
    row("", f"this host's CPU: {1e9 * statistics.median(cost):.1f} ns an update", "measured")
    for env, name in product(ENVS, ("q_learning", "sarsa")):
        given: dict[str, Any] = {"collect": size, "chunks": 125, "tau": 10, "name": name}
        given |= {"scale": SCALE, "discount": 0.95}
        tables = [
            learned(system(env, format=numbers, **given), 20, 0)[0] for numbers in ("fp32", "int32")
        ]
        largest = float(np.abs(tables[0]).max())
        apart = float(np.abs(tables[1] - tables[0]).max())
        values[f"int32 {env} {name}"] = [apart, largest]
        here = (
            f"{name}, {env}: int32 within {apart:.2g} of fp32, whose largest value is {largest:.3g}"
        )
        row("INT32 keeps the quality", here, "simulated")
        bars.append(at_most(f"int32 against fp32, {name}, {env}", apart, 1e-2, "{:.2g}"))
    sizes = [2000 * 4**n for n in range(3 if quick else 6)]
    found, wrong = crossovers(sizes)
    told = "; ".join(f"{what}: {first}" for what, first in found)
    row("PIM beats the CPU on large logs", f"least log on PIM, one CPU core: {told}", "modelled")
    plans = f"{wrong} of {6 * len(sizes)} plans differ"
    bars.append(Bar("plans are those of enumeration", plans, "0", wrong == 0))
    values["crossovers"] = found
    return Part("literature: SwiftRL (arXiv 2405.03967)", COLUMNS, rows, bars, values=values)
