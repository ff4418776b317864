"""Small parts of reading a spec, each on its bounds: quantities, names, texts, entries, errors."""

from __future__ import annotations

from fractions import Fraction
from types import CodeType, ModuleType
from types import SimpleNamespace as Given
from typing import Any

import pytest
from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms.options import STRICT
from pearl.errors import SpecError
from pearl.spec import catalogue, template, user_code
from pearl.spec.checks import find_pointless_limits, find_unknown_names
from pearl.spec.platform_files import read_platform
from pearl.spec.units import DIMENSIONS, parse_quantity

# Quantities

PREFIXES = {"bytes": ("B", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
            "bits": ("bit", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
            "bytes_per_s": ("B/s", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
            "flops_per_s": ("FLOP/s", {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}),
            "hz": ("Hz", {"k": 3, "M": 6, "G": 9}),
            "s": ("s", {"p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3}),
            "j_per_byte": ("J/B", {"p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3}),
            "w": ("W", {"m": -3, "k": 3, "M": 6}), "per_s": ("/s", {})}  # fmt: skip


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


# Names and texts


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


# Platforms

NUMBERS = {
    "width": {"value": 4, "source": "counted"}, "peak": "2 TFLOP/s", "memory_bandwidth": "3 GB/s",
    "overhead": "5 us", "idle_power": "6 W", "active_power": "7 W",
}  # fmt: skip


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
        "memory": {"gpu": "1 B"}, "devices": {"lern": ["cpu", "gpuu"], "advantages": 3},
        "variants": {"x": []}, "pin": {"learn": "gpu", "y": 3}, "replicas": {"z": 2},
        "together": [["learn", "a"], 3], "apart": [["b", "advantages"]],
    }  # fmt: skip
    platform: Any = Given(devices=[Given(name="cpu"), Given(name="gpus")])
    lines = {where: what.split(";")[0] for where, what in
             find_unknown_names(limits, platform, ("learn", "advantages"))}  # fmt: skip
    task, near = "no task '{}'".format, " (did you mean gpus?)"
    assert lines == {
        ("limits", "devices", "lern"): f"{task('lern')} (did you mean learn?)",
        ("limits", "variants", "x"): task("x"), ("limits", "pin", "y"): task("y"),
        ("limits", "replicas", "z"): task("z"), ("limits", "together", 0, 1): task("a"),
        ("limits", "apart", 0, 0): task("b"),
        ("limits", "memory", "gpu"): f"no device 'gpu'{near}",
        ("limits", "devices", "lern", 1): f"no device 'gpuu'{near}",
        ("limits", "pin", "learn"): f"no device 'gpu'{near}",
    }  # fmt: skip
    assert {w[1] for w, _ in find_unknown_names(limits, None, None)} == set()
    pointless = {"power": "1 W", "period": "2 s", "min_throughput": None, "memory": {}}
    assert [where for where, _ in find_pointless_limits(pointless)] == [
        ("limits", "power"), ("limits", "period")
    ]  # fmt: skip


# Errors of the user's code


def raising(name: str, text: str) -> CodeType:
    return compile(text, f"/{name}.py", "exec")


def test_an_error_is_placed_in_the_innermost_code_that_the_spec_names(monkeypatch):
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
