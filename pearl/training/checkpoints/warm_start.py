"""Warm start: a run begins with the networks of another run, a policy or a torch `state_dict`.

Nothing that a file names is imported, and nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl import run_folder
from pearl.errors import SpecError
from pearl.planning.runs import CHECKPOINT
from pearl.training.checkpoints import checkpoint
from pearl.training.policy import pick_states, read_policy_file
from pearl.training.session import Session
from pearl_devices.kernels.data_parallel import copy_to_learners
from pearl_devices.kernels.interface import states

Array = npt.NDArray[Any]
KEPT = ("learner.", "normalise.")
LEFT = (".m", ".v", ".steps", ".step", ".visits")
"""Ends of the names of arrays that are no networks: moments and counters start from zero."""


def load_networks(session: Session, path: Path) -> list[str]:
    """Copy the networks that a file holds into a session that has just started.

    path: a run folder or checkpoint (all networks or the table, and statistics), a policy file,
        or a torch state_dict (.safetensors; .pt, .pth) of the network that acts.

    Return sentences about the networks that were copied and the ones that were not.

    Raises:
        SpecError: a sentence for every network that does not fit.
    """
    arrays, acting = session.arrays, session.compiled.policy.removeprefix("policy.")
    file = run_folder.file_of(path, CHECKPOINT)
    if not file.is_file():
        raise SpecError(f"start_from: {path}: there is no file or run folder of that name")
    given = _read_networks(session, file, acting)
    here = [n for n in arrays if _is_copied(session, n) and "@" not in n]
    wrong = [
        f"start_from: {file}: {n} is {given[n].dtype}{list(given[n].shape)}; this spec has "
        f"{arrays[n].dtype}{list(arrays[n].shape)}"
        for n in here
        if n in given and (given[n].shape, given[n].dtype) != (arrays[n].shape, arrays[n].dtype)
    ]
    taken = [n for n in here if n in given]
    if not taken:
        wrong.append(
            f"start_from: {file}: holds none of {', '.join(here)}; it has {', '.join(given)}"
        )
    if wrong:
        raise SpecError(*wrong)
    for name in taken:
        arrays[name][...] = given[name]
        if f"{name}.target" in arrays and f"{name}.target" not in given:
            arrays[f"{name}.target"][...] = given[name]
    for name, array in arrays.items():
        source = _find_trained(session, name.partition("@")[0])
        if name.startswith("policy.") and name != source and source in taken:
            array[...] = arrays[source]
    copy_to_learners(arrays)
    session.mark_best()
    anew = [n for n in here if n not in given and n.removesuffix(".target") not in given]
    unused = [n for n in given if n not in here]
    return [
        f"started from {file}: {', '.join(taken)}"
        + (f"; initialised: {', '.join(anew)}" if anew else "")
        + (f"; not used: {', '.join(unused)}" if unused else "")
    ]


def _is_copied(session: Session, name: str) -> bool:
    """Whether an array belongs to a network, or to a kernel between environment and network."""
    if session.acting and name in states(session.acting):
        return True
    table = name.startswith("policy.") and name == _find_trained(session, name)
    return (table or name.startswith(KEPT)) and not name.endswith(LEFT)


def _find_trained(session: Session, name: str) -> str:
    """The array that the update writes for an array of the policy; of a table, the same array."""
    learner = name.replace("policy.", "learner.", 1)
    return learner if learner in session.arrays else name


def _read_networks(session: Session, file: Path, acting: str) -> dict[str, Array]:
    """The networks in a file, by the names of arrays."""
    if file.suffix in (".pt", ".pth"):
        return {f"learner.{acting}": _flatten(session, file, acting, _load_torch_tensors(file))}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="numpy") as opened:
            names, about = set(opened.keys()), opened.metadata() or {}
            tensors = {} if "pearl" in about else {n: opened.get_tensor(n) for n in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise SpecError(f"start_from: {file}: not readable: {error}") from None
    if "pearl" not in about:
        return {f"learner.{acting}": _flatten(session, file, acting, tensors)}
    if "parameters" in names:
        tensors, _ = read_policy_file(file)
        trained = _find_trained(session, f"policy.{acting}")
        return {trained: tensors["parameters"], **pick_states(tensors)}
    stored = checkpoint.load(file)
    wanted = [n for n in stored.places if _is_copied(session, n)]
    return {n: stored.read(n) for n in wanted if "@" not in n}


def _load_torch_tensors(file: Path) -> Mapping[str, Array]:
    """Read the tensors of a file of torch, and nothing else in it (`weights_only`)."""
    import torch

    try:
        found = torch.load(str(file), map_location="cpu", weights_only=True)
        return {str(name): tensor.numpy() for name, tensor in found.items()}
    except Exception as error:  # torch raises many types for a file that is no state_dict
        text = " ".join(str(error).split())[:200]
        raise SpecError(f"start_from: {file}: not a state_dict of tensors alone: {text}") from None


def _flatten(session: Session, file: Path, acting: str, tensors: Mapping[str, Array]) -> Array:
    """Flatten the tensors of a `state_dict` to the parameters of the network that acts.

    The names are those of torch.nn.Sequential, or custom names in the order of the layers.
    """
    kernel = session.policy("last").kernel
    if kernel.dims.get("states") or kernel.modules:
        raise SpecError(
            f"start_from: {file}: a state_dict fits only networks of dense layers; start a "
            "table or a custom module from a run or a policy file of pearl"
        )
    flat: Array = session.arrays[f"learner.{acting}"].copy()
    layers, at, wrong = list(pairwise(kernel.layers())), 0, []
    weights = [n for n in tensors if n.endswith("weight")]
    if len(weights) != len(layers):
        raise SpecError(
            f"start_from: {file}: {len(weights)} layers ({', '.join(weights)}); the network "
            f"{acting} has {len(layers)}"
        )
    for (i, o), weight in zip(layers, sorted(weights, key=_sort_key), strict=True):
        bias = weight.removesuffix("weight") + "bias"
        for part, shape in ((weight, (o, i)), (bias, (o,))):
            found = tensors[part].shape if part in tensors else None
            if found != shape:
                wrong.append(
                    f"start_from: {file}: {part} is {'missing' if found is None else list(found)}; "
                    f"network {acting} needs {list(shape)} there"
                )
        if not wrong:
            flat[at : at + i * o] = np.asarray(tensors[weight], np.float32).T.reshape(-1)
            flat[at + i * o : at + i * o + o] = np.asarray(tensors[bias], np.float32)
        at += i * o + o
    if wrong:
        raise SpecError(*wrong)
    return flat


def _sort_key(name: str) -> list[tuple[int, str]]:
    """Sort numbers in a name by their value, so that layer 10 follows layer 2."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in name.split(".")]
