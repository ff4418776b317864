"""Checkpoints: every array of a run as safetensors, with a JSON description in the same file.

Arrays and description are one file, so they can never disagree. The file is written to a temporary
file, synced and renamed: a crash or a full disk leaves the previous checkpoint whole. There is no
pickle. Arrays are written and read without a copy in memory.

`pearl.formats` has the number of the format. Within a format, the description may gain keys: a
reader ignores unknown keys and names missing ones.
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
from pearl.formats import check_format, latest, pearl_version
from pearl.task_names import present_name, use_present_names
from pearl_devices.validation import quote

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
PIECE_BYTES = 16 * 2**20
"""Size of the pieces in which an array is read to check its values."""

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
"""Minimum env steps between two checkpoints, if the spec gives none."""
SHARE = 0.02
"""Maximum share of a run's time for checkpoints, if the spec gives no interval."""
BEFORE_S, BYTES_PER_S = 0.05, 200e6
"""Fixed cost of the first checkpoint, and the rate of its bytes (assumed)."""

ABOUT: dict[str, type | tuple[type, ...]] = {
    "spec": dict,
    "plan": dict,
    "emulate": bool,
    "seed": int,
    "progress": dict,
    "environments": dict,
    "pearl_version": str,
}
"""Keys that the description must have."""
WORDS = {dict: "an object", bool: "true or false", int: "a whole number", str: "a text"}


def save(path: str | Path, arrays: Arrays, about: Mapping[str, Any]) -> int:
    """Write `arrays` and the JSON-able `about` to one file, atomically; return the bytes written.

    arrays: C-contiguous; the leading rows of such an array are C-contiguous too.
    """
    text = json.dumps(
        {"format": latest("checkpoint"), "pearl_version": pearl_version(), **about}, allow_nan=False
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
    """Decides when checkpoints are written, if the spec does not.

    All checkpoints together take at most `SHARE` of the run's time, judged by the duration of the
    last checkpoint and the present number of bytes. Results of a run do not depend on these times.
    """

    def __init__(self, now_s: float) -> None:
        self.begin_s, self.spent_s = now_s, 0.0
        self._last: tuple[float, int] | None = None

    def due(self, nbytes: int, now_s: float) -> bool:
        """Return whether a checkpoint may be written now.

        nbytes: size of the checkpoint.
        now_s: seconds of a clock that only rises.
        """
        takes_s = BEFORE_S + nbytes / BYTES_PER_S
        if self._last:
            last_s, last_bytes = self._last
            takes_s = last_s * max(1.0, nbytes / last_bytes)
        return self.spent_s + takes_s <= SHARE * (now_s - self.begin_s)

    def record(self, nbytes: int, took_s: float) -> None:
        """Record a checkpoint: its bytes, and the seconds that it took."""
        self.spent_s += took_s
        self._last = took_s, nbytes


@dataclass(frozen=True)
class ArrayLocation:
    """The location of an array in a file.

    dtype, shape: of the array.
    at: bytes from the beginning of the file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint in its file. No array is read yet.

    path: of the file.
    about: the description.
    places: name of an array → its location.
    """

    path: Path
    about: Mapping[str, Any]
    places: Mapping[str, ArrayLocation]

    def read(self, name: str) -> Array:
        """Read an array by name."""
        place = self.places[name]
        out = np.empty(place.shape, place.dtype)
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: Array, first: int = 0) -> None:
        """Read rows of an array from the file into `out`.

        first: number of the first row.
        out: C-contiguous and of the array's type; its length decides how many rows are read.

        Raises:
            SpecError: the file has been cut, or cannot be read.
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
        """Yield the rows of an array in pieces of PIECE_BYTES."""
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
    """Open a checkpoint and check the keys of its description that every reader needs.

    Raises:
        SpecError: the file is missing, truncated, foreign or of another format, or the description
            lacks a key. The text names file and key.
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
    check_format("checkpoint", about, str(path))
    wrong = [
        f"{path}: {key} is {quote(about[key]) if key in about else 'missing'}; "
        f"{WORDS[kind]} is needed"  # type: ignore[index]
        for key, kind in ABOUT.items()
        if type(about.get(key)) is not kind
    ]
    if wrong:
        raise SpecError(*wrong)
    if about["format"] == 2:
        places = {_present(name): place for name, place in places.items()}
        about = _use_present_tasks(about)
    return CheckpointFile(path, about, places)


def _use_present_tasks(about: dict[str, Any]) -> dict[str, Any]:
    """Return a description of format 2 with the present names of tasks."""
    now = dict(about)
    now["environments"] = {present_name(task): e for task, e in about["environments"].items()}
    if "limits" in about["spec"]:
        limits = use_present_names(about["spec"]["limits"])
        now["spec"] = {**about["spec"], "limits": limits}
    if isinstance(under_way := about["progress"].get("under_way"), dict):
        now["progress"] = {**about["progress"], "under_way": use_present_names(under_way)}
    return now


def _present(array: str) -> str:
    """Return the present name of an array: versions are named by their task."""
    owner, _, task = array.partition("version.")
    return array if owner or not task else f"version.{present_name(task)}"
