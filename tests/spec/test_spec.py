"""Specs: what is read, what is refused and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium
import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pearl.algorithms import ALGORITHMS, algorithm
from pearl.algorithms.fields import _ratio
from pearl.errors import SpecError
from pearl.spec.reading import System, init_text, json_schema, load, parse_set, read_shipped
from pearl.spec.yaml_reader import parse_scalar

BASE = """algorithm:
  name: dqn
  env: Nowhere-v0
  spaces: {obs: 4, actions: 2}
"""
DDPG = BASE.replace("dqn", "ddpg").replace("actions: 2", "act: 2, low: -1, high: [1, 2]")
TASKS = (
    "env_step, inference, replay_insert, replay_sample, replay_update, rollout_insert, gae, "
    "update, average, param_sync"
)
DQN_KEYS = (
    "adam, batch_size, discount, double, duelling, env, env_args, exploration, frame_stack, "
    "hidden, huber, learning_rate, learning_starts, max_grad_norm, n_step, name, network, "
    "normalise, num_envs, replay, replay_ratio, spaces, "
    "target, train_every"
)


def read(tmp_path: Path, text: str | bytes, **overlay: Any) -> System:
    path = tmp_path / "s.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path, **overlay)


def refused(tmp_path: Path, text: str | bytes, **overlay: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text, **overlay)
    return [line.replace(str(tmp_path) + "/", "") for line in caught.value.problems]


# What is read


@pytest.mark.parametrize("name", sorted(read_shipped()))
def test_every_shipped_spec_loads_by_name_and_by_path(name: str) -> None:
    by_name, by_path = load(name), load(str(files("pearl_configs") / f"{name}.yaml"))
    assert by_name.name == by_path.name == name
    assert by_name.sha256 == by_path.sha256
    assert by_name.path is None
    assert by_path.path is not None
    others = {"ppo_halfcheetah": 4, "dqn_cartpole_gpu": None, "dqn_cartpole_fpga": None}
    assert by_name.limits.max_lanes == others.get(name, 1)


@pytest.mark.parametrize("platform", ["host", "cpu_gpu", "cpu_h200", "cpu_gpu_fpga"])
def test_the_resolved_spec_gives_the_same_system_again(platform: str) -> None:
    limits = {"power": "350 W", "memory": {"cpu": "8 GiB"}, "pin": {"update": "cpu"}}
    over = {"platform": platform, "limits": limits, "algorithm.replay_ratio": "1/4"}
    system = load("dqn_cartpole", set=over)
    again = load(json.loads(json.dumps(system.raw)))
    assert again.sha256 == system.sha256
    assert (again.algorithm, again.env, again.platform) == (
        system.algorithm,
        system.env,
        system.platform,
    )
    assert (again.limits, again.train) == (system.limits, system.train)


def test_gymnasium_is_asked_for_the_spaces() -> None:
    cartpole, pendulum = load("dqn_cartpole").env, load("ddpg_pendulum").env
    assert (cartpole.obs, cartpole.actions, cartpole.act) == (4, 2, 0)
    assert cartpole.max_episode_steps == 500
    assert (pendulum.obs, pendulum.actions, pendulum.act) == (3, 0, 1)
    assert (pendulum.act_low, pendulum.act_high) == ((-2.0,), (2.0,))


def test_spaces_in_the_spec_are_taken_as_they_are(tmp_path: Path) -> None:
    env = read(tmp_path, DDPG).env
    assert (env.obs, env.act, env.act_low, env.act_high) == (4, 2, (-1.0, -1.0), (1.0, 2.0))


def test_an_environment_may_be_a_callable_of_a_module(tmp_path: Path) -> None:
    text = "algorithm: {name: dqn, env: 'gymnasium.envs.classic_control:CartPoleEnv'}\n"
    assert read(tmp_path, text).env.actions == 2


@pytest.mark.parametrize(
    ("written", "ratio"),
    [
        ("1", Fraction(1)),
        ("'1/4'", Fraction(1, 4)),
        ("1/4", Fraction(1, 4)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_replay_ratio_is_an_exact_fraction(tmp_path: Path, written: str, ratio: Fraction) -> None:
    assert read(tmp_path, BASE + f"  replay_ratio: {written}\n").algorithm.replay_ratio == ratio


def test_numerator_and_denominator_of_a_replay_ratio_are_from_1_to_1000() -> None:
    for allowed in ("1/1000", "1000", "999/1000"):
        assert _ratio(allowed) == Fraction(allowed)
    for refused in ("1/1001", "1001", "1000/1001", "0", "-1"):
        with pytest.raises(ValueError, match="numerator and denominator at most 1000"):
            _ratio(refused)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001), ("1E5", 1e5), (".5", 0.5), ("1.", 1.0), ("-5.5e-1", -0.55), (".", "."),
        ("e5", "e5"), ("0x1F", 31), ("0X1F", "0X1F"), ("0o17", 15), ("0o18", "0o18"), ("017", 17),
        ("-3", -3), ("+5", 5), pytest.param("9" * 400, int("9" * 400), id="400 digits"),
        pytest.param("9" * 401, float("inf"), id="401 digits"), ("-.inf", -float("inf")),
        (".INF", float("inf")), ("on", "on"), ("No", "No"),
        ("TRUE", True), ("tRUE", "tRUE"), ("false", False), ("~", None), ("Null", None), ("", None),
        ("1_000", "1_000"), ("12:30:00", "12:30:00"), ("2001-01-01", "2001-01-01"), ("=", "="),
        ("<<", "<<"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(written: str, value: object) -> None:
    assert parse_scalar(written) == value
    assert type(parse_scalar(written)) is type(value)


def test_quantities_become_si(tmp_path: Path) -> None:
    text = "limits: {power: 350 W, period: 2 ms, min_throughput: 5000 /s, memory: {cpu: 8 GiB}}\n"
    limits = read(tmp_path, BASE + text).limits
    assert (limits.power_w, limits.period_s, limits.min_throughput_per_s) == (350, 0.002, 5000)
    assert dict(limits.memory_bytes) == {"cpu": 8 * 2**30}


def test_lanes_are_one_on_the_host_and_free_elsewhere(tmp_path: Path) -> None:
    assert read(tmp_path, BASE).limits.max_lanes == 1
    assert read(tmp_path, BASE + "limits: {max_lanes: 2}\n").limits.max_lanes == 2
    assert read(tmp_path, BASE + "platform: cpu_gpu\n").limits.max_lanes is None


def test_set_is_laid_over_the_file(tmp_path: Path) -> None:
    over = {"train.steps": 7, "algorithm.target.tau": 0.5, "limits.power": "9 W"}
    system = read(tmp_path, BASE, set=over)
    assert (system.train.steps, system.algorithm.target.tau, system.limits.power_w) == (7, 0.5, 9)


@pytest.mark.parametrize(
    ("argument", "pair"),
    [
        ("a.b=128", ("a.b", 128)),
        ("a=1e-3", ("a", 1e-3)),
        ("a=350 W", ("a", "350 W")),
        ("a=on", ("a", "on")),
        ("a='1'", ("a", "1")),
        ("a=[1, x]", ("a", [1, "x"])),
        ("a={b: 1}", ("a", {"b": 1})),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", None)),
    ],
)
def test_set_arguments_are_read_as_in_a_file(argument: str, pair: tuple[str, object]) -> None:
    assert parse_set(argument) == pair


@given(st.text(max_size=40))
def test_any_set_argument_is_a_pair_or_a_spec_error(argument: str) -> None:
    try:
        key, _ = parse_set(argument)
    except SpecError:
        return
    assert key == argument.partition("=")[0].strip()


def test_observations_are_flattened_as_the_environment_task_flattens_them(tmp_path: Path) -> None:
    assert read(tmp_path, "algorithm: {name: dqn, env: FrozenLake-v1}\n").env.obs == 16
    cards = "algorithm: {name: dqn, env: Blackjack-v1}\n"
    assert read(tmp_path, cards).env.obs == 32 + 11 + 2


# What is refused, word for word


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["s.yaml:1: the file is empty; a mapping of keys is needed"]),
        ("# nothing\n", ["s.yaml:1: the file is empty; a mapping of keys is needed"]),
        ("- 1\n", ["s.yaml:1: the top level is a list; a mapping of keys is needed"]),
        ("dqn\n", ["s.yaml:1: the top level is a single value; a mapping of keys is needed"]),
        (b"a: 1\nb: \xff\n", ["s.yaml:2: byte 0xff is not UTF-8; a spec is UTF-8 text"]),
        (b"a: \x00", ["s.yaml:1: character U+0000 is not allowed; a spec is plain text"]),
        ("a: 1\n---\nb: 2\n", ["s.yaml:2: a second document starts here; one is allowed"]),
        ("a:\n" + "[" * 500, ["s.yaml:2: nested deeper than 24 levels"]),
        ('a: "\\UFFFFFFFF"', ["s.yaml:1: not YAML: an escape in the text is no character"]),
        ("a: b: c\n", ["s.yaml:1: not YAML: mapping values are not allowed here"]),
        (
            "a: &a [*a]\n",
            ["s.yaml:1: a[0][0]: unfolds to more than 20000 values or 24 levels; a spec is short"],
        ),
        (
            BASE + "train: !!python/object/apply:os.system [x]\n",
            ["s.yaml:5: train: tag 'tag:yaml.org,2002:python/object/apply:os.system'; "
             "tags are not allowed"],
        ),
        ("!x\n" + BASE, ["s.yaml:1: tag '!x'; tags are not allowed"]),
        (
            BASE + "1: 2\n? [x]\n: y\n",
            ["s.yaml:5: given 1 as a key; a key is text",
             "s.yaml:6: given a mapping, list or tag as a key; a key is text"],
        ),
        ("train: {}\n",
         ["s.yaml:1: algorithm: missing; needed: a mapping with at least name and env"]),
        (
            "algorithm: {name: dqnn, env: CartPol-v1}\n",
            ["s.yaml:1: algorithm.name: given 'dqnn' (did you mean dqn?); "
             "allowed are dqn, ddpg, td3, sac, ppo, a2c, q_learning, sarsa, a module path",
             "s.yaml:1: algorithm.env: no environment 'CartPol-v1' (did you mean CartPole-v1?); "
             "gymnasium knows {ids} ids, and `module:callable` is allowed"],
        ),
        (
            "algorithm: {name: dqn, env: ALE/Pong-v5}\n",
            ["s.yaml:1: algorithm.env: no environment 'ALE/Pong-v5'; gymnasium knows {ids} ids, "
             "and `module:callable` is allowed; Atari games come with `pip install ale-py`, as "
             "'ale_py:ALE/Pong-v5'"],
        ),
        (
            BASE + "  batchsize: 64\n",
            ["s.yaml:5: algorithm.batchsize: unknown key (did you mean batch_size?); "
             f"allowed are {DQN_KEYS}"],
        ),
        (
            BASE + "  batch_size: 64\n  batch_size: 32\n",
            ["s.yaml:6: algorithm.batch_size: given twice, first in line 5; once is allowed"],
        ),
        (
            BASE + "  batch_size: '64'\n  num_envs: 0\n  double: on\n"
            "  discount: .nan\n  hidden: 8\n",
            ["s.yaml:5: algorithm.batch_size: given '64'; allowed: a whole number",
             "s.yaml:6: algorithm.num_envs: given 0; allowed: at least 1",
             "s.yaml:7: algorithm.double: given 'on'; allowed: true or false",
             "s.yaml:8: algorithm.discount: given nan; a number must be finite",
             "s.yaml:9: algorithm.hidden: given 8; allowed: a list, [8]"],
        ),
        (
            BASE + "  actor_learning_rate: 1e-3\n  exploration: {noise: 0.1}\n",
            ["s.yaml:5: algorithm.actor_learning_rate: a key of algorithm ddpg; "
             f"this algorithm takes {DQN_KEYS}",
             "s.yaml:6: algorithm.exploration.noise: a key of algorithm ddpg; "
             "this algorithm takes final, initial, steps"],
        ),
        (
            BASE + "  target: {tau: 0.1, every: 3}\n  replay_ratio: 1/0\n",
            ["s.yaml:5: algorithm.target: given a mapping; allowed: exactly one of tau and every",
             "s.yaml:6: algorithm.replay_ratio: given '1/0'; allowed: a number above 0 such as 1, "
             "0.25 or '1/4', with numerator and denominator at most 1000"],
        ),
        (
            BASE + "  batch_size: 128\n  replay: {capacity: 64}\n  learning_starts: 10\n",
            ["s.yaml:6: algorithm.replay.capacity: given 64; at least batch_size (128) is needed",
             "s.yaml:7: algorithm.learning_starts: given 10; at least batch_size (128) is needed"],
        ),
        (
            DDPG.replace("ddpg", "dqn"),
            ["s.yaml:4: algorithm.spaces: Nowhere-v0 has continuous actions; "
             "dqn needs discrete ones"],
        ),
        (
            "algorithm: {name: ddpg, env: CartPole-v1}\n",
            ["s.yaml:1: algorithm.env: CartPole-v1 has 2 discrete actions; "
             "ddpg needs continuous ones"],
        ),
        (
            "algorithm: {name: dqn, env: 'os:getcwd'}\n",
            ["s.yaml:1: algorithm.env: given 'os:getcwd'; os is a module of Python's standard "
             "library, and PEARL calls none of its code; name your own code or a package's"],
        ),
        (
            "algorithm: {name: dqn, env: 'tests.graphs:X'}\n",
            ["s.yaml:1: algorithm.env: 'tests.graphs:X' cannot be built: "
             "module 'tests.graphs' has no attribute 'X'"],
        ),
        (
            "algorithm: {name: dqn, env: 'numpy:zeros', env_args: {shape: 2}}\n",
            ["s.yaml:1: algorithm.env: 'numpy:zeros' cannot be built: "
             "it returns a ndarray, not a gymnasium.Env"],
        ),
        (
            "algorithm: {name: dqn, env: 'nowhere_at_all:make'}\n",
            ["s.yaml:1: algorithm.env: 'nowhere_at_all:make' cannot be built: "
             "No module named 'nowhere_at_all'"],
        ),
        (
            BASE + "objective: speed\nplatform: cpu_gpuu\nplatfrom: host\n",
            ["s.yaml:5: objective: given 'speed'; "
             "allowed: throughput or power_efficiency or makespan or robust or robust_worst",
             "s.yaml:6: platform: given 'cpu_gpuu'; no platform of that name "
             "(did you mean cpu_gpu?); allowed are host, ray, cpu_gpu, cpu_gpu_fpga, cpu_h200, "
             "a path",
             "s.yaml:7: platfrom: unknown key (did you mean platform?); "
             "allowed are algorithm, name, platform, objective, limits, train"],
        ),
        (
            BASE + "objective: makespan\nlimits:\n  power: 3 W\n  min_throughput: 5 /s\n",
            ["s.yaml:7: limits.power: given '3 W'; objective makespan is about the first iteration "
             "alone and has no such limit: leave it out, or choose throughput or "
             "power_efficiency",
             "s.yaml:8: limits.min_throughput: given '5 /s'; objective makespan is about the first "
             "iteration alone and has no such limit: leave it out, or choose throughput or "
             "power_efficiency"],
        ),
        (
            BASE + "limits:\n  power: 350\n  period: 2 W\n  env_groups: 0\n  pin: {updat: cpu}\n"
            "  memory: {gpu: 8 GiB}\n  together: [[update, sample]]\nplatform: cpu_h200\n",
            ["s.yaml:6: limits.power: given 350; the unit is missing; "
             "a power carries its unit, for example 350 W",
             "s.yaml:7: limits.period: given '2 W'; 'W' is no unit of time; "
             "a time carries its unit, for example 1 ms",
             "s.yaml:8: limits.env_groups: given 0; allowed: at least 1",
             "s.yaml:9: limits.pin.updat: no task 'updat' (did you mean update?); "
             f"allowed are {TASKS}",
             "s.yaml:11: limits.together[0][1]: no task 'sample' (did you mean replay_sample?); "
             "allowed are " + TASKS],
        ),
    ],
)  # fmt: skip
def test_a_wrong_spec_says_what_and_where(
    tmp_path: Path, text: str | bytes, lines: list[str]
) -> None:
    import gymnasium

    known = str(len(gymnasium.registry))
    assert refused(tmp_path, text) == [line.replace("{ids}", known) for line in lines]


@pytest.mark.parametrize(
    ("over", "lines"),
    [
        ({"algorithm.batch_size": "x"},
         ["set algorithm.batch_size: given 'x'; allowed: a whole number"]),
        ({"algorithm.replay.kind": "rank"},
         ["set algorithm.replay.kind: given 'rank'; allowed: uniform or prioritised"]),
        ({"algorithm.replay": {"kind": "rank"}},
         ["set algorithm.replay.kind: given 'rank'; allowed: uniform or prioritised"]),
        ({"train.steps": 1.5, "train.stps": 1},
         ["set train.steps: given 1.5; allowed: a whole number",
          "set train.stps: unknown key (did you mean steps?); allowed are calibrate_after, "
              "carrier, checkpoint_every, checkpoint_replay, env_time_limit, evaluate_episodes, "
              "evaluate_every, evaluate_in, evaluate_max_steps, final_episodes, lanes, "
              "on_env_failure, seed, steps"]),
        ({"algorithm.discount": float("inf")},
         ["set algorithm.discount: given inf; a number must be finite"]),
        ({"algorithm.env.id": "x"},
         ["set algorithm.env.id: algorithm.env is 'Nowhere-v0', which has no keys"]),
        ({"limits.power": 350},
         ["set limits.power: given 350; the unit is missing; "
          "a power carries its unit, for example 350 W"]),
        ({"a..b": 1}, ["set 'a..b': not a dotted key such as train.steps"]),
    ],
)  # fmt: skip
def test_a_wrong_set_says_so(tmp_path: Path, over: dict[str, object], lines: list[str]) -> None:
    assert refused(tmp_path, BASE, set=over) == lines


def test_problems_of_the_file_and_of_set_come_together_in_order(tmp_path: Path) -> None:
    text = BASE + "  num_envs: 0\n  num_envs: 1\nlimits: {power: 1}\n"
    keys = [line.split(": ")[:2] for line in refused(tmp_path, text, set={"train.steps": 0})]
    assert keys == [
        ["set train.steps", "given 0; allowed"],
        ["s.yaml:6", "algorithm.num_envs"],
        ["s.yaml:7", "limits.power"],
    ]


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    names = ", ".join(sorted(read_shipped()))
    cases: list[tuple[str | Path, str]] = [
        (tmp_path / "no.yaml", f"{tmp_path / 'no.yaml'}: no such file"),
        (tmp_path, f"{tmp_path}: not a file; a YAML file is needed"),
        ("nothing", f"'nothing': no file and no shipped spec; shipped: {names}"),
        ("dqn_cartpol", "'dqn_cartpol': no file and no shipped spec (did you mean dqn_cartpole?); "
         f"shipped: {names}"),
        ("a\0b.yaml", "'a\\x00b.yaml': cannot be read: embedded null byte"),
    ]  # fmt: skip
    for given_path, line in cases:
        with pytest.raises(SpecError) as caught:
            load(given_path)
        assert caught.value.problems == (line,)


def test_a_mapping_is_checked_like_a_file() -> None:
    with pytest.raises(SpecError) as caught:
        load({"algorithm": {"name": "dqn", "env": object()}, 3: 4})  # type: ignore[dict-item]
    assert caught.value.problems == (
        "<spec>: algorithm.env: given a value of type object; "
        "allowed are mappings, lists, text, numbers, booleans",
        "<spec>: given 3 as a key; a key is text",
    )


# Whatever the bytes

PIECES = st.sampled_from(
    [*"{}[]:,-?&*!|>'\"%@#\n\t ", "algorithm:\n", "  name: dqn\n", "  env: CartPole-v1\n",
     "platform:", " host\n", "limits: {", "max_lanes: ", "1e999", "9" * 400, ".nan", "&a", "*a",
     "!!python/name:os", "<<", "---\n", "...\n", "\\U", "é", "\x00", "\ufeff", "\u2028", "true",
     "null", "8 GiB", "train:\n", "  steps: 1\n", "  spaces: {obs: 1, actions: 2}\n"]
)  # fmt: skip
QUIET = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def problems_of(spec: Any, **overlay: Any) -> tuple[str, ...]:
    """The lines of the SpecError, none if it loads; any other exception is the test's failure."""
    lines: tuple[str, ...] = ()
    try:
        load(spec, **overlay)
    except SpecError as error:
        lines = error.problems or ("no line",)
    assert not any("\n" in line or line == "no line" for line in lines)
    return lines


