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
from pearl.errors import SpecError
from pearl.spec.reading import System, init_text, json_schema, load, parse_set, read_shipped

BASE = """algorithm:
  name: dqn
  env: Nowhere-v0
  spaces: {obs: 4, actions: 2}
"""
DDPG = BASE.replace("dqn", "ddpg").replace("actions: 2", "act: 2, low: -1, high: [1, 2]")


def read(tmp_path: Path, text: str | bytes, **overlay: Any) -> System:
    path = tmp_path / "s.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path, **overlay)


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
    limits = {"power": "350 W", "memory": {"cpu": "8 GiB"}, "pin": {"learn": "cpu"}}
    over = {"platform": platform, "limits": limits, "algorithm.replay_ratio": "1/4"}
    system = load("dqn_cartpole", set=over)
    again = load(json.loads(json.dumps(system.raw)))
    assert again.sha256 == system.sha256
    assert (again.algorithm, again.env,
            again.platform) == (system.algorithm, system.env, system.platform)  # fmt: skip
    assert (again.limits, again.train) == (system.limits, system.train)


def test_gymnasium_is_asked_for_the_spaces() -> None:
    cartpole, pendulum = load("dqn_cartpole").env, load("ddpg_pendulum").env
    assert (cartpole.obs, cartpole.actions, cartpole.act) == (4, 2, 0)
    assert cartpole.max_episode_steps == 500
    assert (pendulum.obs, pendulum.actions, pendulum.act) == (3, 0, 1)
    assert (pendulum.act_low, pendulum.act_high) == ((-2.0,), (2.0,))


@pytest.mark.parametrize(("written", "ratio"),
                         [("1", Fraction(1)), ("'1/4'", Fraction(1, 4)), ("1/4", Fraction(1, 4)),
                          ("0.1", Fraction(1, 10))])  # fmt: skip
def test_a_replay_ratio_is_an_exact_fraction(tmp_path: Path, written: str, ratio: Fraction) -> None:
    assert read(tmp_path, BASE + f"  replay_ratio: {written}\n").algorithm.replay_ratio == ratio


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
def test_a_good_spec_with_rubbish_in_it_is_a_system_or_a_spec_error(tmp_path, pieces, line):
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
    done = subprocess.run([sys.executable, "-c", f"{code.replace('SPEC', repr(spec))}; {check}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
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
