"""Messages between the host that trains and an island: bytes with a head of 64-bit words.

Both sides have the same plan, so that a message names nothing: the counts of its flow's tasks
before and after, and the arrays of the firings between in the order of `TaskMessages.views`. Behind
these there may be text in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Message = npt.NDArray[np.uint8]

FIRINGS, STATE, TEXT, CONTROL = range(4)
"""Kinds of message: firings with their arrays; arrays at a pause; text alone; words alone."""

WORDS = 8
"""Words of a head: the kind and what its writer says besides."""


def pack(
    words: Sequence[int], views: Sequence[Any] = (), text: Mapping[str, Any] | None = None
) -> Message:
    """A message. words: of its head, kind first. views: arrays, in their order."""
    said = b"" if text is None else json.dumps(text).encode()
    head = np.zeros(WORDS, np.int64)
    head[: len(words)] = words
    message = np.empty(head.nbytes + sum(v.nbytes for v in views) + len(said), np.uint8)
    message[: head.nbytes] = head.view(np.uint8)
    at = head.nbytes
    for view in views:
        message[at : at + view.nbytes] = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
        at += view.nbytes
    message[at:] = np.frombuffer(said, np.uint8)
    return message


def header_words(message: Message) -> list[int]:
    """The words of a message's head."""
    return [int(word) for word in message[: 8 * WORDS].view(np.int64)]


def unpack(message: Message, views: Sequence[Any]) -> dict[str, Any]:
    """Copy the arrays of a message into `views`; returns the text behind them."""
    at = 8 * WORDS
    for view in views:
        flat = message[at : at + view.nbytes]
        view[...] = flat.view(view.dtype).reshape(view.shape)
        at += view.nbytes
    found: dict[str, Any] = json.loads(bytes(message[at:])) if at < message.size else {}
    return found
