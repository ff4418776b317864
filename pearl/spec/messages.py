"""Messages for problems that pydantic reports: the given value, the allowed ones, the nearest
name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import ErrorDetails, ValidationError

from pearl.spec.yaml_reader import Where, parse_scalar, show

Complaint = tuple[Where, str]
"""The path of keys to a value, and its problem."""

_ALLOWED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
}


SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "gamma": ("discount",),
    "lr": ("learning_rate",),
    "n_envs": ("num_envs",),
    "n_steps": ("rollout_steps", "n_step"),
    "n_epochs": ("epochs",),
    "ent_coef": ("entropy",),
    "vf_coef": ("value_weight",),
    "clip_range": ("clip",),
    "buffer_size": ("algorithm.replay.capacity",),
    "capacity": ("algorithm.replay.capacity",),
    "device": ("platform", "limits.devices"),
    "net_arch": ("hidden",),
    "total_timesteps": ("train.steps",),
    "timesteps": ("train.steps",),
    "eval_freq": ("evaluate_every", "train.evaluate_every"),
}
"""A key's name in other libraries → the keys here; with a dot, in another section."""

SECTIONS = ("platform",)
"""Keys of the top level that a synonym may name."""


LEAST, FEW = 2, 3
"""Least letters of a beginning that selects names, and most names."""


def suggest_nearest(given: object, names: Iterable[str]) -> str:
    """Return ` (did you mean x?)` for a wrong name; empty if no name is similar.

    A name that is almost the same comes first, then names with the same beginning, then the most
    similar one.
    """
    text, all_names = str(given)[:200], list(names)
    begin = [name for name in all_names if name.startswith(text.lower())][:FEW]
    found = difflib.get_close_matches(text, all_names, 1, 0.8)
    found = found or (begin if len(text) >= LEAST else [])
    found = found or difflib.get_close_matches(text, all_names, 1, 0.6)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def _suggest_key(key: object, allowed: Iterable[str]) -> str:
    """` (did you mean x?)`: the key with that name in other libraries, or the most similar key."""
    names = (*allowed, *SECTIONS)
    called = [name for name in SYNONYMS.get(str(key), ()) if "." in name or name in names]
    return f" (did you mean {' or '.join(called)}?)" if called else suggest_nearest(key, allowed)


def allow(error: object) -> str:
    """Return the second half of a message for a ValueError that states what is allowed."""
    return str(error) if ";" in str(error) else f"allowed: {error}"


def list_complaints(
    error: ValidationError, data: Any, where: Where, model: type, others: Mapping[str, type] = {}
) -> list[Complaint]:
    """List every problem in `error`. `data` was checked against `model` and stands at `where`.

    others: name → further models, whose keys are recognised.
    """
    found: dict[Where, list[str]] = {}
    for detail in error.errors(include_url=False):
        path = _strip_path(detail, data)
        found.setdefault((*where, *path), []).append(_explain(detail, path, model, others))
    return [(path, text) for path, texts in found.items() for text in _joined(texts)]


ALLOWED = "; allowed: "


def _joined(texts: list[str]) -> list[str]:
    """Join the complaints about one value that only differ in what is allowed: the value may have
    one of several types."""
    given = {text.partition(ALLOWED)[0] for text in texts}
    if len(texts) < 2 or len(given) > 1 or not all(ALLOWED in text for text in texts):
        return texts
    allowed = dict.fromkeys(text.partition(ALLOWED)[2] for text in texts)
    return [f"{given.pop()}{ALLOWED}{', or '.join(allowed)}"]


def _strip_path(detail: ErrorDetails, data: Any) -> Where:
    """The error's location without pydantic's additions (tags of unions, `[key]`)."""
    path: Where = ()
    for part in detail["loc"]:
        inside = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path, data = (*path, part), data[part]
        elif detail["type"] == "missing" and part == detail["loc"][-1]:
            path = (*path, part)
    return path


def _explain(detail: ErrorDetails, path: Where, model: type, others: Mapping[str, type]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    owner = model_at(model, path[:-1])
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        key, allowed = path[-1], sorted(fields_of(owner))
        for name, other in others.items():
            if other is not model and key in fields_of(model_at(other, path[:-1])):
                return f"a key of algorithm {name}; this algorithm takes {', '.join(allowed)}"
        return f"unknown key{_suggest_key(key, allowed)}; allowed are {', '.join(allowed)}"
    if kind == "missing":
        description = (fields_of(owner)[str(path[-1])].description or str(path[-1])).rstrip(".")
        return f"missing; needed: {description[:1].lower()}{description[1:]}"
    given = f"given {show(detail['input'])}"
    if kind == "literal_error":
        names = [n.strip("'") for n in context["expected"].replace(" or ", ", ").split(", ")]
        return f"{given}{suggest_nearest(detail['input'], names)}; allowed: {' or '.join(names)}"
    if kind == "value_error":
        return f"{given}; {allow(context['error'])}"
    allowed_text = _ALLOWED.get(kind)
    if allowed_text is None:
        return f"{given}; {detail['msg'][:1].lower()}{detail['msg'][1:]}"
    allowed_text = allowed_text.format(**context)
    if kind in ("tuple_type", "list_type") and isinstance(detail["input"], int | float | str):
        items = str(detail["input"]).split(",")
        shown = [show(parse_scalar(item.strip())) for item in items]
        allowed_text += f", such as [{', '.join(shown)}]"
    return f"{given}; allowed: {allowed_text}"


def fields_of(model: Any) -> Mapping[str, Any]:
    """Map the keys of a model to its fields; empty for a value that is no model."""
    found: Mapping[str, Any] = getattr(model, "__pydantic_fields__", {})
    return found


def model_at(model: Any, path: Where) -> Any:
    """Return the model of the value at `path` inside `model`; None if there is no model."""
    at = model
    for part in path:
        at = _unwrap(at)
        if fields_of(at):
            field = fields_of(at).get(str(part))
            at = field.annotation if field is not None else None
        else:  # dict[str, M] or tuple[M, ...]
            at = next((a for a in reversed(get_args(at)) if a is not Ellipsis), None)
    at = _unwrap(at)
    return at if fields_of(at) else None


def _unwrap(annotation: Any) -> Any:
    """The model or container inside `Annotated[…]` and `… | None`, if there is one."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        inner = [_unwrap(a) for a in get_args(annotation)]
        return next((a for a in inner if fields_of(a) or get_origin(a) is not None), None)
    return annotation
