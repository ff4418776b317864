"""Streams and events of a device as torch has them, and twins of them for the stand-in.

On the stand-in a copy that is begun happens once something waits for it, so that a wait that is
left out changes what is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STREAMED = ("cuda", "xpu")
"""Kinds of torch devices with streams, events and pinned memory of the host."""


class Event(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Any) -> None:
        """The point is all that was begun on the stream so far."""

    def query(self) -> bool:
        """Whether the work up to it is complete."""

    def synchronize(self) -> None:
        """Wait until it is."""


class Streams(Protocol):
    """How work is queued on a device."""

    def stream(self) -> Any:
        """A new stream; work on it is done in the order in which it was begun."""

    def event(self) -> Event: ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which torch begins its work on that stream."""

    def staging(self, like: Tensor) -> Tensor:
        """Memory of the host from which and to which copies need not wait for the host."""

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        """Begin a copy on a stream. One of the two is staging memory."""

    def graph(self) -> Graph:
        """A new graph. RuntimeError where the device has none."""

    def finish(self) -> None:
        """Wait for all work of the device."""


class Graph(Protocol):
    """Work that is recorded once."""

    def capture(self, work: Callable[[], None]) -> None:
        """Record `work`, which has been done before and must not wait for the device. Raises what
        `work` raises, and RuntimeError where it cannot be recorded."""

    def replay(self) -> None:
        """Begin the work again on torch's current stream, with what its tensors hold by then."""


class DeviceStreams:
    """Those of a GPU. device: of a kind in STREAMED."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device, self._module = device, torch.get_device_module(device)

    def stream(self) -> Any:
        return self._module.Stream(self._device)

    def event(self) -> Event:
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

    def graph(self) -> Graph:
        if self._device.type != "cuda":
            raise RuntimeError(f"torch has no graphs for {self._device}")
        return DeviceGraph()

    def finish(self) -> None:
        self._module.synchronize(self._device)


class DeviceGraph:
    """A CUDA graph, or AMD's."""

    def capture(self, work: Callable[[], None]) -> None:
        import torch

        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            work()

    def replay(self) -> None:
        self._graph.replay()


class HostStream:
    """A queue of copies that nobody has waited for yet."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], object]] = []
        self.done = 0

    def run(self, until: int) -> None:
        """Do the first `until` of all copies that were ever begun here."""
        while self.done < until:
            self.begun.pop(0)()
            self.done += 1

    def wait_event(self, event: HostEvent) -> None:
        event.synchronize()


class HostEvent:
    """Its work is done when it is waited for, or after one look at it."""

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
    """Twins on the CPU. What is computed is complete at once, copies once they are waited for."""

    def __init__(self) -> None:
        self._streams: list[HostStream] = []

    def stream(self) -> HostStream:
        self._streams.append(HostStream())
        return self._streams[-1]

    def event(self) -> Event:
        return HostEvent()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def staging(self, like: Tensor) -> Tensor:
        import torch

        return torch.empty(like.shape, dtype=like.dtype)

    def copy(self, target: Tensor, source: Tensor, stream: HostStream) -> None:
        stream.begun.append(lambda: target.copy_(source))

    def graph(self) -> Graph:
        return HostGraph()

    def finish(self) -> None:
        for stream in self._streams:
            stream.run(stream.done + len(stream.begun))


class HostGraph:
    """A list of torch's operators with their tensors; none may wait for a number."""

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
                    continue  # a view sees what its base holds
                again = func(*args, **kwargs)
                if not aliases:
                    for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                        if isinstance(old, torch.Tensor):
                            old.copy_(new)


def streams(device: torch.device) -> Streams:
    """Those of a torch device; of one without any, whose copies are complete when they return, the
    host's."""
    return DeviceStreams(device) if device.type in STREAMED else HostStreams()
