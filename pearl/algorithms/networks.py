"""Networks that are user-defined torch modules, named by `network:` in a spec."""

from __future__ import annotations

from collections.abc import Mapping

from pearl.errors import SpecError
from pearl_devices import UnsupportedError
from pearl_devices.kernel import Module
from pearl_devices.torch_threads import require_torch


def own_networks(
    program: str | None, obs: int, shape: tuple[int, ...], networks: Mapping[str, tuple[int, ...]]
) -> dict[str, Module]:
    """Build and count the modules of a program; import torch only if there is one.

    Args:
        program: `module:callable`, or None.
        obs: Components of an observation.
        shape: Axes of an observation.
        networks: Name → widths, input first; only the first and the last width count. A network of
            observations alone gets their shape, other networks get a flat row. A network without
            inputs stays a learned constant.

    Returns:
        Network name → module; empty without a program.

    Raises:
        SpecError: torch is not installed, or a module cannot be built or has outputs of another
            shape.
    """
    if program is None:
        return {}
    try:
        require_torch(f"algorithm.network: {program}")
    except UnsupportedError as error:
        raise SpecError(str(error)) from None
    from pearl_devices.primitives.torch.modules import measure

    modules = {}
    for name, widths in networks.items():
        if widths[0]:
            inputs = shape if widths[0] == obs else (widths[0],)
            try:
                modules[name] = measure(program, inputs, widths[-1])
            except ValueError as error:
                raise SpecError(f"algorithm.network: {name}: {error}") from None
    return modules
