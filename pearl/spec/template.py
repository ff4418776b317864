"""`init_text`: a first spec, written from the models, so that it is never outdated."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from pydantic_core import PydanticUndefined

from pearl.algorithms import ALGORITHMS, undotted_name_error
from pearl.algorithms import algorithm as module
from pearl.errors import SpecError
from pearl.spec.messages import fields_of
from pearl.spec.models import LimitsSection, Spec, Train

FIRST_KEYS = ("num_envs", "hidden", "batch_size", "replay_ratio", "rollout_steps")
"""Keys of an algorithm that most users change first."""


def init_text(algorithm: str | None = None, env: str | None = None, *, full: bool = False) -> str:
    """Write a spec that can be loaded unchanged.

    algorithm: None: the first that ships.
    env: None: a small environment that suits the algorithm.
    full: write every key with its default and its meaning, not only the first keys to change.

    Raises:
        SpecError: no algorithm that ships has this name.
    """
    algorithm = algorithm or ALGORITHMS[0]
    if algorithm not in ALGORITHMS:
        raise SpecError(f"--algorithm: {undotted_name_error(algorithm)}")
    source = module(algorithm)
    if env is None:
        small = "Pendulum-v1" if source.ACTIONS == "continuous" else "CartPole-v1"
        env = "FrozenLake-v1" if getattr(source, "FAMILY", "") == "tabular" else small
    named = {"name": algorithm, "env": env}
    return (_full_text if full else _short_text)(source.Options, named)


def _short_text(options: type, named: Mapping[str, Any]) -> str:
    fields = fields_of(options)
    defaults = {
        key: fields[key].get_default(call_default_factory=True)
        for key in FIRST_KEYS
        if key in fields
    }
    keys = [f"  {key}: {_value(value)}" for key, value in {**named, **defaults}.items()]
    return "\n".join(
        [
            "# `pearl init --full` writes every key with its meaning; `pearl check` finds errors.",
            "algorithm:",
            *keys,
            "platform: host          # this machine; `pearl list platforms` shows others",
            "objective: throughput   # or power_efficiency, makespan, robust, robust_worst",
            f"train: {{steps: {fields_of(Train)['steps'].default}, seed: 0}}",
            "",
        ]
    )


def _full_text(options: type, named: Mapping[str, Any]) -> str:
    lines = [
        "# A system spec: what is trained, where, and what a plan may do. Every key with its",
        "# default; delete what you do not change. Quantities carry their unit (8 GiB, 2 ms).",
    ]
    lines += ["", "algorithm:"]
    lines += _keys(options, named, 1)
    for key in ("platform", "objective"):
        field = fields_of(Spec)[key]
        lines += ["", *_comment(field.description, 0), f"{key}: {field.default}"]
    for key, model in (("limits", LimitsSection), ("train", Train)):
        lines += ["", *_comment(fields_of(Spec)[key].description or "", 0), f"{key}:"]
        lines += _keys(model, {}, 1)
    return "\n".join(lines) + "\n"


def _keys(model: type, values: Mapping[str, Any], depth: int) -> list[str]:
    pad, lines = "  " * depth, []
    for key, field in fields_of(model).items():
        default = values.get(key, field.get_default(call_default_factory=True))
        lines += _comment(field.description, depth)
        if fields_of(type(default)):
            inner = {k: v for k, v in asdict(default).items() if v is not None}
            lines += [f"{pad}{key}:", *_keys(type(default), inner, depth + 1)]
        elif default is None or default is PydanticUndefined:
            lines.append(f"{pad}# {key}:")
        else:
            lines.append(f"{pad}{key}: {_value(default)}")
    return lines


def _value(default: Any) -> str:
    if isinstance(default, str | Fraction):
        return str(default)
    return json.dumps(default)


def _comment(words: str, depth: int) -> list[str]:
    pad = "  " * depth + "# "
    return textwrap.wrap(words or "", 96, initial_indent=pad, subsequent_indent=pad)
