"""Threads of torch. A plan counts one core for a variant of torch, and a second thread would take
the core of another lane; so torch is held to one, but for the firings of `torch-N`, which a plan
counts N cores for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pearl_devices.base import Call

_before: list[int] = []
"""How many there were, while it is held to one."""


def one() -> None:
    """Hold torch to one thread in this process, until `kept` ends."""
    import torch

    if torch.get_num_threads() != 1:
        if not _before:
            _before.append(torch.get_num_threads())
        torch.set_num_threads(1)


def of(variant: str) -> int:
    """Threads of torch that a variant of a CPU has while it runs: N of `torch-N`, else 1."""
    name, _, number = variant.partition("-")
    return int(number) if name == "torch" and number.isdigit() else 1


def plain(variant: str) -> str:
    """The variant, or `torch` of one that is the same with several threads."""
    return "torch" if of(variant) > 1 else variant


def several(threads: int, call: Call) -> Call:
    """The call, during which torch has so many threads in this process and then one again. Sums of
    products are in another order than with one: how many there are decides the last bits."""
    import torch

    def firing() -> None:
        torch.set_num_threads(threads)
        try:
            call()
        finally:
            torch.set_num_threads(1)

    return firing


@contextmanager
def kept() -> Iterator[None]:
    """Context after which torch has as many threads as before it was held to one."""
    try:
        yield
    finally:
        if _before:
            import torch

            torch.set_num_threads(_before.pop())
