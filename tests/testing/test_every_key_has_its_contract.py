"""Every device kind keeps the contracts of device kinds: the CPU on each of the example loops, a
kind on its `EXAMPLE`, and a kind without one in a test class that inherits them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from pearl.testing import BackendContract, EstimatorContract
from pearl_devices import BACKENDS, Device, backend, offers
from pearl_devices.kernels.examples import loops

ROOT = Path(__file__).parents[2]

WITH_EXAMPLE = [kind for kind in BACKENDS if hasattr(backend(kind), "EXAMPLE")]

for kind in WITH_EXAMPLE:
    device = backend(kind).EXAMPLE  # type: ignore[attr-defined]
    each = (tuple(k for k in loop if offers(k, device)) for loop in loops())
    small = next((kernels for kernels in each if kernels), ())
    title = f"Test{kind.title().replace('_', '')}Example"
    globals()[title] = type(
        title,
        (BackendContract, EstimatorContract),
        {"device": device, "kernels": small},
    )

for number, loop in enumerate(loops()):
    globals()[f"TestCpu{number}"] = type(
        f"TestCpu{number}",
        (BackendContract,),
        {"device": Device("host", "cpu", width=2), "kernels": loop},
    )


def inheriting(contract: type) -> Iterator[type]:
    """The test classes in `tests` that inherit `contract`."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if contract.__name__ in file.read_text(encoding="utf-8"):
            module = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            for name, found in vars(module).items():
                its = isinstance(found, type) and issubclass(found, contract)
                if its and name.startswith("Test"):
                    yield found


@pytest.mark.parametrize("contract", [BackendContract, EstimatorContract])
def test_every_device_kind_is_held_to_its_contracts(contract: type) -> None:
    held = {each.device.kind for each in inheriting(contract)}  # type: ignore[attr-defined]
    lacking = [kind for kind in BACKENDS if kind not in held]
    assert not lacking, f"define EXAMPLE, a Device, in the file of {', '.join(lacking)}"
