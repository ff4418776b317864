"""Slices: two kernels on SMs of their own against taking turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from benchmarks.gpu.target import Case, Target
from pearl_devices import UnsupportedError, kernel
from pearl_devices.gpu.slices import GreenContexts, HostSlices, Slice
from pearl_devices.gpu.streams import streams_of
from pearl_estimators.gpu.timing import call_on

FASTER = 1.3
FIRINGS = 200


def run(target: Target) -> list[Case]:
    return [_slices(target)]


def _slices(target: Target) -> Case:
    """Environments on one slice and gradient steps on another, as many firings of each, against
    one stream for both."""
    small = target.stand_in
    acts = kernel("env_step", program="CartPole-v1", envs=64 if small else 16_384, obs=4, act=0)
    q = (4, 16, 2) if small else (4, 512, 512, 2)
    sizes = {"obs": 4, "act": 0, "q": q, "batch": 16 if small else 1024, "steps": 1, "double": 1}
    learns = kernel("update.dqn", sizes, program="pearl.algorithms.dqn:losses")
    calls = call_on(target.driver, acts, "cuda"), call_on(target.driver, learns, "eager")
    half = max(1, target.device.width // 2)
    slicer: Any = HostSlices(target.device.width, grain=1)
    if not small:
        try:
            slicer = GreenContexts(target.driver.device)
        except UnsupportedError as error:
            return Case("two slices", False, {}, asked=f">= {FASTER} x", note=str(error))
    try:
        cut = slicer.cut([half, half])
        counts = {"slices": len(cut), "sms": sum(each.sms for each in cut)}
        if small:
            for call in calls:
                call()
            return Case("two slices", counts["sms"] == 2 * half, counts)
        turns_s = _took(target, [calls], [nullcontext()])
        sliced_s = _took(target, [(call,) for call in calls], [_on(each) for each in cut])
        gained = turns_s / sliced_s
        return Case("two slices", gained >= FASTER, counts, {"gain": gained}, f">= {FASTER} x")
    finally:
        slicer.close()


def _on(each: Slice) -> AbstractContextManager[Any]:
    import torch

    found: AbstractContextManager[Any] = torch.cuda.stream(each.stream)
    return found


def _took(
    target: Target,
    calls: list[tuple[Callable[[], object], ...]],
    places: list[AbstractContextManager[Any]],
) -> float:
    """Seconds of FIRINGS of all calls, those of a place in its order."""
    queue = streams_of(target.driver.device)
    queue.finish()
    begin = time.perf_counter()
    for group, place in zip(calls, places, strict=True):
        with place:
            for _ in range(FIRINGS):
                for call in group:
                    call()
    queue.finish()
    return time.perf_counter() - begin
