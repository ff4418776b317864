"""Published figures, and what the models say of each."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.estimators.published_assumed import Point
from benchmarks.estimators.published_cards import card, catalogued, cpus, host
from pearl_devices import Device, Kernel, kernel
from pearl_estimators import estimate
from pearl_estimators.gpu import queue, variants
from pearl_estimators.gpu.queue import Rates, moved_s, product_s
from pearl_estimators.host.probe import REFERENCE as CPU_PROBE

TUNED = ("L02", "L06", "K26", "W01")
"""Points that sit in the models' constants: never held out."""

SIZES: Mapping[str, tuple[int, int]] = {
    "halfcheetah": (17, 6),
    "pendulum": (3, 1),
    "lunarlandercontinuous": (8, 2),
    "isaac-cartpole": (4, 1),
    "cartpole": (4, 2),
    "isaac-ant": (60, 8),
    "isaac-humanoid": (87, 21),
    "velocity-flat-anymal": (48, 12),
    "velocity-rough-g1": (310, 37),
    "velocity-rough": (235, 12),
}
"""Part of an environment's name → components of observation and action."""
UNKNOWN = (32, 8)
"""Of other environments: assumed; hidden layers decide."""
ENV_S = 67e-6
"""An environment that nobody timed, as the models have it."""


@dataclass(frozen=True)
class Constants:
    """What is fitted to published points: `gpu.queue.RATES`, and of `gpu.variants` LATER_S and
    operator_s. gradient_s: of `gpu.variants`; host_power: HOST_POWER; l4_share: the
    `sustained_share` of an L4."""

    rates: Rates
    later_s: float
    operator_s: float
    gradient_s: float
    host_power: float
    l4_share: float

    @classmethod
    def shipped(cls) -> Constants:
        """Those that plans have."""
        share = catalogued("l4", "gpu").figures["sustained_share"]
        starts = variants.ASSUMED
        return cls(
            queue.RATES, variants.LATER_S, starts.operator_s, starts.gradient_s,
            variants.HOST_POWER, share,
        )  # fmt: skip


RETYPED = Path(__file__).parent / "retyped.csv"
"""Figures that this repository states by itself. Times of an iteration's training (I01 to I03) are
the differences of the two rates that are counted. Of the same page three more (a G1 on an L40, a
Shadow Hand on both cards) are left out: two digits leave 50 %."""

UNITS = {"us": (1e-6, "s"), "ms": (1e-3, "s"), "s": (1.0, "s"), "env steps/s": (1.0, "1/s")}


def read(path: Path) -> list[Point]:
    """The times and rates of a table; watts and shares are `benchmarks.estimators power`'s."""
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["unit"] not in UNITS:
                continue
            scale, unit = UNITS[line["unit"]]
            row: dict[str, Any] = {n: (line[n] or "").strip() for n in line if n is not None}
            row |= {"value": scale * float(line["value"]), "unit": unit, "name": line["id"]}
            found.append(Point(**{n: row[n] for n in Point.__dataclass_fields__}))
    return found


Said = Callable[[Constants], float]
"""Constants → the predicted value."""


def predicted(point: Point) -> Said | str:
    """What the models say, or why they say nothing."""
    if re.search("empty kernel|[lL]aunch|more in a stream|direct against graph|replay", point.what):
        return _start(point)
    if point.sort == "2":
        return _loop(point)
    return _operator(point)


def _start(point: Point) -> Said | str:
    what = point.what
    if "graph" in what and "empty" in what:
        return lambda c: c.rates.element_s
    if "synchronise" in what:
        return lambda c: 5e-6 + c.rates.element_s
    if "empty kernels one by one" in what:
        return lambda c: c.rates.element_s + c.rates.stream_s
    if "more in a stream" in what or "direct against graph" in what:
        return lambda c: c.rates.stream_s
    if re.search(r"cudaLaunchKernel|one launch, eager|launch overhead of one", what):
        return lambda c: c.later_s
    return "the host's time alone is not modelled"


def _numbers(text: str) -> float | None:
    """How many numbers an operator works on."""
    if "512x512" in text:
        return 512.0 * 512
    if re.search("about 1 million", text):
        return 2.0**20
    found = re.search(r"([\d,]+) numbers|\((\d+) numbers\)", text)
    return float((found[1] or found[2]).replace(",", "")) if found else None


