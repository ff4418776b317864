"""One thread for torch: a plan counts one core for a variant of torch, and a second thread would
take the core of another lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_before: list[int] = []
"""How many there were, while it is held to one."""


def one() -> None:
    """Hold torch to one thread in this process, until `kept` ends."""
    import torch

    if torch.get_num_threads() != 1:
        if not _before:
            _before.append(torch.get_num_threads())
        torch.set_num_threads(1)


@contextmanager
def kept() -> Iterator[None]:
    """Context after which torch has as many threads as before it was held to one."""
    try:
        yield
    finally:
        if _before:
            import torch

            torch.set_num_threads(_before.pop())
