"""The runs of a population: from seeds and values to settings, each a checked system."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.population.schedulers import RunStage
from pearl.seeds import checked_seed
from pearl.spec.reading import System, find_bad_keys, load, parse_set
from pearl_devices.validation import check_type

MOST = 10_000
"""Limit of the runs of a population (assumed)."""

MAX_NAME = 120
"""Limit of the characters of a name; a longer name is cut and ends in a digest."""

REFUSED = {
    "train.seed": "--seeds (`seeds`) gives the seeds",
    "limits.max_lanes": "the planner chooses the cores of a run",
}


@dataclass(frozen=True)
class Setting:
    """A spec with some values overridden. It has one run for each seed.

    name: made of the values; also the name of its spec file.
    values: dotted key of the spec → value.
    system: of the spec with these values.
    """

    name: str
    values: Mapping[str, object]
    system: System = field(repr=False)


@dataclass(frozen=True)
class Population:
    """The runs of a sweep.

    settings: at least one; every combination of the values.
    seeds: of each setting.
    over: dotted key of the spec → values that vary.
    """

    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    over: Mapping[str, tuple[object, ...]]

    @property
    def name(self) -> str:
        """The name of the spec."""
        return self.settings[0].system.name

    def runs(self) -> list[list[RunStage]]:
        """List the runs of every setting, one run a seed."""
        alone = len(self.settings) == 1 and not self.over
        return [
            [
                RunStage(
                    run=f"seed={seed}" if alone else f"{s.name},seed={seed}",
                    setting=s.name,
                    values=s.values,
                    seed=seed,
                    steps=s.system.train.steps,
                )
                for seed in self.seeds
            ]
            for s in self.settings
        ]


def build_population(
    spec: str | Path | Mapping[str, Any],
    *,
    seeds: Sequence[int] | None = None,
    over: Mapping[str, Sequence[object]] | None = None,
    set: Mapping[str, object] | None = None,
) -> Population:
    """Check the seeds and values of a sweep before anything runs, and make its settings.

    seeds: None for the seed of the spec.

    Raises:
        SpecError: a key, a value or a seed is wrong, missing or given twice.
    """
    problems = check_type("seeds", seeds, Sequence | None, "a list of seeds, as in [0, 1, 2],")
    problems += find_bad_keys("over", over, "lists of values")
    if problems:
        raise SpecError(*problems)
    varied = {key.strip(): tuple(_listed(key, values)) for key, values in (over or {}).items()}
    _check_over(varied, set or {})
    plain = load(spec, set=set)
    all_seeds = (plain.train.seed,) if seeds is None else tuple(map(checked_seed, seeds))
    if not all_seeds:
        raise SpecError("seeds: the list is empty; give at least one seed, as in 0..9 or 0,3,7")
    if twice := [s for s, times in Counter(all_seeds).items() if times > 1]:
        raise SpecError(f"seeds: {twice[0]} is given twice; the two runs would be the same")
    count = len(all_seeds)
    for each in varied.values():
        count *= len(each)
    if count > MOST:
        raise SpecError(f"the sweep would have {count:,} runs; at most {MOST:,} are allowed")
    settings: dict[str, Setting] = {}
    for chosen in product(*varied.values()):
        values = dict(zip(varied, chosen, strict=True))
        name = setting_name(values)
        if name in settings:
            raise SpecError(f"over: two settings are both named {name!r}; give values that differ")
        settings[name] = Setting(
            name, values, load_setting(spec, set or {}, values) if values else plain
        )
    return Population(tuple(settings.values()), all_seeds, varied)


def load_setting(
    spec: str | Path | Mapping[str, Any], set: Mapping[str, object], values: Mapping[str, object]
) -> System:
    """Load the system of a spec with some values overridden.

    Raises:
        SpecError: the spec is wrong; every line names the values.
    """
    try:
        return load(spec, set={**set, **values})
    except SpecError as error:
        where = ", ".join(f"{key}={value_text(value)}" for key, value in values.items())
        raise SpecError(*(f"with {where}: {line}" for line in error.problems)) from None


def _listed(key: str, values: object) -> Sequence[object]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SpecError(f"over: {key} is {values!r}; a list of values is needed")
    if not values:
        raise SpecError(f"over: {key} has no values; one or several are needed")
    return values


def _check_over(over: Mapping[str, Sequence[object]], set: Mapping[str, object]) -> None:
    problems = []
    for key, values in over.items():
        if key in REFUSED:
            problems.append(f"over: {key} cannot be varied: {REFUSED[key]}")
        if key in set:
            problems.append(f"over: {key} is set to {value_text(set[key])} too; leave out one")
        texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
        if twice := [t for t, times in Counter(texts).items() if times > 1]:
            problems.append(f"over: {key} has {twice[0]} twice; the runs would be the same")
    if problems:
        raise SpecError(*problems)


def value_text(value: object) -> str:
    """Format a value for a name: `0.0003`, `64x64`."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "x".join(map(value_text, value)) or "none"
    if isinstance(value, Mapping):
        return "+".join(f"{key}-{value_text(each)}" for key, each in value.items()) or "none"
    return str(value)


def setting_name(values: Mapping[str, object]) -> str:
    """Make the name of a setting, fit for a folder: `learning_rate=0.0003,batch_size=64`."""
    last = [key.rpartition(".")[2] for key in values]
    keys = [
        short if last.count(short) == 1 else key for key, short in zip(values, last, strict=True)
    ]
    text = ",".join(f"{k}={value_text(v)}" for k, v in zip(keys, values.values(), strict=True))
    name = re.sub(r"[^\w.,=+-]+|^\.+", "-", text) or "as-given"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}-{digest}"


def parse_seeds(text: str) -> list[int]:
    """Parse seeds: `0..9`, `0,3,7`, or both joined with commas.

    Raises:
        SpecError: the text is neither, a range runs backwards, or there are too many seeds.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})\s*(?:\.\.\s*(\d{1,19})\s*)?", part)
        if not match:
            raise SpecError(
                f"--seeds {text!r}: {part!r} is neither a seed nor a range; write 0..9 or 0,3,7"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise SpecError(f"--seeds {text!r}: {part!r} runs backwards; write {last}..{first}")
        if last - first >= MOST:
            raise SpecError(f"--seeds {text!r}: more than {MOST:,} seeds")
        seeds += range(first, last + 1)
    return seeds


def parse_over(argument: str) -> tuple[str, list[object]]:
    """Parse `algorithm.learning_rate=1e-4,3e-4`: the key and its values, each as in a spec file.

    Raises:
        SpecError: the argument has another form, or a value cannot be parsed.
    """
    key, equals, values = argument.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--over {argument!r}: the form must be key.path=value,value,…")
    name, parsed = parse_set(f"{key}=[{values}]")
    assert isinstance(parsed, list)
    return name, parsed


def parse_options(option: str, text: str, names: Sequence[str]) -> dict[str, int]:
    """Parse `eta=3,min_steps=1000`: whole numbers by name.

    Raises:
        SpecError: a name is unknown, missing or given twice, or a value is not a whole number.
    """
    options: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in names or name in options or not re.fullmatch(r"\d{1,18}", value):
            form = ",".join(f"{each}=N" for each in names)
            raise SpecError(f"{option} {text!r}: {part!r} is not understood; write {form}")
        options[name] = int(value)
    if missing := [name for name in names if name not in options]:
        raise SpecError(f"{option} {text!r}: {', '.join(missing)} is missing")
    return options
