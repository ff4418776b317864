"""What may change where a run goes on from a checkpoint, and how many env steps it then has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.training.state import State
from pearl_devices import Buffers

FIXED = ("train.seed",)
"""Keys of `train` that may not change; all others of `train` may, and none beside them."""


def check_spec(before: Mapping[str, Any], now: Mapping[str, Any], file: Path) -> None:
    """SpecError naming every key that changed and may not. before: the spec in the checkpoint."""
    old, new = _flat(before), _flat(now)
    changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    refused = [k for k in changed if not k.startswith("train.") or k in FIXED]
    if refused:
        raise SpecError(
            *(
                f"{file}: {k} was {old.get(k)!r} and is now {new.get(k)!r}; a run goes on with the "
                "spec it began with, of which only keys of train other than seed may change"
                for k in refused
            )
        )


def check_seed(before: int, asked: int | None, file: Path) -> None:
    """SpecError where another seed is asked for than the run began with."""
    if asked is not None and asked != before:
        raise SpecError(
            f"{file}: the run began with seed {before}, and {asked} is asked for; a run goes on "
            "with its random streams: leave the seed out, or start another run in another folder"
        )


def total_steps(
    state: State, per: int, steps: int | None, in_spec: int, spec_now: int, file: Path
) -> tuple[int, int]:
    """Env steps of the run from now on, and what they were before.

    per: env steps of an iteration. steps: asked for; without them those of the spec where it had
    others (in_spec) when the run began, else what the run had or, where it has come to its end, the
    spec's. Fewer than are done is a SpecError.
    """
    before, done, total = state.total_steps, state.iteration, steps
    if total is None and spec_now != in_spec:
        total = spec_now
    elif total is None:
        total = before if done < -(-before // per) else max(before, spec_now)
    if -(-total // per) < done:
        raise SpecError(
            f"{file}: the run has done {done * per} env steps, and {total} are asked for; a run "
            f"goes on, not back: ask for {done * per} or more"
        )
    return total, before


def constants(arrays: Buffers) -> Buffers:
    """Copies of the arrays that are set from spec and total, and that training never changes."""
    return {
        name: array.copy()
        for name, array in arrays.items()
        if name.startswith("hyper.") or name.partition("@")[0] == "replay.beta"
    }


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found
