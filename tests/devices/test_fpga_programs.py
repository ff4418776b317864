"""Programs of the simulated FPGA's engines, their sizes and what plans are offered are as kept.

The slow tests of the engines hold these programs against the Verilog. `pytest --write
tests/devices/test_fpga_programs.py` writes `fpga_programs.json` anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import Device, Kernel, UnsupportedError, fpga, kernel
from pearl_devices.base import FigureError
from pearl_devices.buffers import allocate
from pearl_devices.fpga import export, tree_export
from pearl_devices.fpga.bench import (
    batch_stream,
    make_bound_rows,
    make_settings,
    parameters,
    rows_of,
)
from pearl_devices.fpga.export import golden_program
from pearl_devices.fpga.learner import LearnerProgram, acting, ddpg, dqn, transfer
from pearl_devices.fpga.program import Shape
from pearl_devices.fpga.resources import (
    TreeEngine,
    learner_memories,
    memory_blocks,
    misfit,
    needs_of,
    network_bits,
    on_chip,
    released_misfit,
    tree_engine,
    tree_engines,
)

FILE = Path(__file__).with_name("fpga_programs.json")
SMALL, WIDE = Shape(4, 1), Shape(8, 2, 5)
LEARNERS: dict[str, LearnerProgram] = {
    "dqn": dqn((4, 8, 8, 2), 4, True, SMALL),
    "plain dqn": dqn((5, 7, 3), 6, False, WIDE),
    "sub-batches": dqn((4, 8, 8, 2), 10, True, SMALL, 4),
    "plain sub-batches": dqn((9, 4), 12, False, SMALL, 8),
    "shipped": dqn((4, 64, 64, 2), 32, True, Shape(8, 8)),
    "ddpg": ddpg((3, 16, 1), (4, 16, 1), 6, SMALL),
    "ddpg in sub-batches": ddpg((3, 9, 2), (5, 9, 7, 1), 10, SMALL, 4),
    "ddpg of one layer": ddpg((7, 4), (11, 1), 5, WIDE),
    "acting": acting((4, 9, 3), 6, SMALL),
    "wide acting": acting((17, 5), 20, WIDE),
}


def digest(words: Any) -> str:
    """A digest of whole numbers."""
    return sha256(" ".join(str(int(w)) for w in words).encode()).hexdigest()[:16]


def stream(learner: LearnerProgram, step: int) -> list[int]:
    """The words of a batch, of constants of an update and of the bounds of actions."""
    act = learner.action
    widths = {name: net.widths for name, net in learner.nets.items()}
    sizes = {"obs": learner.observation, "act": act, "batch": learner.batch, "steps": 1, **widths}
    kind = "update.ddpg" if act else "update.dqn"
    arrays = allocate([kernel(kind, sizes if act else {**sizes, "double": 0})])
    for name, array in arrays.items():
        array[...] = (np.arange(array.size).reshape(array.shape) % 7 + len(name)) / 8
    arrays["hyper.adam"][:] = 0.5, 0.75, 1e-8
    arrays["hyper.target_every"][:] = 2 if step < 3 else 0
    words = batch_stream(learner, arrays, step).reshape(-1).tolist()
    words += [w for row in make_bound_rows(arrays) for w in row.tolist()] if act else []
    rows = rows_of(learner, {name: arrays[f"learner.{name}.m"] for name in learner.nets})
    words += [w for row in rows for w in row.tolist()]
    settings = make_settings(learner, arrays).values()
    return [*words, *np.array(list(settings), np.float32).view(np.uint32).tolist()]


def engine(learner: LearnerProgram) -> dict[str, Any]:
    moved = [i.word() for op in ("load", "store") for p in "BTMV" for i in transfer(learner, op, p)]
    return {
        "name": learner.name,
        "cycles": [i.cycles(learner.shape) for i in learner.program],
        "all": [learner.cycles, learner.beats, learner.blocks(), learner.rows_again],
        "parts": [[part.start, part.stop] for part in learner.sub_batches],
        "program": digest(i.word() for i in learner.program),
        "transfers": digest(moved),
        "golden": [digest(i.word() for i in golden_program(learner)), len(golden_program(learner))],
        "readme": digest(export.readme(learner, {"N": 4}, 12_345).encode()),
        "memories": learner_memories(learner),
        "parameters": parameters(learner),
        "streams": [digest(stream(learner, step)) for step in (1, 2, 3)]
        if "acting" not in learner.nets and learner.program[-3].op != "mul"
        else [],
    }


CARD = Device(
    "card", "fpga", width=4510, width_unit="pe", memory_bytes_per_s=77e9, simulated=True,
    figures={
        "clock_hz": 250e6, "ram_blocks": 7110, "ram_block_bits": 20480, "ram_word_bits": 40,
        "float32_cycles": 4, "alms": 487_200, "registers": 1_948_800,
    },
)  # fmt: skip


def card(width: int = 4510, **figures: float | None) -> Device:
    given = {n: v for n, v in {**CARD.figures, **figures}.items() if v is not None}
    return replace(CARD, width=width, figures=given)


RELEASED = replace(CARD, design="released")
CARDS: dict[str, Device] = {
    "whole": CARD, "few units": card(150), "few blocks": card(ram_blocks=160),
    "few cells": card(alms=30_000), "hardly any cells": card(alms=100),
    "hardly any registers": card(registers=100), "no logic": card(alms=None, registers=None),
    "slow blocks": card(float32_cycles=5), "soft blocks": card(float32_cycles=None),
    "two kinds": card(
        ram_blocks=200, ultraram_blocks=20, ultraram_block_bits=294_912, ultraram_word_bits=72
    ),
    "released": RELEASED, "small released": replace(RELEASED, width=41),
    "smaller released": replace(RELEASED, width=40), "tiny released": replace(RELEASED, width=5),
    "released, few blocks": replace(card(ram_blocks=20), design="released"),
}  # fmt: skip
RING: dict[str, Any] = {"envs": 4, "obs": 4, "act": 0, "capacity": 3000, "fanout": 8}
DRAW: dict[str, Any] = {**RING, "batch": 64, "steps": 1, "n_step": 1}
UPDATE: dict[str, Any] = {"obs": 4, "act": 0, "steps": 1, "double": 1}
OWN = kernel("update.own", obs=3, act=1, actor=(3, 1), batch=8, steps=1)
KERNELS: dict[str, Kernel] = {
    "dqn": kernel("update.dqn", UPDATE, q=(4, 64, 64, 2), batch=64),
    "much dqn": kernel("update.dqn", UPDATE, q=(4, 64, 64, 2), batch=400),
    "wide dqn": kernel("update.dqn", UPDATE, q=(4, 256, 256, 9), batch=256),
    "ddpg": kernel(
        "update.ddpg", obs=3, act=1, actor=(3, 32, 1), critic=(4, 32, 1), batch=64, steps=1
    ),
    "duelling": kernel("update.dqn", UPDATE, q=(4, 8, 3), batch=8, duelling=1),
    "sac": kernel("inference.sac", envs=4, obs=3, act=1, actor=(3, 8, 2)),
    "own": OWN,
    "act": kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 64, 2)),
    "learn": kernel("learn.dqn", {**DRAW, **UPDATE}, q=(4, 8, 2), prioritised=1),
    "insert": kernel("replay_insert", RING, prioritised=1),
    "sample": kernel("replay_sample", DRAW, prioritised=1),
    "ring": kernel("replay_sample", DRAW, prioritised=0),
    "frames": kernel("replay_sample", DRAW | {"obs": 12}, prioritised=1, stack=3, apart=4, ends=9),
    "many": kernel("replay_update", {**DRAW, "capacity": 20_000_000}),
    "copy": kernel("param_sync", params=5, args={"network": "q"}),
    "env": kernel("env_step", program="CartPole-v1", envs=4, obs=4, act=0),
    "gae": kernel("gae", envs=4, obs=4, act=0, horizon=8, tanh=1, critic=(4, 8, 1)),
}


def told(name: str) -> dict[str, Any]:
    """What a card offers for each kernel; the reason where this is nothing."""
    found: dict[str, Any] = {"unchecked": fpga.tell_unchecked(CARDS[name])}
    for which, k in KERNELS.items():
        offered = fpga.offers(k, CARDS[name])
        found[which] = list(offered) or repr(offered)
    return found


def draws(capacity: int) -> Kernel:
    return kernel("replay_update", {**DRAW, "capacity": capacity})


def trees() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for capacity in (2, 16, 17, 3000, 4096, 50_000, 16_777_216, 16_777_217):
        of = tree_engines(draws(capacity))
        found[str(capacity)] = [
            [t.fanout, t.depth, t.parameters(), t.memories(), t.misfit(CARD)] for t in of
        ]
        found[f"{capacity} files"] = [digest(tree_export.readme(t).encode()) for t in of]
    few, two = on_chip(card(ram_blocks=9)), on_chip(CARDS["two kinds"])
    sizes = [(1, 512, 40), (2, 513, 41), (3, 1024, 32), (1, 5000, 72)]
    found["blocks"] = [[memory_blocks(w, b, ram) for _, w, b in sizes] for ram in two]
    found["misfits"] = [misfit(sizes[:n], few, "it") for n in range(5)]
    found["fit"] = [misfit([(n, 4096, 72)], two, "it") for n in (20, 70, 71, 500)]
    found["needs"] = needs_of(TreeEngine(3000, 8).logic(), TreeEngine(3000, 8).memories())
    found["unknown"] = needs_of(None, [(3, 10, 8)])
    chosen = {n: tree_engine(draws(n), CARD) for n in (16, 60, 250, 4000, 50_000)}
    found["chosen"] = [[t.fanout, t.depth] for t in chosen.values()]
    few_cells = card(alms=chosen[50_000].logic().alms - 1)
    found["with fewer cells"] = tree_engine(draws(50_000), few_cells).fanout
    return found


def released() -> dict[str, Any]:
    networks = {n: network_bits(k) for n, k in KERNELS.items() if k.networks and "batch" in k.dims}
    cards = {"few": on_chip(card(ram_blocks=60)), "whole": on_chip(CARD)}
    misfits = {
        f"{n} {c}": released_misfit(KERNELS[n], memories)
        for n in ("dqn", "wide dqn", "sample", "many", "copy")
        for c, memories in cards.items()
    }
    return {"bits": networks, "misfits": misfits}


FOUND: dict[str, Callable[[], Any]] = {
    **{name: partial(engine, learner) for name, learner in LEARNERS.items()},
    **{f"on {name}": partial(told, name) for name in CARDS},
    "trees": trees,
    "released design": released,
}
KEPT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def test_the_programs_of_every_case_are_kept(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write"):
        lines = [f" {json.dumps(n)}: {json.dumps(made())}" for n, made in FOUND.items()]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    assert KEPT.keys() == FOUND.keys()


@pytest.mark.parametrize("name", FOUND)
def test_programs_sizes_and_offers_are_those_that_are_kept(name: str) -> None:
    assert json.loads(json.dumps(FOUND[name]())) == KEPT.get(name)


def engines(*variants: tuple[str, str, int]) -> list[tuple[Kernel, str, int]]:
    return [(KERNELS[name], variant, width) for name, variant, width in variants]


WHOLE = ("dqn", "array8", 100), ("sample", "integer-tree", 1)


@pytest.mark.parametrize(("device", "parts", "said"), [
    (CARD, WHOLE, ""),
    (CARD, (*WHOLE, ("insert", "integer-tree", 1), ("ring", "ring", 1)), ""),
    (card(ram_blocks=100), WHOLE, "the set of engines needs "),
    (card(alms=11_342 + 4693), WHOLE, ""),
    (card(alms=11_342 + 4692), WHOLE, "the set of engines needs 16,035 adaptive logic modul"),
    (card(alms=4693), WHOLE[1:], ""),
    (RELEASED, (("dqn", "layered", 9),), ""),
])  # fmt: skip
def test_engines_of_a_plan_that_do_not_fit_together_are_refused(
    device: Device, parts: Any, said: str
) -> None:
    found = fpga.crowding(device, engines(*parts))
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("variant", "width", "lanes"),
    [("array8", 100, 2), ("array8", 165, 2), ("array8", 166, 8), ("array8-sub8", 166, 8)],
)
def test_a_learner_has_as_many_lanes_as_fit(variant: str, width: int, lanes: int) -> None:
    found = fpga.learner_of(KERNELS["dqn"], CARD, variant, width)
    assert (found.shape, found.name) == (Shape(8, lanes), variant)


def test_what_is_no_engine_is_refused_with_those_there_are() -> None:
    for variant, width in (("array8", 99), ("array7", 4000), ("tree", 4000)):
        with pytest.raises(FigureError, match=rf"no engine '{variant}' of {width} pe computes it"):
            fpga.learner_of(KERNELS["dqn"], CARD, variant, width)
    with pytest.raises(UnsupportedError, match=r"'array8x': a simulated FPGA has the engines arr"):
        fpga.bind(KERNELS["dqn"], "array8x", {})
    with pytest.raises(UnsupportedError, match="released design has no Verilog here"):
        fpga.verilog(KERNELS["dqn"], RELEASED, "layered", 9)
    assert fpga.verilog(KERNELS["ring"], CARD, "ring", 1) is None
    assert fpga.verilog(KERNELS["insert"], CARD, "integer-tree", 1) is None
    for missing in ("clock_hz", "ram_blocks", "ram_block_bits", "ram_word_bits"):
        for value, what in ((None, f"has no figure '{missing}'"), (0.0, f"gives {missing} as 0")):
            with pytest.raises(FigureError, match=f"device 'card' of kind fpga {what}; it gives"):
                fpga.check(card(**{missing: value}))
    with pytest.raises(FigureError, match="has no figure 'ultraram_word_bits'"):
        fpga.check(card(ultraram_blocks=3, ultraram_block_bits=5))
    fpga.check(CARD)


@pytest.mark.parametrize(("make", "said"), [
    (lambda: dqn((4, 5), 8, False, SMALL), "computes at most 4 outputs, not 5"),
    (lambda: dqn((4, 4), 4096, False, SMALL), "a batch of 4096 rows: an engine supports at m"),
    (lambda: ddpg((3, 5), (8, 1), 4, SMALL), "computes at most 4 outputs, not 5"),
    (lambda: acting((4, 4), 4096, SMALL), "a batch of 4096 rows: an engine supports at most"),
    (lambda: dqn((4, 8, 2), 85, True, SMALL, 4), "in sub-batches of 4 needs 260 instructions"),
])  # fmt: skip
def test_a_learner_that_no_engine_holds_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