def _operator(point: Point) -> Said | str:
    what = point.what
    if "float16" in point.precision and "matmul" not in what:
        return "tensor cores are not modelled"
    device = card(point.gpu)
    if "CPU" in what and point.gpu == "none":
        share = CPU_PROBE.gradient_s if "with gradient" in what else CPU_PROBE.operator_s
        return lambda c: share
    if device is None:
        return f"{point.gpu} is not described here"
    if shape := re.search(r"product (\d+)x(\d+)x(\d+)", what):
        m, k, n = (int(side) for side in shape.groups())

        def of_product(c: Constants) -> float:
            share = device.figures.get("sustained_share", 1.0)
            share = c.l4_share if device.model == "NVIDIA L4" else share
            least_s = 2.0 * m * k * n / (share * device.peak_flops_per_s)
            beyond_s = max(*product_s(device, (m, k, n), device.width, c.rates), least_s)
            return c.rates.product_s + beyond_s

        return of_product
    if (
        re.search(r"^(torch|eager activation|own operation|matmul)", what)
        and "layer norm" not in what
    ):
        if "compile" in what:
            return "torch.compile is not modelled"
        times = 2 if "matmul + add" in what else 1
        numbers = _numbers(what) or 1.0

        def of_torch(c: Constants) -> float:
            host_s = times * (c.later_s + c.operator_s)
            work_s = c.rates.element_s + c.rates.stream_s
            work_s += moved_s(device, 12 * numbers, device.width, c.rates)
            return host_s + work_s if "synchronised" in what else max(host_s, times * work_s)

        return of_torch
    if "broadcast kernels" in what:
        count = 80
        if "one by one" in what:
            return lambda c: count * max(c.later_s, c.rates.element_s + c.rates.stream_s)
        return lambda c: 6e-6 + count * c.rates.element_s
    if "element-wise kernel" in what or "operation in a graph" in what:
        return lambda c: c.rates.element_s
    if "matmul and add" in what:
        return lambda c: 0.5 * (
            c.rates.product_s + sum(product_s(device, (64, 64, 64), device.width, c.rates))
            + c.rates.element_s
        )  # fmt: skip
    if (numbers_of := _numbers(what)) is not None and re.search("add|relu|sum of|modify", what):
        arrays = 3 if "add" in what else 1 if "sum of" in what else 2
        alone = 0.0 if "in a graph" in what or "sum of" in what else 1.0

        def of_elements(c: Constants) -> float:
            moved = moved_s(device, 4 * arrays * numbers_of, device.width, c.rates)
            if "modify" in what:  # in place: half of the bytes have to lie in the cache
                moved = 2 * moved_s(device, 4 * numbers_of, device.width, c.rates)
            return c.rates.element_s + alone * c.rates.stream_s + moved

        return of_elements
    return "its sizes or its operators are not known"


def _variant(framework: str) -> str | None:
    low = framework.lower()
    if "cuda" in low and "graph" in low:
        return "graph"
    if "compile" in low or "jax" in low or "inductor" in low:
        return None
    return "eager"


def _kernels(point: Point) -> tuple[Kernel, Kernel, int] | None:
    """A gradient step, the inference of a vector step, and the steps that the former has."""
    hidden = tuple(int(w) for w in re.findall(r"\d+", re.split("[ ,;(]", point.network)[0]))
    batch = int(point.batch.replace(",", "")) if re.fullmatch(r"[\d,]+", point.batch) else 0
    words = point.algorithm.lower().split()
    if not (hidden and batch and words and re.match(r"\d+(-\d+)+\b", point.network)):
        return None
    envs = int(point.envs.replace(",", "")) if re.fullmatch(r"[\d,]+", point.envs) else 1
    name, env = words[0], " ".join(words[1:])
    obs, act = next((s for part, s in SIZES.items() if part in env), UNKNOWN)
    base: dict[str, Any] = {"obs": obs, "act": act, "batch": batch}
    actor, critic = (obs, *hidden, act), (obs + act, *hidden, 1)
    acting: dict[str, Any] = {"obs": obs, "act": act, "envs": envs}
    program = f"pearl.algorithms.{name}:losses"
    steps = 1
    if name == "sac":
        nets: dict[str, Any] = {
            "actor": (obs, *hidden, 2 * act),
            "critic1": critic,
            "critic2": critic,
        }
        update = kernel("update.sac", program=program, steps=1, alpha=(0, 1), **nets, **base)
        acts = kernel("inference.sac", actor=nets["actor"], **acting)
    elif name == "td3":
        steps = 2
        nets = {"actor": actor, "critic1": critic, "critic2": critic}
        update = kernel("update.td3", program=program, steps=2, policy_delay=2, **nets, **base)
        acts = kernel("inference.td3", actor=actor, **acting)
    elif name == "ddpg":
        update = kernel("update.ddpg", program=program, steps=1, actor=actor, critic=critic, **base)
        acts = kernel("inference.ddpg", actor=actor, **acting)
    elif name == "dqn":
        q = (obs, *hidden, act)
        update = kernel(
            "update.dqn", program=program, steps=1, q=q, obs=obs, act=0, batch=batch, double=1
        )
        acts = kernel("inference.dqn", q=q, obs=obs, act=0, envs=envs)
    elif name in ("ppo", "a2c"):
        sizes: dict[str, Any] = {
            "actor": actor,
            "critic": (obs, *hidden, 1),
            "tanh": 1,
            "horizon": batch,
        }
        update = kernel(
            f"update.{name}", program=program, steps=1, epochs=1, envs=1, **sizes, **base
        )
        acts = kernel("inference.ppo", actor=actor, tanh=1, **acting)
    else:
        return None
    return update, acts, steps


