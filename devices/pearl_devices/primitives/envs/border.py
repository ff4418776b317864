"""The border: all that code of environments gives or gets passes through this module.

It reads what `reset` and `step` return (observations, rewards, flags, infos) into rows of numbers,
and checks the actions that an environment gets. Training, evaluation, the rehearsal of
`pearl check --import`, resumed runs and `pearl.Policy` use it, so all of them read alike, and no
other module looks at what an environment returned. `spaces` describes gymnasium's spaces for it;
here gymnasium is not imported.

What has a clear meaning is taken: a reward or a flag in an array of one element, axes of length 1.
Everything else is an `Unfit`, whose text is one sentence about the value, without the environment's
name: the caller knows the environment, the episode and the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NUMBERS = "biuf"
"""Kinds of numpy's types that are numbers."""


class Unfit(ValueError):
    """What an environment returned cannot be used; the text is a sentence about it.

    row: number of the environment in a batch; None if it is not known or there is no batch.
    """

    def __init__(self, text: str, row: int | None = None) -> None:
        super().__init__(text, row)
        self.text, self.row = text, row

    def __str__(self) -> str:
        return self.text


class WrongInterface(Unfit):
    """A method of an environment has another signature or another number of results than
    gymnasium's. A new environment of the same class would fail in the same way."""


@dataclass(frozen=True)
class ObservationPart:
    """A part of an observation: numbers, or choices that become one-hot.

    path: keys and places that lead to it; () if it is the whole observation.
    shape: its axes.
    counts: number of choices of each element; () for numbers.
    starts: the first number of each element's choices; () for numbers.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of its components in a flat observation."""
        return sum(self.counts) if self.counts else math.prod(self.shape)

    @cached_property
    def name(self) -> str:
        """The observation, or the entry of it, in words."""
        return f"observation{''.join(f'[{key!r}]' for key in self.path)}"

    @cached_property
    def squeezed(self) -> tuple[int, ...]:
        """Its axes that are longer than 1."""
        return _squeezed(self.shape)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def size_of(parts: Sequence[ObservationPart]) -> int:
    """Return the number of components of a flat observation."""
    return sum(part.size for part in parts)


