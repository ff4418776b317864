"""Streams and events of a device as in torch, and fakes of them for the stand-in.

On the stand-in, a copy only happens when something waits for it. So a missing wait changes the
results.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STREAMED = ("cuda", "xpu")
"""Kinds of torch devices with streams, events and pinned host memory."""


class Event(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Any) -> None:
        """Set the point after all work begun on the stream so far."""

    def query(self) -> bool:
        """Return whether the work up to this point is complete."""

    def synchronize(self) -> None:
        """Wait until the work up to this point is complete."""


class Streams(Protocol):
    """Queues of work on a device."""

    def make_stream(self) -> Any:
        """Make a new stream; it does its work in the order in which the work was begun."""

    def make_event(self) -> Event: ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Within this context, torch begins its work on that stream."""

    def staging(self, like: Tensor) -> Tensor:
        """Make host memory with which copies do not block the host."""

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        """Begin a copy on a stream. One of the two is staging memory."""

    def make_graph(self) -> Graph:
        """Make a new graph. Raise RuntimeError if the device has none."""

    def finish(self) -> None:
        """Wait for all work of the device."""


class Graph(Protocol):
    """Work that is recorded once and repeated."""

    def capture(self, work: Callable[[], None]) -> None:
        """Record `work`, which has run before and must not wait for the device. Raise the errors of
        `work`, and RuntimeError if it cannot be recorded."""

    def replay(self) -> None:
        """Begin the work again on torch's current stream, with the current values of its
        tensors."""


class DeviceStreams:
    """The streams of a GPU. device: of a kind in STREAMED."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device, self._module = device, torch.get_device_module(device)

    def make_stream(self) -> Any:
        return self._module.Stream(self._device)

    def make_event(self) -> Event:
        found: Event = self._module.Event()
        return found

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._module.stream(stream)
        return found

    def staging(self, like: Tensor) -> Tensor:
        import torch

        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        with self._module.stream(stream):
            target.copy_(source, non_blocking=True)

    def make_graph(self) -> Graph:
        if self._device.type != "cuda":
            raise RuntimeError(f"torch has no graphs for {self._device}")
        return DeviceGraph()

    def finish(self) -> None:
        self._module.synchronize(self._device)


class DeviceGraph:
    """A CUDA graph, or AMD's equivalent."""

    def capture(self, work: Callable[[], None]) -> None:
        import torch

        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            work()

    def replay(self) -> None:
        self._graph.replay()


class HostStream:
    """A queue of copies for which nothing has waited yet."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], object]] = []
        self.done = 0

    def run(self, until: int) -> None:
        """Do the first `until` of all copies ever begun here."""
        while self.done < until:
            self.begun.pop(0)()
            self.done += 1

    def wait_event(self, event: HostEvent) -> None:
        event.synchronize()


class HostEvent:
    """An event whose work is done when something waits for it, or after one query."""

    def __init__(self) -> None:
        self._at: tuple[HostStream, int] | None = None
        self._looks = 0

    def record(self, stream: HostStream) -> None:
        self._at, self._looks = (stream, stream.done + len(stream.begun)), 0

    def query(self) -> bool:
        self._looks += 1
        if self._looks > 1:
            self.synchronize()
        return self._looks > 1

    def synchronize(self) -> None:
        if self._at:
            stream, until = self._at
            stream.run(until)


class HostStreams:
    """Fakes on the CPU. Computing is complete at once, copies when something waits for them."""

    def __init__(self) -> None:
        self._streams: list[HostStream] = []

    def make_stream(self) -> HostStream:
        self._streams.append(HostStream())
        return self._streams[-1]

    def make_event(self) -> Event:
        return HostEvent()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def staging(self, like: Tensor) -> Tensor:
        import torch

        return torch.empty(like.shape, dtype=like.dtype)

    def copy(self, target: Tensor, source: Tensor, stream: HostStream) -> None:
        stream.begun.append(lambda: target.copy_(source))

    def make_graph(self) -> Graph:
        return HostGraph()

    def finish(self) -> None:
        for stream in self._streams:
            stream.run(stream.done + len(stream.begun))


class HostGraph:
    """A list of torch's operators with their tensors; no operator may wait for a number."""

    def capture(self, work: Callable[[], None]) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        operators = self._operators = list[tuple[Any, Any, Any, Any]]()

        class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if "_local_scalar_dense" in str(func):
                    raise RuntimeError("it waits for a number of the device")
                out = func(*args, **(kwargs or {}))
                operators.append((func, args, kwargs or {}, out))
                return out

        with Recorder():  # type: ignore[no-untyped-call]
            work()

    def replay(self) -> None:
        import torch
        from torch.utils._pytree import tree_leaves

        with torch.no_grad():
            for func, args, kwargs, out in self._operators:
                aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
                if any(not a.is_write for a in aliases):
                    continue  # a view shares the memory of its base
                again = func(*args, **kwargs)
                if not aliases:
                    for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                        if isinstance(old, torch.Tensor):
                            old.copy_(new)


def streams_of(device: torch.device) -> Streams:
    """Return the streams of a torch device. A device without streams gets the host's; its copies
    are complete when they return."""
    return DeviceStreams(device) if device.type in STREAMED else HostStreams()
