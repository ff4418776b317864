"""Certificates in the files of plans, with the problem that each is of."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pearl.files import write_atomically
from pearl.json_files import read_object
from pearl.planning.problem import Problem
from pearl.planning.problem_files import problem_to_json


class Certified(Protocol):
    """A plan, as far as its certificate goes."""

    @property
    def certificate(self) -> Mapping[str, Any] | None: ...

    @property
    def problem(self) -> Problem | None: ...

    @property
    def objective(self) -> str: ...


INSIDE_BYTES = 64_000
"""Size of a certificate up to which a plan's own file holds it."""


def whole_certificate(plan: Certified) -> dict[str, Any] | None:
    """Return the proof of a plan with the graph, costs and limits that it is of; None without
    one."""
    proof = plan.certificate
    if proof is None or "problem" in proof or plan.problem is None:
        return None if proof is None else dict(proof)
    return {**proof, "problem": problem_to_json(plan.problem) | {"objective": plan.objective}}


def inside(plan: Certified) -> dict[str, Any] | None:
    """Return the certificate for a plan's own file; None if there is none or it is large."""
    whole = whole_certificate(plan)
    return whole if whole is not None and len(json.dumps(whole)) <= INSIDE_BYTES else None


def save_beside(plan: Certified, path: str | Path) -> None:
    """Write a large certificate beside the file of its plan, as `plan.proof.json.gz`."""
    whole = whole_certificate(plan)
    if whole is not None and inside(plan) is None:
        write_atomically(_beside(path), gzip.compress(json.dumps(whole).encode(), mtime=0))


def read_beside(path: str | Path) -> dict[str, Any] | None:
    """Return the certificate beside the file of a plan; None if there is none.

    Raises:
        SpecError: it cannot be read.
    """
    file = _beside(path)
    return read_object(file, "the proof beside a plan") if file.exists() else None


def _beside(path: str | Path) -> Path:
    return Path(path).with_suffix(".proof.json.gz")