def _silent(point: Point) -> str:
    """Why a loop is not predicted."""
    name = (point.algorithm.lower().split() or ["an algorithm that is not stated"])[0]
    if "CNN" in point.network or "Atari" in point.algorithm:
        return "convolutions are not modelled"
    if name not in ("sac", "td3", "ddpg", "dqn", "ppo", "a2c"):
        return f"{name} is not modelled"
    known = {"network": point.network, "batch": point.batch}
    lacking = [n for n, text in known.items() if not re.match(r"\d", text)]
    return f"{' and '.join(lacking)} not stated, and no default of its library is known here"


THREADS = ("torch", "torch-2", "torch-4", "torch-8")


def _loop(point: Point) -> Said | str:
    found, variant = _kernels(point), _variant(point.framework)
    if found is None:
        return _silent(point)
    if variant is None:
        return f"{point.framework} is not modelled"
    update, acts, steps = found
    on_cpu = point.gpu.lower() in ("none", "")
    devices = cpus(point.cpu) if on_cpu else [d for d in (card(point.gpu),) if d]
    if not devices:
        return f"{point.cpu if on_cpu else point.gpu} is not described here"
    counted = re.search(r"([\d,]+) gradient steps", point.counts)
    gradients = float(counted[1].replace(",", "")) if counted else 1.0

    def seconds(c: Constants, k: Kernel, way: str, device: Device) -> float:
        if on_cpu:
            return estimate(k, device, variant=way, width=int(way[6:] or 1)).latency_s
        beside, starts = host(point.cpu), variants.ASSUMED
        hz = beside.figures["clock_hz"] if beside else variants.HOST_HZ
        slower = (variants.HOST_HZ / hz) ** c.host_power
        starts = replace(
            starts, operator_s=slower * c.operator_s, gradient_s=slower * c.gradient_s,
            gap_s=c.rates.element_s,
        )  # fmt: skip
        return variants.gpu_roofline(k, device, way, device.width, starts, c.rates).latency_s

    def step_s(c: Constants, way: str, device: Device) -> float:
        return seconds(c, update, way, device) / steps

    every = re.search(r"gradient steps an? ([\d,]+) env steps", point.counts)

    def rate(c: Constants, way: str, device: Device) -> float:
        vector_steps, acted = 1.0, float(acts.dim("envs"))
        if every:
            vector_steps = float(every[1].replace(",", "")) / acts.dim("envs")
            acted *= vector_steps
        # A figure that includes more bounds the model without its environments too.
        env_s = acts.dim("envs") * ENV_S if point.role == "direct" else 0.0
        acting_s = seconds(c, acts, "torch" if on_cpu else way, device) + env_s
        return acted / (gradients * step_s(c, way, device) + vector_steps * acting_s)

    def quantity(c: Constants, way: str, device: Device) -> float:
        if point.unit == "1/s":
            return rate(c, way, device)
        if point.what.startswith("inference"):
            return seconds(c, acts, way, device)
        return step_s(c, way, device) * (1.0 if "gradient step" in point.what else gradients)

    known = r"gradient step|training part|training time|learn|^inference"
    if point.unit != "1/s" and not re.search(known, point.what):
        return "the quantity is not one of the models'"
    ways = [variant] if not on_cpu else THREADS if point.role == "direct" else ["torch"]

    def nearest(c: Constants) -> float:
        """Of a range, of which nobody says where the figure is, the nearest to the figure."""
        said = [quantity(c, way, device) for device in devices for way in ways]
        return min(max(point.value, min(said)), max(said))

    return nearest
