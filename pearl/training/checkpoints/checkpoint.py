"""Checkpoints: every array of a run as safetensors, with a JSON description in the same file.

There is one file, so arrays and description can never disagree. It is written to a temporary file
beside it, synced and renamed, so that a crash or a full disk leaves the previous one whole. No
pickle. Arrays go to the file, and come from it, without a copy of them in memory.

`FORMAT` rises when files of the version before would be misread. A file of another format is
refused. Within a format keys may be added to the description: a reader leaves out unknown keys, and
names a missing one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl.errors import SpecError
from pearl.files import atomically
from pearl.planning.plans import pearl_version

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
FORMAT = 2
PIECE_BYTES = 16 * 2**20
"""An array is read in pieces of so much where its values are looked at."""

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "int64": "I64",
    "int32": "I32",
    "uint64": "U64",
    "uint8": "U8",
}
"""numpy's name of a type → that of safetensors."""
NUMPY = {ours: name for name, ours in DTYPES.items()}

EVERY = 10_000
"""Env steps between two checkpoints at least, where the spec leaves their times open."""
SHARE = 0.02
"""What a run may wait for checkpoints, of its time, where the spec leaves their times open."""
BEFORE_S, BYTES_PER_S = 0.05, 200e6
"""What writing takes beside its bytes, and how fast these go, until one was written (assumed)."""

ABOUT: dict[str, type | tuple[type, ...]] = {
    "spec": dict,
    "plan": dict,
    "emulate": bool,
    "seed": int,
    "progress": dict,
    "environments": dict,
    "pearl_version": str,
}
"""What the description must hold."""
WORDS = {dict: "an object", bool: "true or false", int: "a whole number", str: "a text"}


def save(path: str | Path, arrays: Arrays, about: Mapping[str, Any]) -> int:
    """Write `arrays` and the JSON-able `about` to one file, atomically; returns the bytes written.

    arrays: C-contiguous, as the leading rows of such an array are too.
    """
    text = json.dumps(
        {"format": FORMAT, "pearl_version": pearl_version(), **about}, allow_nan=False
    )
    names = sorted(arrays, key=lambda n: (-arrays[n].itemsize, n))  # so every one is aligned
    header: dict[str, Any] = {"__metadata__": {"pearl": text}}
    at = 0
    for name in names:
        array = arrays[name]
        end = at + array.nbytes
        dtype = DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (at, end)}
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with atomically(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            if arrays[name].size:
                file.write(_bytes_of(arrays[name]))
    return 8 + len(head) + at


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class CheckpointPacer:
    """The times of checkpoints that the spec leaves open.

    By the time of the last checkpoint and the bytes there are now, all checkpoints together take at
    most `SHARE` of the run's time. The results of a run do not depend on these times.

    now_s: seconds of a clock that only rises.
    """

    def __init__(self, now_s: float) -> None:
        self.begin_s, self.spent_s = now_s, 0.0
        self._last_s, self._last_bytes = 0.0, 0

    def due(self, nbytes: int, now_s: float) -> bool:
        """Whether a checkpoint of `nbytes` bytes may be written now."""
        takes_s = BEFORE_S + nbytes / BYTES_PER_S
        if self._last_bytes:
            takes_s = self._last_s * max(1.0, nbytes / self._last_bytes)
        return self.spent_s + takes_s <= SHARE * (now_s - self.begin_s)

    def wrote(self, nbytes: int, took_s: float) -> None:
        """Take note of a checkpoint: its bytes, and the seconds it took."""
        self.spent_s += took_s
        self._last_s, self._last_bytes = took_s, nbytes


@dataclass(frozen=True)
class ArrayLocation:
    """The place of an array in a file.

    at: bytes from the beginning of the file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint in its file, with no array read.

    about: its description.
    places: name of an array → its place.
    """

    path: Path
    about: Mapping[str, Any]
    places: Mapping[str, ArrayLocation]

    def read(self, name: str) -> Array:
        """An array by name."""
        place = self.places[name]
        out = np.empty(place.shape, place.dtype)
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: Array, first: int = 0) -> None:
        """Read the rows of an array from `first` on into `out`, C-contiguous and of the array's
        type.
        """
        place = self.places[name]
        if not out.size:
            return
        row_bytes = out.nbytes // len(out) if out.ndim else 0
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(place.at + first * row_bytes)
                left = _bytes_of(out)
                while left.nbytes:
                    count = file.readinto(left)
                    if not count:
                        raise SpecError(f"{self.path}: not a readable checkpoint: it has been cut")
                    left = left[count:]
        except OSError as error:
            raise SpecError(f"{self.path}: cannot be read: {error.strerror}") from None

    def pieces(self, name: str) -> Iterator[Array]:
        """The rows of an array in pieces of PIECE_BYTES."""
        place = self.places[name]
        if not place.shape:
            yield self.read(name)
            return
        row_bytes = place.dtype.itemsize * int(np.prod(place.shape[1:]))
        step = max(1, PIECE_BYTES // max(row_bytes, 1))
        for first in range(0, place.shape[0], step):
            out = np.empty((min(step, place.shape[0] - first), *place.shape[1:]), place.dtype)
            self.read_into(name, out, first)
            yield out


def load(path: str | Path) -> CheckpointFile:
    """A checkpoint, its description checked for the keys that every reader needs.

    Raises:
        SpecError: the file is missing, truncated, foreign or of another format, or its
        description lacks a key. File and key are named.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise SpecError(f"{path}: there is no checkpoint here")
    try:
        with safe_open(str(path), framework="numpy") as file:  # it checks the header
            about = json.loads((file.metadata() or {}).get("pearl", "null"))
        with path.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(size))
        places = {
            name: ArrayLocation(np.dtype(NUMPY[e["dtype"]]), tuple(e["shape"]), 8 + size + at)
            for name, e in header.items()
            if name != "__metadata__"
            for at in e["data_offsets"][:1]
        }
    except KeyError as error:
        raise SpecError(f"{path}: not a checkpoint: it has arrays of type {error}") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not a readable checkpoint: {error}") from None
    if not isinstance(about, dict) or "format" not in about:
        raise SpecError(f"{path}: not a checkpoint of pearl")
    if about["format"] != FORMAT:
        raise SpecError(
            f"{path}: a checkpoint of format {about['format']!r}, written by pearl "
            f"{about.get('pearl_version', 'of an older version')}; pearl {pearl_version()} reads "
            f"format {FORMAT}; go on with the version that wrote it"
        )
    wrong = [
        f"{path}: {key} is {abbreviate(about.get(key))}; {WORDS[kind]} is needed"  # type: ignore[index]
        for key, kind in ABOUT.items()
        if type(about.get(key)) is not kind
    ]
    if wrong:
        raise SpecError(*wrong)
    return CheckpointFile(path, about, places)


def abbreviate(value: Any) -> str:
    """A value of a file for a message, cut where it is long."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
