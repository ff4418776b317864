"""When evaluations begin and which episodes they are, however they are played."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.evaluation import policy_of
from pearl_devices.primitives.math.rng import key

DONE, FIRST, OF = 0, 1, 2
"""Places in evaluation.firings: firings so far; the firing before which none begins; the firing in
which the last one began."""


def seeds(seed: int, episodes: int) -> list[int]:
    """The seeds of the environments' resets: episode i has that of (seed, i)."""
    return [key(seed, f"evaluation {i}") % 2**31 for i in range(episodes)]


def periodic(seed: int, iteration: int) -> int:
    """The seed of the evaluation that begins in an iteration of a run with this seed."""
    return key(seed, f"evaluation periodic {iteration}")


class Evaluations(ABC):
    """A bound evaluation."""

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        self.kernel, self.buffers = kernel, buffers
        self._at, self._firings = buffers["evaluation.at"], buffers["evaluation.firings"]
        self._more, self._every = buffers["evaluation.more"], kernel.dim("every")
        self._stride = kernel.dim("stride")

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> None:
        """All rows begin an episode, of these seeds in turn."""

    @abstractmethod
    def play(self, steps: int) -> None:
        """Play so many vector steps, or as many as there are."""

    def close(self) -> None:
        """End what is not in the arrays, where there is any."""
        self._at[0] = 0

    @property
    def playing(self) -> bool:
        """Whether an episode is under way."""
        return bool(self._at[0])

    def begin(self, seed: int) -> None:
        """Begin an evaluation of the policy as it is now. seed: of its episodes."""
        b, (name, _) = self.buffers, policy_of(self.kernel)
        b["evaluation.policy"][...] = b[name]
        if "evaluation.statistics" in b:
            b["evaluation.statistics"][...] = b["normalise.obs"]
        self.reset(seeds(seed, self.kernel.dim("episodes")))

    def __call__(self) -> None:
        """A firing, and evaluation.more further ones."""
        done, left, every = int(self._firings[DONE]), 1 + int(self._more[0]), self._every
        self._firings[DONE] = done + left
        while left:
            if every and done % every == 0 and done >= self._firings[FIRST]:
                self._firings[OF] = done
                self.begin(periodic(int(self.buffers["evaluation.seed"][0]), done))
            now = min(left, every - done % every) if every else left
            if self._at[0]:
                self.play(now * self._stride)
            done, left = done + now, left - now
