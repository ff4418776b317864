"""Threads of torch. A plan counts one core for a variant of torch, so a second thread would take
another lane's core. So torch has one thread, except in firings of `torch-N`, for which a plan
counts N cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from pearl_devices.base import Call, UnsupportedError
from pearl_devices.extras import CPU_TORCH, install_hint

INSTALL = (
    f"torch is not installed: {CPU_TORCH} (downloads about 200 MB; assumed), the build for the CPU "
    f"from PyTorch's own index; for a GPU: {install_hint('train')}"
)
"""The way out in every error about a missing torch. The first one brings no CUDA."""

_before: list[int] = []
"""The number of threads before the limit; empty without a limit."""


def has_torch() -> bool:
    """Tell whether torch is installed; import nothing."""
    return find_spec("torch") is not None


def require_torch(thing: str) -> None:
    """Check that torch is installed.

    thing: the subject of the error; it needs torch.

    Raises:
        UnsupportedError: torch is not installed.
    """
    if not has_torch():
        raise UnsupportedError(f"{thing} needs torch; {INSTALL}")


def limit_to_one() -> None:
    """Limit torch to one thread in this process, until the context `restoring_threads` ends."""
    import torch

    if torch.get_num_threads() != 1:
        if not _before:
            _before.append(torch.get_num_threads())
        torch.set_num_threads(1)


def threads_of(variant: str) -> int:
    """Return the threads of torch that a CPU variant runs with: N for `torch-N`, else 1."""
    name, _, number = variant.partition("-")
    return int(number) if name == "torch" and number.isdigit() else 1


def base_variant(variant: str) -> str:
    """Return `torch` for a variant `torch-N`, else the variant itself."""
    return "torch" if threads_of(variant) > 1 else variant


def with_threads(threads: int, call: Call) -> Call:
    """Return a call that runs `call` with `threads` threads of torch, then limits torch to one.

    The number of threads changes the last bits, because it changes the order of sums in products.
    """
    import torch

    def firing() -> None:
        torch.set_num_threads(threads)
        try:
            call()
        finally:
            torch.set_num_threads(1)

    return firing


@contextmanager
def restoring_threads() -> Iterator[None]:
    """After this context, torch has as many threads as before `limit_to_one`."""
    try:
        yield
    finally:
        if _before:
            import torch

            torch.set_num_threads(_before.pop())
