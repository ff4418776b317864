"""Small parts of reading a spec, each on its bounds: quantities, names, texts, entries, errors."""

from __future__ import annotations

import math
from fractions import Fraction
from types import CodeType, ModuleType
from types import SimpleNamespace as Given
from typing import Any

import pytest
from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms import fields
from pearl.algorithms.options import STRICT
from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.spec import catalogue, template, user_code
from pearl.spec.checks import find_pointless_limits, find_unknown_names
from pearl.spec.distribution import DISTRIBUTIONS, _copies
from pearl.spec.env_spaces import _is_stacked
from pearl.spec.messages import _suggest_key, model_at, suggest_nearest
from pearl.spec.models import LimitsSection, Spec, Train
from pearl.spec.platform_files import read_platform
from pearl.spec.quantities import Number, Quantity, Sourced
from pearl.spec.units import DIMENSIONS, format_quantity, parse_quantity
from pearl.spec.yaml_reader import Document, join_keys, parse
from pearl_devices import Device, Link

# Quantities

PREFIXES = {
    "bytes": ("B", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
    "bits": ("bit", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
    "bytes_per_s": ("B/s", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
    "flops_per_s": ("FLOP/s", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
    "hz": ("Hz", {"k": 3, "M": 6, "G": 9}),
    "s": ("s", {"p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3}),
    "j_per_byte": ("J/B", {"p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3}),
    "w": ("W", {"m": -3, "k": 3, "M": 6}),
    "per_s": ("/s", {}),
}


@pytest.mark.parametrize("dimension", PREFIXES)
def test_every_prefix_of_a_unit_is_read_and_no_other(dimension: str) -> None:
    unit, powers = PREFIXES[dimension]
    for prefix in ("", *"pnuµμmkKMGTP"):
        power = {"": 0, **powers}.get(prefix)
        if power is None:
            with pytest.raises(ValueError, match="is no unit of"):
                parse_quantity(f"3 {prefix}{unit}", dimension)
        else:
            assert parse_quantity(f"3 {prefix}{unit}", dimension) == float(f"3e{power}")
    for n, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"), 1):
        if DIMENSIONS[dimension].binary:
            assert parse_quantity(f"3{prefix}{unit}", dimension) == 3 * 1024**n
        else:
            with pytest.raises(ValueError, match="is no unit of"):
                parse_quantity(f"3 {prefix}{unit}", dimension)


def test_times_are_in_minutes_and_hours_too_and_texts_are_short() -> None:
    for text, value in (("2 min", 120.0), ("1.5 h", 5400.0), ("1e-3 s", 1e-3), (".5E+1us ", 5e-6)):
        assert parse_quantity(text, "s") == value
    for wrong in ("2 mh", "2 kmin"):
        with pytest.raises(ValueError, match="is no unit of time"):
            parse_quantity(wrong, "s")
    assert parse_quantity("0" * 57 + "5 W", "w") == 5.0  # 60 characters
    with pytest.raises(ValueError, match="not a number with a unit"):
        parse_quantity("0" * 58 + "5 W", "w")
    assert {key for key, d in DIMENSIONS.items() if d.binary} == {"bytes", "bits", "bytes_per_s"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e16 - 2, "9999999999999998 W"), (1e16, "1e+16 W"), (-3.0, "-3 W"), (-1e16, "-1e+16 W"),
     (0.5, "0.5 W")],
)  # fmt: skip
def test_whole_numbers_are_written_without_a_point_up_to_sixteen_digits(
    value: float, text: str
) -> None:
    assert format_quantity(value, "w") == text


@pytest.mark.parametrize(
    ("number", "right", "wrong"),
    [
        (Number(None), [1, 0.5, 9e299], [0, -1, 1e300, True, "1"]),
        (Number(None, whole=True), [1, 10**20], [0, 1.0, -1, True, 10**301]),
        (Number("s"), ["1 us"], ["0 s", "-1 us", 1]),
        (Number("s", zero=True), ["0 s", "1 us"], ["-1 us", 0]),
    ],
)
def test_numbers_of_a_platform_file_at_their_bounds(number: Number, right: Any, wrong: Any) -> None:
    for given in right:
        plain, sourced = number.read(given), number.read({"value": given, "source": "a sheet"})
        assert (plain.source, sourced.source) == (None, "a sheet")
        assert plain.value == sourced.value
        assert number.read(number.write(sourced)) == sourced
        assert number.read({"value": given}) == plain
        assert number.read(plain) is plain
    for given in wrong:
        with pytest.raises(ValueError, match=r"above 0|at least 0|unit"):
            number.read(given)
    for given in ({"source": "x"}, {"value": right[0], "sauce": "x"}, {"value": 1, "source": " "}):
        with pytest.raises(ValueError, match=r"keys value and source|a source in words"):
            number.read(given)


def test_numbers_are_written_as_short_as_they_are_read() -> None:
    assert Number(None).write(Sourced(4.0)) == 4
    assert Number(None).write(Sourced(0.5, "x")) == {"value": 0.5, "source": "x"}
    assert Number("s").write(Sourced(4.0, "x")) == {"value": "4 s", "source": "x"}
    assert Quantity("w").read(Quantity("w").read("5 W")) == 5.0  # what was read needs no unit


# Names and texts


@pytest.mark.parametrize(
    ("given", "names", "said"),
    [
        ("dqnn", ["dqn", "dqnn_long"], "dqn"),  # almost the same comes before a beginning
        ("gpu", ["gpu_a", "gpu_b", "other", "gpu_c", "gpu_d"], "gpu_a or gpu_b or gpu_c"),
        ("GP", ["gpu_a", "gpu_b"], "gpu_a or gpu_b"),
        ("g", ["gpu_a", "gpu_b"], ""),  # one letter selects nothing
        ("hosts", ["host", "ghosts"], "ghosts"),
        ("sample", ["replay_sample", "gae"], "replay_sample"),
        ("zz", ["gpu_a"], ""),
        (3, ["30x"], ""),
    ],
)
def test_the_nearest_name_is_suggested(given: Any, names: list[str], said: str) -> None:
    assert suggest_nearest(given, names) == (f" (did you mean {said}?)" if said else "")


@pytest.mark.parametrize(
    ("key", "allowed", "said"),
    [
        ("gamma", ["discount"], "discount"),
        ("n_steps", ["rollout_steps", "n_step"], "rollout_steps or n_step"),
        ("n_steps", ["n_step"], "n_step"),
        ("total_timesteps", [], "train.steps"),
        ("eval_freq", ["steps"], "train.evaluate_every"),
        ("eval_freq", ["evaluate_every"], "evaluate_every or train.evaluate_every"),
        ("discont", ["discount"], "discount"),
    ],
)
def test_keys_of_other_libraries_are_known(key: str, allowed: list[str], said: str) -> None:
    assert _suggest_key(key, allowed) == f" (did you mean {said}?)"


def test_the_model_at_a_path() -> None:
    assert model_at(Spec, ("limits",)) is LimitsSection
    assert model_at(Spec, ("train",)) is Train
    assert model_at(Spec, ("train", "steps")) is None
    assert model_at(Spec, ("nowhere", "at", "all")) is None
    platform = model_at(Spec, ("platform",))
    assert "devices" in platform.__pydantic_fields__
    assert "peak" in model_at(platform, ("devices", "cpu")).__pydantic_fields__
    assert "latency" in model_at(platform, ("links", 0)).__pydantic_fields__


def test_places_of_values_are_written_short() -> None:
    assert join_keys(("limits", "together", 0, 1)) == "limits.together[0][1]"
    assert join_keys(("a b", "c" * 60, "d" * 61)) == f"'a b'.{'c' * 60}.'{'d' * 55} ..."
    assert join_keys((0, "a")) == "[0].a"
    document = Document({}, {("a",): "f:3", ("b", "c"): "set"})
    assert document.say(("a", "x", 1), "no") == "f:3: a.x[1]: no"
    assert document.say(("a", "x"), "no") == "f:3: a.x: no"
    assert document.say(("b", "c"), "no") == "set b.c: no"
    ((_, line),) = parse(b"a: 1\n\na: 2\n", "c:d.yaml").problems
    assert line == "c:d.yaml:3: a: given twice, first in line 1; once is allowed"
    assert document.say(("b",), "no") == "<spec>: b: no"
    assert document.say((), "no") == "<spec>: no"


@pytest.mark.parametrize(
    ("read", "right", "wrong"),
    [
        (fields._argument, ["a", 1, 0.5, True], [None, [1], {}]),
        (fields._callable, ["a:b", "a.b:c_1"], ["a", "a:", ":b", "a:b.c", "1a:b", 3]),
        (
            fields._ratio,
            ["1/4", 0.25, 1, Fraction(1, 3), " 1/4"],
            [True, None, "x", "1/0", "0" * 41],
        ),
    ],
)
def test_values_of_options(read: Any, right: Any, wrong: Any) -> None:
    for value in right:
        read(value)
    for value in wrong:
        with pytest.raises(ValueError, match=r"such as|text, a number"):
            read(value)
    assert fields._ratio("0" * 39 + "1") == 1  # 40 characters


def test_bounds_are_one_number_or_a_list() -> None:
    assert fields._bounds(1) == (1.0,)
    assert fields._bounds([1, 2.5]) == (1.0, 2.5)
    for wrong in ([], [1, "2"], [1, True], "1", None):
        with pytest.raises(ValueError, match="a number, or a list"):
            fields._bounds(wrong)


# A first spec


LINE = "a" * 45 + " " + "b" * 46
"""With the indent, as long as a line may be."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Inner:
    depth: StrictInt = Field(default=1, description="How deep.")
    width: StrictInt | None = Field(default=None, description="How wide.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Outer:
    name: str = Field(description="Its name.")
    ratio: Fraction = Field(default=Fraction(1, 4), description=f"{LINE} {'c' * 45} {'d' * 47}")
    inner: Inner = Field(default_factory=lambda: Inner(depth=3))
    layers: tuple[int, ...] = Field(default=(8, 8), description="Widths.")
    empty: int | None = Field(default=None, description="None.")


def test_every_key_has_its_meaning_above_it_and_its_default() -> None:
    assert template._keys(Outer, {"name": "x"}, 1) == [
        "  # Its name.", "  name: x",
        f"  # {LINE}", f"  # {'c' * 45}", f"  # {'d' * 47}",
        "  ratio: 1/4",
        "  inner:", "    # How deep.", "    depth: 3", "    # How wide.", "    # width:",
        "  # Widths.", "  layers: [8, 8]", "  # None.", "  # empty:",
    ]  # fmt: skip
    assert template._keys(Outer, {}, 0)[1] == "# name:"
    text = template._full_text(Outer, {"name": "x"}).split("\n\n")
    heads = [next(k for k in part.splitlines() if k[0] != "#") for part in text[1:]]
    assert heads == ["algorithm:", "platform: host", "objective: throughput", "limits:", "train:"]
    meant = ("# The machine: host (", "# What the plan maximises: ", "# What the plan may do.\n",
             "# How long to train, ")  # fmt: skip
    assert all(map(str.startswith, text[2:], meant))
    assert text[-1].endswith("calibrate_after: true\n")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "dqn",
            "env: CartPole-v1|num_envs: 1|hidden: [256, 256]|batch_size: 128|replay_ratio: null",
        ),
        ("sac", "env: Pendulum-v1|num_envs: 1|hidden: [256, 256]|batch_size: 256|replay_ratio: 1"),
        ("ppo", "env: CartPole-v1|num_envs: 8|hidden: [64, 64]|rollout_steps: 256"),
        ("sarsa", "env: FrozenLake-v1|num_envs: 1"),
    ],
)
def test_a_short_spec_has_the_first_keys_to_change(name: str, keys: str) -> None:
    assert template.init_text(name).splitlines() == [
        "# `pearl init --full` writes every key with its meaning; `pearl check` finds errors.",
        "algorithm:", f"  name: {name}", *(f"  {key}" for key in keys.split("|")),
        "platform: host          # this machine; `pearl list platforms` shows others",
        "objective: throughput   # or power_efficiency, makespan, robust, robust_worst",
        "train: {steps: 50000, seed: 0}",
    ]  # fmt: skip
    assert "  env: Other-v0" in template.init_text(name, "Other-v0").splitlines()
    assert template.init_text() == template.init_text("dqn")
    with pytest.raises(SpecError, match=r"init: 'dqnn' given 'dqnn' .did you mean dqn"):
        template.init_text("dqnn")


# Platforms

NUMBERS = {
    "width": {"value": 4, "source": "counted"}, "peak": "2 TFLOP/s", "memory_bandwidth": "3 GB/s",
    "overhead": "5 us", "idle_power": "6 W", "active_power": "7 W",
}  # fmt: skip

SHEET = (
    *("max_lanes", "memory_bytes", "peak_flops_per_s", "memory_bytes_per_s", "overhead_s"),
    *("idle_power_w", "active_power_w", "context_power_w", "clock_hz"),
)


def test_a_device_and_a_link_have_every_number_of_their_entries() -> None:
    full = {
        **NUMBERS, "kind": "null", "model": "M", "source": "sheet", "max_lanes": 2,
        "memory": "8 GiB", "context_power": "6.5 W", "when_unused": "off", "unified_memory": True,
        "simulated": True, "figures": {"clock_hz": "1 GHz", "dsp": {"value": 9, "source": "seen"}},
    }  # fmt: skip
    link = {"between": ["a", "b"], "latency": "1 us", "bandwidth": "2 GB/s"}
    whole = {**link, "per_message": "3 us", "energy": "4 pJ/B", "paid_by": "lane", "source": "s"}
    for given, expected in (
        (whole, Link("a", "b", 1e-6, 2e9, 3e-6, 4e-12, {}, "lane", (0.5, 3.0))),
        (link, Link("a", "b", 1e-6, 2e9, 0.0, 0.0, {}, "link", (0.5, 3.0))),
    ):
        data = {"devices": {"a": full, "b": {**NUMBERS, "kind": "null"}}, "links": [given]}
        platform, _, problems = read_platform(data)
        assert problems == []
        assert platform is not None
        found = platform.links[0]
        assert {**vars(found), "sources": {}} == {**vars(expected), "sources": {}}
        source = "s" if given is whole else "yours"
        names = ["latency_s", "bytes_per_s", "per_message_s", "energy_j_per_byte"]
        assert dict(found.sources) == dict.fromkeys(names[: 4 if given is whole else 2], source)
        first, second = platform.devices
        assert first == Device(
            "a", "null", 4, "cores", 2, 8 * 2.0**30, 2e12, 3e9, 5e-6, 6.0, 7.0, 6.5, "off", True,
            True, model="M", figures={"clock_hz": 1e9, "dsp": 9.0},
            sources={**dict.fromkeys(SHEET, "sheet"), "width": "counted", "dsp": "seen"},
        )  # fmt: skip
        bare = Device("b", "null", 4, "cores", 1, math.inf, 2e12, 3e9, 5e-6, 6.0, 7.0)
        assert {**vars(second), "sources": {}} == {**vars(bare), "sources": {}}
        assert set(second.sources.values()) == {"counted", "yours"}


def test_a_kind_that_is_not_imported_is_simulated_and_off_when_unused() -> None:
    data = {"devices": {"a": {**NUMBERS, "kind": "my_package.npu", "design": "any"}}}
    platform, _, problems = read_platform(data, imports=False)
    assert problems == []
    assert platform is not None
    (device,) = platform.devices
    assert (device.width_unit, device.simulated, device.when_unused) == ("units", True, "off")
    assert (device.design, device.real, device.model) == ("any", False, "")


def test_a_catalogue_with_a_fault_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def file(name: str, text: str) -> Any:
        return Given(name=name, read_bytes=text.encode, read_text=lambda _: text)

    def holding(*found: Any) -> None:
        folder = Given(iterdir=lambda: reversed(found))
        monkeypatch.setattr(catalogue, "files", lambda _: folder)

    good = file("a.yaml", "one:\n  kind: cpu  # note\n  width: 2\ntwo:\n  kind: gpu\n")
    holding(good, file("b.txt", "one: 3\n"))
    assert catalogue.catalogue.__wrapped__() == {"one": {"kind": "cpu", "width": 2},
                                                 "two": {"kind": "gpu"}}  # fmt: skip
    assert catalogue.read_lines("one") == ["  kind: cpu  # note", "  width: 2"]
    with pytest.raises(KeyError, match="thre"):
        catalogue.read_lines("three")
    holding(good, file("b.yaml", "two: {}\n"))
    with pytest.raises(ValueError, match=r"^b.yaml: also elsewhere: \['two'\]"):
        catalogue.catalogue.__wrapped__()
    holding(file("a.yaml", "one: 1\none: 2\n"))
    with pytest.raises(ValueError, match=r"^a.yaml: .*given twice"):
        catalogue.catalogue.__wrapped__()


# Limits and policies


def test_names_in_limits_that_do_not_exist_are_told_each_with_its_place() -> None:
    limits = {
        "memory": {"gpu": "1 B"}, "devices": {"updat": ["cpu", "gpuu"], "gae": 3},
        "variants": {"x": []}, "pin": {"update": "gpu", "y": 3}, "replicas": {"z": 2},
        "together": [["update", "a"], 3], "apart": [["b", "gae"]],
    }  # fmt: skip
    platform: Any = Given(devices=[Given(name="cpu"), Given(name="gpus")])
    lines = {where: what.split(";")[0] for where, what in
             find_unknown_names(limits, platform, ("update", "gae"))}  # fmt: skip
    task, near = "no task '{}'".format, " (did you mean gpus?)"
    assert lines == {
        ("limits", "devices", "updat"): f"{task('updat')} (did you mean update?)",
        ("limits", "variants", "x"): task("x"), ("limits", "pin", "y"): task("y"),
        ("limits", "replicas", "z"): task("z"), ("limits", "together", 0, 1): task("a"),
        ("limits", "apart", 0, 0): task("b"),
        ("limits", "memory", "gpu"): f"no device 'gpu'{near}",
        ("limits", "devices", "updat", 1): f"no device 'gpuu'{near}",
        ("limits", "pin", "update"): f"no device 'gpu'{near}",
    }  # fmt: skip
    assert {w[1] for w, _ in find_unknown_names(limits, None, None)} == set()
    pointless = {"power": "1 W", "period": "2 s", "min_throughput": None, "memory": {}}
    assert [where for where, _ in find_pointless_limits(pointless)] == [
        ("limits", "power"), ("limits", "period")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environments", "lanes", "limit", "whole", "parts"),
    [(6, 4, None, 4, 3), (6, 9, None, 6, 6), (6, 9, 4, 4, 3), (7, 4, None, 4, 1),
     (100, 80, None, 64, 50), (5, 0, None, 0, 1)],
)  # fmt: skip
def test_copies_of_a_task(
    environments: int, lanes: int, limit: int | None, whole: int, parts: int
) -> None:
    task: Any = Given(name="a", environments=environments)
    given = Limits(replicas={"a": limit} if limit else {"b": 1})
    found = [_copies(task, lanes, DISTRIBUTIONS[name], given)
             for name in ("synchronous_actors", "asynchronous_actors")]  # fmt: skip
    assert found == [whole, parts]


def test_a_policy_is_told_in_words() -> None:
    assert DISTRIBUTIONS["asynchronous_actors"].summary == (
        "environments on other hosts, actions on other hosts, gradient steps at home, the rest at "
        "home, rows stored in any order"
    )
    assert DISTRIBUTIONS["accelerated_networks"].summary.endswith("other kinds, the rest anywhere")


@pytest.mark.parametrize(
    ("shape", "stack", "stacked"),
    [((4, 84, 84), 4, True), ((84, 84, 4), 4, True), ((84, 4, 84), 4, False), ((4, 84), 4, False),
     ((3, 84, 84), 3, False), ((84, 84, 3), 3, False), ((3, 84, 84, 1), 3, True), ((1,), 1, False)],
)  # fmt: skip
def test_frames_that_are_stacked_already(shape: Any, stack: int, stacked: bool) -> None:
    assert _is_stacked(shape, stack) == stacked


# Errors of the user's code


def raising(name: str, text: str) -> CodeType:
    return compile(text, f"/{name}.py", "exec")


def test_an_error_is_placed_in_the_innermost_code_that_the_spec_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner, own = ModuleType("inner"), ModuleType("own.mine")
    own.__file__ = "/own.mine.py"
    exec(raising("inner", "def fail():\n    raise ValueError('bad\\nvalue')"), vars(inner))
    exec(raising("own.mine", "def call(f):\n\n    f()"), vars(own))
    monkeypatch.setitem(__import__("sys").modules, "own.mine", own)
    system: Any = Given(raw={"algorithm": {"name": "own.mine", "env": "E-v0"}})
    for call, place in ((lambda: own.call(inner.fail), "/own.mine.py, line 3"),
                        (inner.fail, "/inner.py, line 2")):  # fmt: skip
        with pytest.raises(user_code.UserCodeError) as caught:  # noqa: SIM117
            with user_code.reporting_user_errors(system, "the graph"):
                call()
        assert str(caught.value) == f"the graph fails: ValueError: bad value ({place})"
        assert user_code.locate_error(caught.value, system, "x") is caught.value
    named: Any = Given(raw={"algorithm": {"name": "dqn", "env": "E-v0"}})
    with pytest.raises(ValueError, match="bad"), user_code.reporting_user_errors(named, "x"):
        inner.fail()
    with pytest.raises(SpecError, match=r"^its own$"):  # noqa: SIM117
        with user_code.reporting_user_errors(system, "x"):
            raise SpecError("its own")