class Reader:
    """Reads observations of one space.

    parts: of the space, in the order of the flat observation.
    table: a discrete observation is read as its number from 0, instead of one-hot.
    factors: (O,) by which the components are multiplied; None: they stay.
    """

    def __init__(
        self,
        parts: Sequence[ObservationPart],
        *,
        table: bool = False,
        factors: npt.NDArray[np.float32] | None = None,
    ) -> None:
        self.parts, self.table, self.factors = tuple(parts), table, factors
        self.size = 1 if table else size_of(parts)
        first = self.parts[0]
        self._whole = len(self.parts) == 1 and not first.path  # no Dict and no Tuple
        self._plain = self._whole and not first.counts
        self._shape = first.shape
        self._vector = len(first.shape) == 1

    def read(self, seen: Any, out: Array) -> None:
        """Write one observation to `out` (O,), a row of floats.

        Raises:
            Unfit: it does not belong to the space.
        """
        if self._plain:  # the fast path: one array of numbers
            given = seen if type(seen) is np.ndarray else _array(seen, self.parts[0])
            if given.shape != self._shape:
                given = _fitted(given, self.parts[0])
            if given.dtype.kind not in NUMBERS:
                raise _not_numbers(self.parts[0], seen)
            out[:] = given if self._vector else given.reshape(-1)
        else:
            row, at = out[np.newaxis], 0
            for part in self.parts:
                given = _array(_entry(part, seen), part)
                if given.shape != part.shape:
                    given = _fitted(given, part)
                self._write(part, given[np.newaxis], row[:, at : at + part.size])
                at += part.size
        if self.factors is not None:
            out *= self.factors

    def read_batch(self, seen: Any, out: Array) -> None:
        """Write a batch of observations, the first axis of each part, to `out` (N, O).

        Raises:
            Unfit: one does not belong to the space.
        """
        at = 0
        for part in self.parts:
            given = seen if self._whole else _entry(part, seen)
            rows = (len(out), *part.shape)
            if type(given) is not np.ndarray or given.shape != rows:
                given = _rows(given, part, rows)
            self._write(part, given, out[:, at : at + part.size])
            at += part.size
        if self.factors is not None:
            out *= self.factors

    def read_given(self, obs: Any, dtype: Any) -> tuple[Array, bool]:
        """Return rows (B, O) of observations that a user gives, and whether it is a single one.

        obs: one observation of the environment; several, along the first axis of each part or as a
            list; or the same flattened, (O,) or (B, O). Of a Discrete of n, whole numbers of shape
            (n,) are n observations, and floats are a flat one.

        Raises:
            ValueError: no observation of the environment.
        """
        if isinstance(obs, list) and obs and isinstance(obs[0], Mapping | tuple):
            found = np.zeros((len(obs), self.size), dtype)
            for each, row in zip(obs, found, strict=True):
                self.read(each, row)
            return found, False
        if not self._whole and isinstance(obs, Mapping | tuple):
            return self._given_parts(obs, dtype)
        given = _array(obs, self.parts[0])
        first = self.parts[0]
        whole = given.dtype.kind in "biu" or not first.counts or self.table
        if self._whole and whole and given.shape == first.shape:
            found = np.zeros((1, self.size), dtype)
            self.read(given, found[0])
            return found, True
        batch = given.ndim == len(first.shape) + 1 and given.shape[1:] == first.shape
        if self._whole and whole and batch:
            found = np.zeros((len(given), self.size), dtype)
            self.read_batch(given, found)
            return found, False
        if self.table or given.shape[-1:] != (self.size,) or given.ndim not in (1, 2):
            raise Unfit(f"observations have shape {given.shape}; the policy takes {self._takes()}")
        if given.dtype.kind not in NUMBERS:
            raise Unfit(f"observations are of type {given.dtype}; numbers are needed")
        found = np.array(given, dtype, ndmin=2)
        if self.factors is not None:
            found *= self.factors
        return found, given.ndim == 1

    def _given_parts(self, obs: Any, dtype: Any) -> tuple[Array, bool]:
        """As `read_given`, for a Dict or a Tuple."""
        axes = {np.ndim(_entry(part, obs)) - len(part.shape) for part in self.parts}
        if axes == {0}:
            found = np.zeros((1, self.size), dtype)
            self.read(obs, found[0])
            return found, True
        if axes != {1}:
            shapes = {part.name: np.shape(_entry(part, obs)) for part in self.parts}
            raise Unfit(f"observations have shapes {shapes}; the policy takes {self._takes()}")
        found = np.zeros((len(_entry(self.parts[0], obs)), self.size), dtype)
        self.read_batch(obs, found)
        return found, False

    def _takes(self) -> str:
        if self.table:
            return "(B,), numbers of states"
        own = "" if self._plain and len(self._shape) == 1 else f", flat, or {self._own()}"
        return f"(B, {self.size}){own}"

    def _own(self) -> str:
        shapes = [f"{part.name} {('B', *part.shape)}".replace("'", "") for part in self.parts]
        return "as the environment gives them: " + ", ".join(shapes)

    def _write(self, part: ObservationPart, given: Array, out: Array) -> None:
        """Write a part (R, …) to its columns of the rows."""
        if given.dtype.kind not in NUMBERS:
            raise _not_numbers(part, given)
        flat = given if given.ndim == 2 else given.reshape(len(given), -1)
        if not part.counts:
            out[:] = flat
            return
        number = flat.astype(np.int64) if given.dtype.kind != "f" else _whole(part, flat)
        number = number - np.array(part.starts)
        wrong = ((number < 0) | (number >= np.array(part.counts))).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            ends = [f"{a} … {a + n - 1}" for a, n in zip(part.starts, part.counts, strict=True)]
            shown = flat[row].tolist()
            raise Unfit(
                f"{part.name} is {shown if part.shape else shown[0]}; its space has "
                f"{', '.join(ends)}",
                row if len(flat) > 1 else None,
            )
        if self.table:
            out[:] = number
            return
        out[:] = 0
        places = number + np.r_[0, np.cumsum(part.counts[:-1])].astype(np.int64)
        np.put_along_axis(out, places, 1, axis=1)


def _entry(part: ObservationPart, seen: Any) -> Any:
    """The part of an observation.

    Raises:
        Unfit: it is missing.
    """
    for key in part.path:
        try:
            seen = seen[key]
        except (KeyError, IndexError, TypeError):
            raise Unfit(f"{part.name} is missing; the observation is {_shown(seen)}") from None
    return seen


