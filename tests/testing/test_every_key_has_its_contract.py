"""Every key of every table of extensions has a test class that inherits its contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pearl.testing import BackendContract, EstimatorContract
from pearl_devices import BACKENDS

ROOT = Path(__file__).parents[2]
TABLES: tuple[tuple[type, Iterable[str], Callable[[Any], str]], ...] = (
    (BackendContract, BACKENDS, lambda found: found.device.kind),
    (EstimatorContract, BACKENDS, lambda found: found.device.kind),
)
"""Contract, table, and the key that a test class is for."""


def inheriting(contract: type) -> Iterator[type]:
    """The test classes in `tests` that inherit `contract`."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if contract.__name__ in file.read_text(encoding="utf-8"):
            module = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            for name, found in vars(module).items():
                its = isinstance(found, type) and issubclass(found, contract)
                if its and name.startswith("Test"):
                    yield found


@pytest.mark.parametrize(
    ("contract", "table", "key"), TABLES, ids=[contract.__name__ for contract, *_ in TABLES]
)
def test_every_key_has_a_test_class(
    contract: type, table: Iterable[str], key: Callable[[Any], str]
) -> None:
    found = {key(each) for each in inheriting(contract)}
    lacking = [name for name in table if name not in found]
    assert not lacking, f"no test class inherits {contract.__name__} for {', '.join(lacking)}"
