"""Every bound of a spec from both sides: what lies on it is read, what lies beyond is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pearl.errors import SpecError
from pearl.spec.reading import _sort_lines, load
from pearl.spec.yaml_reader import MAX_BYTES, MAX_DEPTH, MAX_NODES, parse, plain, read_bytes
from pearl_devices import Device, Platform

BASE: dict[str, Any] = {"name": "dqn", "env": "Nowhere-v0", "spaces": {"obs": 4, "actions": 2},
                        "num_envs": 8, "batch_size": 32, "learning_starts": 32,
                        "replay": {"capacity": 64}}  # fmt: skip


def refused(algorithm: dict[str, Any], limits: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        load({"algorithm": algorithm, "limits": limits})
    (line,) = caught.value.problems
    return line


PPO = {"name": "ppo", "env": "E-v0", "spaces": {"obs": 4, "actions": 2}, "num_envs": 3}


@pytest.mark.parametrize(
    ("limits", "lanes"),
    [({}, 1), ({"learners": 1}, 1), ({"learners": 2}, None), ({"learners": 2, "max_lanes": 2}, 2)],
)
def test_one_learner_on_this_host_has_one_lane(limits, lanes, monkeypatch):
    cpu = Device("cpu", "cpu", width=2, max_lanes=2)
    monkeypatch.setattr("pearl.spec.checks.host", lambda: Platform("host", (cpu,)))
    found = load({"algorithm": BASE, "limits": limits}).limits
    assert (found.max_lanes, found.learners) == (lanes, limits.get("learners", 1))
    for wrong, said in (
        ({"learners": 4}, "given 4; each needs a lane of its own, and there are cpu 2: 2 at most"),
        ({"learners": 2, "max_lanes": 1}, "cpu 2 and limits.max_lanes 1: 1 at most, or add cores"),
        ({"learners": 4, "max_lanes": 9}, "cpu 2 and limits.max_lanes 9: 2 at most, or add cores"),
    ):
        assert said in refused(BASE, wrong)


def test_a_failing_environment_starts_anew_where_there_is_a_replay() -> None:
    load({"algorithm": BASE, "train": {"on_env_failure": "restart"}})
    with pytest.raises(SpecError, match=r"only algorithms with a replay support it"):
        load({"algorithm": PPO, "train": {"on_env_failure": "restart"}})
    load({"algorithm": PPO, "train": {"on_env_failure": "stop"}})


def flow(depth: int) -> bytes:
    """A document with `depth` collections, one in the other."""
    return b"a: " + b"[" * (depth - 1) + b"]" * (depth - 1)


def test_collections_nest_to_the_bound() -> None:
    found = parse(flow(MAX_DEPTH), "f").data
    depth = 0
    while found:
        depth, found = depth + 1, found[0] if depth else found["a"]
    assert depth == MAX_DEPTH - 1
    with pytest.raises(SpecError, match=rf"^f:1: nested deeper than {MAX_DEPTH} levels$"):
        parse(flow(MAX_DEPTH + 1), "f")
    wide = b"".join(b"k%d: [[[]]]\n" % i for i in range(MAX_DEPTH))
    assert len(parse(wide, "f").data) == MAX_DEPTH  # what closes again does not count
    with pytest.raises(SpecError, match=f"^f:{MAX_DEPTH + 1}: nested deeper"):
        parse(wide + flow(MAX_DEPTH + 1), "f")


def test_python_objects_nest_to_the_bound() -> None:
    def nested(depth: int) -> Any:
        return {"a": nested(depth - 1)} if depth else 1

    assert plain(nested(MAX_DEPTH), "<spec>").data == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5000):
        value: Any = 1
        for _ in range(depth):
            value = {"a": value}
        with pytest.raises(SpecError, match=f"or {MAX_DEPTH} levels; a spec is short"):
            plain(value, "<spec>")


def test_values_are_counted_to_the_bound() -> None:
    count = MAX_NODES - 2  # the list and the mapping are values too
    assert len(parse(b"a: [" + b"1," * count + b"]", "f").data["a"]) == count
    with pytest.raises(SpecError, match=rf"^f:1: a\[19998\]: unfolds to more than {MAX_NODES} v"):
        parse(b"a: [" + b"1," * (count + 1) + b"]", "f")


def test_files_are_read_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_bytes(path, "s.yaml")) == MAX_BYTES
    lines = b"# one\n" * 3
    path.write_bytes(lines + b"#" * (MAX_BYTES + 1 - len(lines)))
    with pytest.raises(SpecError, match=rf"^s.yaml:4: larger than {MAX_BYTES} bytes"):
        read_bytes(path, "s.yaml")


def test_many_problems_are_put_in_order_in_steps_in_proportion() -> None:
    """16 times as many unreadable keys: 16 times the looks at one of them, and not 256 times."""
    looks = 0

    class Seen:
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__eq__(other)

    class Where(Seen, tuple[str, ...]): ...

    class Line(Seen, str): ...

    def looked(count: int) -> int:
        nonlocal looks
        looks = 0
        lines = [(Where((f"k{i}",)), Line(f"f:{count - i}: k{i}: tag")) for i in range(count)]
        found = _sort_lines([*lines, *lines], [where for where, _ in lines])
        taken = looks
        assert found == [line for _, line in reversed(lines)]
        return taken

    assert 100 < looked(1600) < 20 * looked(100)


def test_of_a_value_that_cannot_be_read_the_first_problem_is_told() -> None:
    lines = [(("a",), "f:2: a: tag"), (("a",), "f:2: a: missing"), (("b",), "f:1: b: x")]
    assert _sort_lines(lines, [("a",)]) == ["f:1: b: x", "f:2: a: tag"]
    assert _sort_lines([*lines, lines[2]], []) == ["f:1: b: x", "f:2: a: tag", "f:2: a: missing"]
