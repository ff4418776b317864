"""Every bound of a spec from both sides: what lies on it is read, what lies beyond is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pearl.errors import SpecError
from pearl.spec.reading import _sort_lines, load
from pearl.spec.yaml_reader import MAX_BYTES, MAX_DEPTH, MAX_NODES, parse, plain, read_bytes, show
from pearl_devices import Device, Platform

BASE: dict[str, Any] = {
    "name": "dqn",
    "env": "Nowhere-v0",
    "spaces": {"obs": 4, "actions": 2},
    "num_envs": 8,
    "batch_size": 32,
    "learning_starts": 32,
    "replay": {"capacity": 64},
}
BOX = {"obs": 4, "act": 2, "low": -1.0}


def refused(algorithm: dict[str, Any], limits: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        load({"algorithm": algorithm, "limits": limits})
    (line,) = caught.value.problems
    return line


@pytest.mark.parametrize(
    ("on", "beyond", "said"),
    [
        (
            {"replay": {"capacity": 32}},
            {"replay": {"capacity": 31}},
            "replay.capacity: given 31; at least batch_size (32) is needed",
        ),
        (
            {"n_step": 8, "replay": {"capacity": 64}},
            {"n_step": 8, "replay": {"capacity": 63}},
            "replay.capacity: given 63; at least num_envs · n_step (64) is needed, or no tran",
        ),
        (
            {"learning_starts": 32},
            {"learning_starts": 31},
            "learning_starts: given 31; at least batch_size (32) is needed",
        ),
        (
            {"replay": {"capacity": 64, "kind": "prioritised", "beta": 0.4, "beta_final": 0.4}},
            {"replay": {"capacity": 64, "kind": "prioritised", "beta": 0.4, "beta_final": 0.39}},
            "beta_final: given 0.39; at least beta (0.4) is needed",
        ),
        (
            {"frame_stack": 2, "spaces": {"obs": 4, "actions": 2}},
            {"frame_stack": 2, "spaces": {"obs": 5, "actions": 2}},
            "frame_stack: given 2; obs (5) must be the size of a whole stack, a multiple of it",
        ),
        (
            {"frame_stack": 2, "normalise": {"observations": False}},
            {"frame_stack": 2, "normalise": {"observations": True}},
            "frame_stack: given 2; frames are stored unchanged",
        ),
        (
            {"spaces": {"obs": 4, "shape": [2, 2], "actions": 2}},
            {"spaces": {"obs": 4, "shape": [2, 3], "actions": 2}},
            "spaces.shape: given [2, 3]; its product is 6, and obs is 4",
        ),
        (
            {"spaces": {"states": 4, "actions": 2}},
            {"spaces": {"obs": 4, "states": 4, "actions": 2}},
            "spaces: given obs 4, states 4; exactly one of the two must be above 0",
        ),
        (
            {},
            {"spaces": {"obs": 4, "actions": 2, "act": 1, "low": 0, "high": 1}},
            "spaces: given actions 2, act 1, choices []; exactly one of them is needed",
        ),
        (
            {},
            {"spaces": {"obs": 4, "actions": 2, "low": 0}},
            "spaces: given low or high; discrete actions have no bounds",
        ),
        (
            {},
            {"spaces": {"obs": 4, "actions": 2, "high": 0}},
            "spaces: given low or high; discrete actions have no bounds",
        ),
        (
            {"spaces": {"obs": 4, "actions": 2, "start": -1}},
            {"name": "ddpg", "spaces": {**BOX, "high": 1.0, "start": -1}},
            "spaces: given start -1; continuous actions are not counted: leave it out",
        ),
        (
            {"name": "ddpg", "spaces": {**BOX, "high": [1.0, -0.999]}},
            {"name": "ddpg", "spaces": {**BOX, "high": [1.0, -1.0]}},
            "spaces: a lower bound is not below its upper bound; it must be",
        ),
        (
            {"name": "ddpg", "spaces": {**BOX, "high": 1.0}},
            {"name": "ddpg", "spaces": {**BOX, "high": [1.0, 1.0, 1.0]}},
            "spaces: given 2 lower and 3 upper bounds; 2 each are needed, or one for all",
        ),
        (
            {"name": "ddpg", "spaces": {**BOX, "low": [-1.0, -2.0], "high": [1.0, 2.0]}},
            {"name": "ddpg", "spaces": {**BOX, "low": [-1.0] * 3, "high": [1.0] * 3}},
            "spaces: given 3 lower and 3 upper bounds; 2 each are needed, or one for all",
        ),
        (
            {"name": "ddpg", "spaces": {**BOX, "high": 1.0}},
            {"name": "ddpg", "spaces": BOX},
            "ddpg acts between bounds: give it a Box with bounds",
        ),
        (
            {"name": "ddpg", "spaces": {**BOX, "high": 1.0}},
            {"name": "ddpg", "spaces": {"obs": 4, "act": 2, "high": 1.0}},
            "ddpg acts between bounds: give it a Box with bounds",
        ),
    ],
)
def test_options_of_an_algorithm(on: dict[str, Any], beyond: dict[str, Any], said: str) -> None:
    load({"algorithm": {**BASE, **on}})
    assert said in refused({**BASE, **beyond}, {})


PPO = {"name": "ppo", "env": "E-v0", "spaces": {"obs": 4, "actions": 2}, "num_envs": 3}


def test_minibatches_divide_the_rollout() -> None:
    load({"algorithm": {**PPO, "rollout_steps": 5, "minibatches": 15}})
    said = refused({**PPO, "rollout_steps": 5, "minibatches": 2}, {})
    assert "minibatches: given 2; a divisor of rollout_steps · num_envs (15) is needed" in said


def test_environment_groups_divide_the_environments_and_need_a_replay() -> None:
    for groups in (1, 2, 8):
        load({"algorithm": BASE, "limits": {"env_groups": groups}})
    said = refused(BASE, {"env_groups": 3})
    assert "env_groups: given 3; a divisor of num_envs (8) is needed" in said
    load({"algorithm": PPO, "limits": {"env_groups": 1}})
    assert "env_groups: given 3; ppo acts in all environments" in refused(PPO, {"env_groups": 3})


@pytest.mark.parametrize(
    ("limits", "lanes"),
    [({}, 1), ({"learners": 1}, 1), ({"learners": 2}, None), ({"learners": 2, "max_lanes": 2}, 2)],
)
def test_one_learner_on_this_host_has_one_lane(
    limits: dict[str, Any], lanes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(
        SpecError, match=rf"^f:1: a\[19998\]: unfolds to more than {MAX_NODES} values"
    ):
        parse(b"a: [" + b"1," * (count + 1) + b"]", "f")


def test_files_are_read_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_bytes(path, "s.yaml")) == MAX_BYTES
    lines = b"# one\n" * 3
    path.write_bytes(lines + b"#" * (MAX_BYTES + 1 - len(lines)))
    with pytest.raises(SpecError, match=rf"^s.yaml:4: larger than {MAX_BYTES} bytes"):
        read_bytes(path, "s.yaml")


def test_one_document_is_one_document() -> None:
    assert parse(b"---\na: 1\n", "f").data == {"a": 1}
    with pytest.raises(SpecError, match=r"^f:3: a second document starts here; one is allowed$"):
        parse(b"---\na: 1\n---\nb: 1\n", "f")


def test_what_is_quoted_is_short() -> None:
    assert show("x" * 58) == "'" + "x" * 58 + "'"
    assert show("x" * 59) == "'" + "x" * 55 + " ..."
    assert show("\x00" * 15) == "'" + "\\x00" * 13 + "\\x0 ..."
    assert show("\x07" * 14 + "ab") == "'" + "\\x07" * 14 + "ab'"
    assert show("\x07" * 14) == "'" + "\\x07" * 14 + "'"
    assert (show(10**40), show(-(10**40))) == ("a huge number", "a huge number")
    assert show(10**40 - 1) == "9" * 40


@pytest.mark.parametrize("escape", [r"\uD800", r"\uDBFF", r"\uDC00", r"\uDFFF"])
def test_half_a_surrogate_pair_is_no_text(escape: str) -> None:
    assert (
        "half a surrogate pair is no text" in parse(f'a: "{escape}"'.encode(), "f").problems[0][1]
    )


@pytest.mark.parametrize("escape", [r"\uD7FF", r"\uE000"])
def test_what_lies_beside_the_surrogates_is_text(escape: str) -> None:
    assert parse(f'a: "{escape}"'.encode(), "f").problems == ()


@pytest.mark.parametrize(
    "text",
    ['a: 1\nb: "\\UFFFFFFFF"\n', 'a: 1\nb: "\\U00110000"\n', 'a:\n  "c\n  \\UFFFFFFFF"\n'],
)
def test_an_escape_that_is_no_character_has_a_line(text: str) -> None:
    line = 3 if "c" in text else 2
    with pytest.raises(SpecError, match=rf"^f:{line}: not YAML: .*escape"):
        parse(text.encode(), "f")


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