def unmasked(value: Any) -> Array:
    """Return a value as an array.

    Raises:
        ValueError: it has masked elements, of which numpy would take what lies under the mask.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("it has masked elements")
    return np.asarray(value)


def _array(value: Any, part: ObservationPart) -> Array:
    try:
        return unmasked(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise Unfit(f"{part.name} {_shown(value)} is no array of numbers: {error}") from None


def _fitted(given: Array, part: ObservationPart) -> Array:
    """An observation of another shape, if only axes of length 1 differ."""
    if given.dtype.kind not in NUMBERS:
        raise _not_numbers(part, given)
    if _squeezed(given.shape) != part.squeezed:
        raise Unfit(f"{part.name} has shape {given.shape}; its space has {part.shape}")
    return given.reshape(part.shape)


def _rows(value: Any, part: ObservationPart, rows: tuple[int, ...]) -> Array:
    """A batch as an array of shape `rows`, if only axes of length 1 differ."""
    given = _array(value, part)
    if given.ndim == 0 or given.shape[0] != rows[0] or _squeezed(given.shape[1:]) != part.squeezed:
        raise Unfit(f"{part.name} of the batch has shape {given.shape}; expected {rows}")
    return given.reshape(rows)


def _not_numbers(part: ObservationPart, value: Any) -> Unfit:
    if isinstance(value, np.ndarray) and value.ndim == 0:  # an object, such as None
        value = value.item()
    return Unfit(f"{part.name} is {_shown(value)}; numbers are needed")


def _whole(part: ObservationPart, flat: Array) -> npt.NDArray[np.int64]:
    """Floats that are whole numbers, as integers."""
    if not np.isfinite(flat).all() or (flat != np.floor(flat)).any():
        raise Unfit(f"{part.name} is {_shown(flat)}; its space has whole numbers")
    return flat.astype(np.int64)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}…"


# ------------------------------------------------------------------ results of reset and step

FIVE = "observation, reward, terminated, truncated, info"


def read_reset(found: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return observation and info of a reset; the info is empty if it is None.

    Raises:
        WrongInterface: the reset returned something else.
    """
    if isinstance(found, tuple | list) and len(found) == 2:
        seen, info = found
        if isinstance(info, Mapping):
            return seen, info
        if info is None:
            return seen, {}
    raise WrongInterface(
        f"its reset returns {_shown(found)}; 2 values are needed: observation, info, a dict"
    )


