"""Networks that are torch modules of the user's own, named by `network:` in a spec."""

from __future__ import annotations

from collections.abc import Mapping

from pearl.errors import SpecError
from pearl_devices.kernel import Module


def own_networks(
    program: str | None,
    obs: int,
    shape: tuple[int, ...],
    networks: Mapping[str, tuple[int, ...]],
) -> dict[str, Module]:
    """Name → the module that `program` builds, counted; empty without a program.

    networks: name → widths, input first, of which only the first and the last count. One that takes
    observations alone gets their shape, others get a flat row; one without inputs stays a learned
    constant. Imports torch. What cannot be built is a SpecError.
    """
    if program is None:
        return {}
    from pearl_devices.primitives.torch.modules import measure

    found = {}
    for name, widths in networks.items():
        if widths[0]:
            inputs = shape if widths[0] == obs else (widths[0],)
            try:
                found[name] = measure(program, inputs, widths[-1])
            except ValueError as error:
                raise SpecError(f"algorithm.network: {name}: {error}") from None
    return found
