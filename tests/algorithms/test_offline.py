"""Learning from a log: plain loops of numpy, the accuracy of int32, averages, logs and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pearl
from pearl.algorithms.families import offline
from pearl.errors import SpecError
from pearl_devices import Buffers, cpu, kernel
from pearl_devices.buffers import allocate
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.updates.offline import STRIDE

SIZES = {"FrozenLake-v1": (16, 4), "CliffWalking-v1": (48, 4)}
F = np.float32
FIELDS = ("state", "action", "reward", "next_state", "next_action", "terminated")


def log_of(env: str, rows: int) -> offline.Log:
    return offline.collected(env, (), rows, 3)


def spec(env: str = "FrozenLake-v1", **given: Any) -> dict[str, Any]:
    """A small system; keys of `given` that limits do not have are options of `offline`."""
    options = {"collect": 600, **given}
    name, averaging = options.pop("name", "q_learning"), options.pop("averaging", 1)
    states, actions = SIZES[env]
    return {
        "algorithm": {"name": name, "env": env, "spaces": {"states": states, "actions": actions},
                      "discount": 0.95, "learning_rate": 0.1, "offline": options},
        "platform": {"name": "one", "devices": {"cpu": "xeon_gold_6326"}},
        "limits": {"max_lanes": 1, "averaging": averaging},
        "train": {"steps": 1, "evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0},
    }  # fmt: skip


def learned(document: dict[str, Any], iterations: int = 1) -> Buffers:
    """The arrays after so many iterations of `pearl train --emulate`."""
    trainer = pearl.compile(document, emulate=True, seed=3)
    trainer.train(steps=iterations * trainer.session.compiled.graph.env_steps)
    return trainer.session.arrays


def visits(order: str, size: int, first: int, base: Any) -> list[int]:
    """Rows of a chunk in the order of a sweep, by definition."""
    if order == "seq":
        return list(range(size))
    if order == "str":
        return [i for start in range(STRIDE) for i in range(start, size, STRIDE)]
    return [int(uniform(base, first + i) * size) for i in range(size)]


def reference(log: offline.Log, arrays: Buffers, document: dict[str, Any], sweeps: int) -> Any:
    """Tables (chunks, S, A) after so many sweeps, in plain Python over numpy's float32."""
    a, chunks = document["algorithm"], document["algorithm"]["offline"].get("chunks", 1)
    order = a["offline"].get("order", "seq")
    shape = a["spaces"]["states"], a["spaces"]["actions"]
    tables = np.zeros((chunks, *shape), F)
    alpha, gamma, size = F(a["learning_rate"]), F(a["discount"]), len(log["state"]) // chunks
    key = arrays["rng.update"][0]
    for sweep in range(sweeps):
        base = np.uint64(stream_base(key, np.uint64(sweep)))
        for c in range(chunks):
            for k in visits(order, size, c * size, base):
                row = {field: numbers[c * size + k] for field, numbers in log.items()}
                target, ahead = F(row["reward"]), tables[c, row["next_state"]]
                if not row["terminated"]:
                    on = a["name"] == "sarsa"
                    target += gamma * (ahead[row["next_action"]] if on else ahead.max())
                at = c, row["state"], row["action"]
                tables[at] += alpha * (target - tables[at])
        if (sweep + 1) % document["limits"]["averaging"] == 0:
            tables[:] = (sum(t.astype(np.float64) for t in tables) / chunks).astype(F)
    return tables


@pytest.mark.parametrize("order", ["seq", "str", "ran"])
@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_chunks_equal_a_reference_in_numpy(name: str, order: str) -> None:
    document = spec("CliffWalking-v1", name=name, order=order, chunks=7, averaging=2)
    arrays = learned(document, iterations=2)
    log = log_of("CliffWalking-v1", 600)
    assert len(arrays["log.state"]) == 595  # the rest of 600 by 7 belongs to no chunk
    expected = reference(log, arrays, document, sweeps=4)
    assert arrays["learner.tables"].tobytes() == expected.tobytes()
    assert np.array_equal(arrays["policy.q"], expected[0])


@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_a_sweep_is_the_plain_loop_in_its_arithmetic_with_the_loss_of_its_errors(name, bits):
    """Whole numbers, whose products are rounded to nearest, or float32."""
    sizes = {"states": 3, "actions": 2, "obs": 1, "act": 0, "batch": 70, "chunks": 2}
    k, random = kernel(f"offline.{name}", sizes, bits=bits, order=1), np.random.default_rng(1)
    b = allocate([k])
    for field, most in (("state", 3), ("next_state", 3), ("action", 2), ("next_action", 2)):
        b[f"log.{field}"][:] = random.integers(0, most, 70)
    b["log.reward"][:] = random.integers(-300, 300, 70)
    b["log.terminated"][:] = random.random(70) < 0.2
    b["learner.tables"][:] = random.integers(-500, 500, (2, 3, 2))
    b["hyper.lr.q"][:], b["hyper.discount"][:], b["rng.update"][1] = 0.3, 0.9, 5
    tables, squares = b["learner.tables"].copy(), 0.0
    alpha, gamma = (round(x * 256) if bits else F(x) for x in (0.3, 0.9))
    for c in range(2):
        for i in visits("str", 35, 0, 0):
            at = {field: b[f"log.{field}"][35 * c + i] for field in FIELDS}
            values = [int(v) if bits else v for v in tables[c, at["next_state"]]]
            ahead = values[at["next_action"]] if name == "sarsa" else max(values)
            target, entry = at["reward"], tables[c, at["state"]]
            if not at["terminated"]:
                ahead = gamma * ahead
                target = target + (ahead + 128 >> 8 if bits else ahead)
            error = target - (int(entry[at["action"]]) if bits else entry[at["action"]])
            moved = alpha * int(error) + 128 >> 8 if bits else alpha * error
            entry[at["action"]] += moved
            squares += float(error) ** 2
    cpu.bind(k, "native", b)()
    np.testing.assert_array_equal(b["learner.tables"], tables)
    assert b["loss.q"][0] == pytest.approx(0.5 * squares / 70 / 4**bits)
    assert (b["rng.update"][1], b["learner.step"][0]) == (6, 1)


