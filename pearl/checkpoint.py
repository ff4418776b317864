"""Checkpoints: every array of a run as safetensors, what describes it as JSON inside the same file.

One file, so that arrays and description can never disagree; written to a temporary file beside it,
synced and renamed, so that a crash or a full disk leaves the previous one whole. No pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl.errors import SpecError
from pearl.files import write_atomically

Arrays = Mapping[str, npt.NDArray[Any]]
FORMAT = 1


def save(path: str | Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON-able `about` to one file, atomically."""
    from safetensors.numpy import save as encode

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({"format": FORMAT, **about}, allow_nan=False)
    write_atomically(path, encode(whole, metadata={"pearl": text}))


def load(path: str | Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and description of a checkpoint.

    A missing, truncated or foreign file is a SpecError naming it and what is wrong.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise SpecError(f"{path}: there is no checkpoint here")
    try:
        with safe_open(str(path), framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get("pearl", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise SpecError(f"{path}: not a readable checkpoint: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise SpecError(
            f"{path}: not a checkpoint of this version of pearl (format {FORMAT} is needed)"
        )
    return arrays, about


def restore(arrays: Arrays, into: Arrays, path: str | Path) -> None:
    """Copy a checkpoint's arrays into those of a compiled trainer.

    Names or shapes that differ are a SpecError listing them; nothing is copied then.
    """
    wrong = [
        f"{name}: checkpoint {_describe(arrays.get(name))}, this plan {_describe(into.get(name))}"
        for name in sorted(set(arrays) | set(into))
        if name not in arrays
        or name not in into
        or arrays[name].shape != into[name].shape
        or arrays[name].dtype != into[name].dtype
    ]
    if wrong:
        raise SpecError(*(f"{path}: does not fit this spec and plan: {line}" for line in wrong))
    for name, array in arrays.items():
        into[name][...] = array


def _describe(array: npt.NDArray[Any] | None) -> str:
    return "none" if array is None else f"{array.dtype}{list(array.shape)}"