def reset(env: Any, **options: Any) -> tuple[Any, Mapping[str, Any]]:
    """Reset an environment; return observation and info.

    Raises:
        WrongInterface: its reset takes no seed, or does not return observation and info.
    """
    try:
        found = env.reset(**options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise WrongInterface(
            f"its reset takes no {' and no '.join(options)} ({error}): define "
            "reset(self, *, seed=None, options=None) and call super().reset(seed=seed), as "
            "gymnasium describes it"
        ) from error
    return read_reset(found)


def read_step(found: Any) -> tuple[Any, float, bool, bool]:
    """Return observation, reward, terminated and truncated of a step.

    Raises:
        Unfit: a reward or a flag is none.
        WrongInterface: the step did not return five values.
    """
    if type(found) is not tuple or len(found) != 5:
        found = _five(found)
    seen, reward, terminated, truncated, _ = found
    if type(reward) is not float:
        reward = read_reward(reward)
    if terminated is not True and terminated is not False:
        terminated = read_flag(terminated, "terminated")
    if truncated is not True and truncated is not False:
        truncated = read_flag(truncated, "truncated")
    return seen, reward, terminated, truncated


def _five(found: Any) -> Any:
    if not isinstance(found, tuple | list):
        raise WrongInterface(f"its step returns {_shown(found)}; 5 values are needed: {FIVE}")
    if len(found) != 5:
        more = ""
        if len(found) == 4:
            more = "; for an environment of gym before 0.26, give it a wrapper that splits done"
        raise WrongInterface(f"its step returns {len(found)} values, 5 are needed: {FIVE}{more}")
    return found


def read_reward(value: Any) -> float:
    """Return a reward as a float.

    Raises:
        Unfit: it is not one number.
    """
    given = _one(value)
    if given is None or given.dtype.kind not in NUMBERS:
        shape = np.shape(value) if isinstance(value, np.ndarray) else ()
        is_what = f"has shape {shape}" if math.prod(shape) != 1 else f"is {_shown(value)}"
        raise Unfit(f"reward {is_what}; one number is needed")
    return float(given)


def read_flag(value: Any, what: str) -> bool:
    """Return a flag as a bool. what: its name.

    Raises:
        Unfit: it is neither true nor false.
    """
    given = _one(value)
    if given is None or given.dtype.kind not in NUMBERS or given not in (0, 1):
        raise Unfit(f"{what} is {_shown(value)}; True or False is needed")
    return bool(given)


def odd_types(found: Any) -> list[str]:
    """Return sentences about values of a step that are taken, and are of another type than
    gymnasium's."""
    odd = []
    if isinstance(found[1], np.ndarray) and found[1].ndim:
        odd.append(f"reward is an array of shape {found[1].shape}; it is taken as one number")
    for value, what in zip(found[2:4], ("terminated", "truncated"), strict=True):
        if not isinstance(value, bool | np.bool_):
            odd.append(
                f"{what} is {_shown(value)}, of type {type(value).__name__}; taken as a bool"
            )
    return odd


def _one(value: Any) -> Any:
    """The only element of a value, with numpy's type; None if there are none or several."""
    try:
        given = unmasked(value)
    except (ValueError, TypeError, RuntimeError):
        return None
    return given.reshape(-1)[0] if given.size == 1 and given.dtype.kind != "O" else None


def read_batch_step(found: Any, envs: int) -> tuple[Any, Array, Array, Array, Any]:
    """Return observations, rewards, terminated, truncated and infos of a vector environment's step.

    Raises:
        Unfit: rewards or flags are not one for each environment.
        WrongInterface: the step did not return five values.
    """
    seen, reward, terminated, truncated, infos = _five(found)
    rewards = _column(reward, envs, "reward", "one number")
    flags = []
    for value, what in ((terminated, "terminated"), (truncated, "truncated")):
        given = _column(value, envs, what, "True or False")
        if given.dtype.kind != "b":
            if not np.isin(given, (0, 1)).all():
                raise Unfit(f"{what} is {_shown(value)}; True or False is needed for each")
            given = given.astype(bool)
        flags.append(given)
    return seen, rewards, *flags, infos


def _column(value: Any, envs: int, what: str, needed: str) -> Array:
    if type(value) is np.ndarray and value.shape == (envs,) and value.dtype.kind in NUMBERS:
        return value
    try:
        given = unmasked(value)
    except (ValueError, TypeError, RuntimeError):
        given = np.zeros(())
    if given.dtype.kind not in NUMBERS or _squeezed(given.shape) != _squeezed((envs,)):
        raise Unfit(f"{what} is {_shown(value)}; {needed} for each of {envs} is needed")
    return given.reshape(envs)


# ------------------------------------------------------------------ actions


def all_finite(values: Array) -> bool:
    """Whether no number is NaN or infinite."""
    flat = values.reshape(-1)
    # A sum of squares is finite only if all numbers are, and cheaper than a test of each.
    return flat.dot(flat) < math.inf or bool(np.isfinite(flat).all())


def bad_action(actions: Array) -> int | None:
    """Return the row of the first action that is not finite; None if all are finite."""
    if actions.dtype.kind != "f" or all_finite(actions):
        return None
    return int(np.argwhere(~np.isfinite(actions.reshape(len(actions), -1)))[0][0])


def not_given(action: Any) -> str:
    """Say why an environment was not given an action that is not finite."""
    return (
        f"it was not given the action {_shown(np.asarray(action).tolist())}, which is not finite: "
        "the policy's outputs are not finite, because training has diverged (a smaller learning "
        "rate may help) or the bounds of the action are too wide"
    )


WIDEST = float(np.finfo(np.float32).max)
"""The largest difference of two bounds between which an action is computed in float32."""


def in_float32(bound: float) -> float:
    """A bound of an action as float32 has it: infinite if it is beyond the largest number."""
    return math.copysign(math.inf, bound) if abs(bound) > WIDEST else bound  # also not a number


def too_wide(low: float, high: float) -> bool:
    """Whether no action between two bounds can be computed: one is infinite, or they are too far
    apart."""
    return not high - low <= WIDEST