def total(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    lines = problems_of(path)
    assert all(line.startswith(str(path)) for line in lines)


@QUIET
@given(st.binary(max_size=200))
def test_any_bytes_are_a_system_or_a_spec_error(tmp_path: Path, content: bytes) -> None:
    total(tmp_path, content)


@QUIET
@given(st.lists(PIECES, max_size=30))
def test_any_yaml_like_text_is_a_system_or_a_spec_error(tmp_path: Path, pieces: list[str]) -> None:
    total(tmp_path, "".join(pieces).encode())


@QUIET
@given(st.lists(PIECES, max_size=6), st.integers(0, 40))
def test_a_good_spec_with_rubbish_in_it_is_a_system_or_a_spec_error(
    tmp_path: Path, pieces: list[str], line: int
) -> None:
    lines = (
        init_text(full=True).replace("# spaces:", "spaces: {obs: 4, actions: 2}").splitlines(True)
    )
    total(tmp_path, "".join([*lines[:line], "".join(pieces), *lines[line:]]).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@QUIET
@given(
    st.sampled_from(
        ["algorithm", "platform", "limits", "train", "objective", "name", "algorithm.replay",
         "algorithm.hidden", "algorithm.replay_ratio", "algorithm.spaces", "algorithm.env_args",
         "algorithm.learning_rate", "limits.memory", "limits.together", "limits.devices",
         "limits.pin", "platform.devices", "platform.links", "platform.hosts"]
    ),
    JSON,
)  # fmt: skip
@example("limits.together", "{")
@example("limits.together", "\n")
@example("platform.hosts", {"": {}})
def test_any_value_of_any_key_is_a_system_or_a_spec_error(key: str, value: object) -> None:
    spec = yaml.safe_load(BASE)
    if key.startswith("platform."):
        spec["platform"] = {"devices": {"cpu": {}}}
    for line in problems_of(spec, set={key: value}):
        assert line.startswith(("set ", "<spec>: "))


# What editors and newcomers get


def test_the_schema_file_is_the_generated_one(request: pytest.FixtureRequest) -> None:
    file = Path(__file__).parents[2] / "configs" / "spec.schema.json"
    if request.config.getoption("--write"):
        text = json.dumps(json_schema(), indent=1, ensure_ascii=False)
        file.write_text(f"{text}\n", encoding="utf-8")
    kept = json.loads(file.read_text("utf-8"))
    assert kept == json_schema(), "run: pytest --write tests/spec/test_spec.py -k schema_file"


@pytest.mark.parametrize("name", sorted(read_shipped()))
def test_shipped_specs_satisfy_the_schema(name: str) -> None:
    # YAML 1.1's loader reads 1e-3 as text, so the resolved spec is checked.
    jsonschema.validate(dict(load(name).raw), json_schema())


@pytest.mark.parametrize("platform", ["cpu_gpu", "cpu_h200", "cpu_gpu_fpga"])
def test_resolved_platforms_satisfy_the_schema(platform: str) -> None:
    raw = load("dqn_cartpole", set={"platform": platform}).raw
    jsonschema.validate(dict(raw), json_schema())


def test_the_schema_refuses_a_wrong_key() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"algorithm": {"name": "dqn", "env": "E", "x": 1}}, json_schema())