def test_tables_of_int32_are_averaged_to_the_nearest_number() -> None:
    k = kernel(
        "offline.average", states=1, actions=3, obs=1, act=0, batch=4, chunks=4, bits=4, order=0
    )
    arrays = allocate([k])
    arrays["learner.tables"][:, 0] = [[1, -3, 2], [1, -3, 2], [1, -3, 2], [4, 1, 4]]
    cpu.bind(k, "native", arrays)()
    assert arrays["learner.tables"][:, 0].tolist() == [[2, -2, 2]] * 4  # of 1.75, -2 and 2.5
    assert arrays["policy.q"].tolist() == [[2 / 16, -2 / 16, 2 / 16]]


@pytest.mark.parametrize("env", SIZES)
@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_int32_is_within_a_hundredth_of_fp32(env: str, name: str) -> None:
    found = {}
    for numbers in ("fp32", "int32"):
        given = {"collect": 20_000, "chunks": 4, "averaging": 5, "scale": 2**20}
        document = spec(env, name=name, format=numbers, **given)
        found[numbers] = learned(document, iterations=4)["policy.q"]
    assert np.abs(found["fp32"]).max() > 0.1
    assert np.abs(found["int32"] - found["fp32"]).max() <= 1e-2
    assert not np.array_equal(found["int32"], found["fp32"])


def test_a_log_of_a_file_is_learned_from_like_one_that_was_collected(tmp_path: Path) -> None:
    file = tmp_path / "log.npz"
    np.savez(file, **log_of("FrozenLake-v1", 600))
    document = spec(name="sarsa", chunks=3)
    whole = learned(document)["learner.tables"].copy()
    document["algorithm"]["offline"] = {"data": str(file), "chunks": 3}
    assert np.array_equal(learned(document)["learner.tables"], whole)


def wrong(tmp_path: Path, **changed: Any) -> str:
    """A log of four transitions with these fields changed; a field that is None is left out."""
    fields = {f: np.arange(4) for f in ("state", "action", "next_state")}
    fields |= {"reward": np.ones(4), "terminated": np.zeros(4, bool), **changed}
    file = tmp_path / "wrong.npz"
    np.savez(file, **{f: v for f, v in fields.items() if v is not None})
    return str(file)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"state": np.array([0, 1, 2, 16])},
      "state has int64 numbers from 0 to 16; .* from 0 to 15: log"),
     ({"next_state": np.array([-1, 1, 2, 3])}, "next_state has int64 numbers from -1 to 3"),
     ({"action": np.array([0, 1, 2, 4])}, "action has int64 numbers from 0 to 4; .* from 0 to 3"),
     ({"reward": np.array([0, 1, np.nan, 0])}, "a reward is not finite"),
     ({"reward": None}, "it lacks reward; q_learning needs .* state, action, reward"),
     ({"reward": np.ones(3)}, "one axis of one length is needed"),
     ({"state": np.ones(4)}, "state has float64 numbers from 1.0"),
     ({"state": np.array([None] * 4)}, "pickle")],
)  # fmt: skip
def test_a_log_that_does_not_fit_is_refused(tmp_path, changed, said):
    document = spec()
    document["algorithm"]["offline"] = {"data": wrong(tmp_path, **changed)}
    with pytest.raises(SpecError, match=f"algorithm.offline.data: .*{said}"):
        pearl.plan(pearl.load(document))


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    document = spec()
    for name, content in (("none", None), ("empty", b""), ("text", b"state,action\n0,1\n")):
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        document["algorithm"]["offline"] = {"data": str(file)}
        with pytest.raises(SpecError, match=r"offline.data: .*; q_learning needs a .npz file with"):
            pearl.plan(pearl.load(document))
    np.save(tmp_path / "one.npy", np.ones(4))
    document["algorithm"]["offline"] = {"data": str(tmp_path / "one.npy")}
    with pytest.raises(SpecError, match=r"q_learning needs a .npz file with state"):
        pearl.plan(pearl.load(document))


def test_sarsa_needs_the_next_actions_and_chunks_a_transition_each(tmp_path: Path) -> None:
    document = spec(name="sarsa")
    document["algorithm"]["offline"] = {"data": wrong(tmp_path)}
    with pytest.raises(SpecError, match="it lacks next_action; sarsa needs"):
        pearl.plan(pearl.load(document))
    document = spec()
    document["algorithm"]["offline"] = {"data": wrong(tmp_path), "chunks": 5}
    with pytest.raises(SpecError, match=r"4 transitions, and .*chunks is 5: .* fewer chunks"):
        pearl.plan(pearl.load(document))


def test_a_scale_by_which_a_table_could_overflow_is_refused_with_one_that_fits() -> None:
    document = spec("CliffWalking-v1", format="int32", scale=2**24)
    said = (
        r"scale: given 16777216; with rewards from -100 to -1 .* take scale 1048576, or format fp32"
    )
    with pytest.raises(SpecError, match=said):
        pearl.compile(document, emulate=True)
    document["algorithm"]["offline"]["scale"] = 1048576
    pearl.compile(document, emulate=True)
