"""One thread for torch: a plan counts one core for a mode of torch, and a second thread would take
that of another lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_before: list[int] = []
"""How many there were, while it is held to one."""


def one() -> None:
    """Holds torch to one thread in this process, until `kept` ends."""
    import torch

    if torch.get_num_threads() != 1:
        if not _before:
            _before.append(torch.get_num_threads())
        torch.set_num_threads(1)


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards torch has the threads that it had before it was held to one."""
    try:
        yield
    finally:
        if _before:
            import torch

            torch.set_num_threads(_before.pop())