def test_every_key_of_the_schema_has_prose() -> None:
    schema = json_schema()
    for name, part in {"": schema, **schema["$defs"]}.items():
        for key, entry in part.get("properties", {}).items():
            target = schema["$defs"].get(entry.get("$ref", "").rpartition("/")[2], {})
            assert entry.get("description") or target.get("description"), f"{name}.{key}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_commented_spec_loads_and_names_every_key(tmp_path: Path, name: str) -> None:
    env = "Pendulum-v1" if algorithm(name).ACTIONS == "continuous" else "CartPole-v1"
    env = "FrozenLake-v1" if algorithm(name).FAMILY == "tabular" else env
    text = init_text(name, env, full=True)
    system = read(tmp_path, text)
    assert system.algorithm == algorithm(name).Options(name=name, env=env)
    for key in algorithm(name).Options.__pydantic_fields__:  # type: ignore[attr-defined]
        assert f"  {key}:" in text or f"  # {key}:" in text


@pytest.mark.parametrize(
    "code", ["import pearl.spec.reading", "import pearl.spec.reading as s; s.load(SPEC)"]
)
@pytest.mark.usefixtures("cpu_as_it_is")
def test_a_spec_with_spaces_is_read_without_the_heavy_modules(code: str) -> None:
    spec = yaml.safe_load(BASE)
    heavy = ("torch", "scipy", "gymnasium", "numba")
    check = f"import sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code.replace('SPEC', repr(spec))}; {check}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


class Pictures(gymnasium.Env):
    """Observations of a shape, and two actions."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, high=12, wide=12, channels=4):
        self.observation_space = gymnasium.spaces.Box(0, 255, (high, wide, channels), np.uint8)


@pytest.mark.parametrize("sizes", [(12, 12, 4), (4, 12, 12)])
def test_frames_that_are_stacked_already_are_not_stacked_again(sizes):
    args = dict(zip(("high", "wide", "channels"), sizes, strict=True))
    acting = {"name": "dqn", "env": f"{__name__}:Pictures", "env_args": args, "frame_stack": 4}
    said = r"frame_stack: given 4; .*already a stack of 4 frames.*; leave it at 0"
    with pytest.raises(SpecError, match=said):
        load({"algorithm": acting})
    acting["env_args"] = {"high": 12, "wide": 12, "channels": 3}
    assert load({"algorithm": acting}).env.shape == (4, 12, 12, 3)
