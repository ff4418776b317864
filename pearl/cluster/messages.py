"""Messages between the local host and a remote lane group: bytes with a header of 64-bit words.

Both hosts have the same plan, so a message contains no names. It has the counts of its flow's tasks
before and after, then the arrays of the firings in between, in the order of `TaskMessages.views`.
Text in JSON may follow.
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
"""Number of words of a header: the kind of the message, then values of that kind."""


def pack(
    words: Sequence[int], views: Sequence[Any] = (), text: Mapping[str, Any] | None = None
) -> Message:
    """Make a message. words: of its header, the kind first. views: arrays, in their order."""
    encoded = b"" if text is None else json.dumps(text).encode()
    head = np.zeros(WORDS, np.int64)
    head[: len(words)] = words
    message = np.empty(head.nbytes + sum(v.nbytes for v in views) + len(encoded), np.uint8)
    message[: head.nbytes] = head.view(np.uint8)
    at = head.nbytes
    for view in views:
        message[at : at + view.nbytes] = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
        at += view.nbytes
    message[at:] = np.frombuffer(encoded, np.uint8)
    return message


def header_words(message: Message) -> list[int]:
    """Return the words of a message's header."""
    return [int(word) for word in message[: 8 * WORDS].view(np.int64)]


def unpack(message: Message, views: Sequence[Any]) -> dict[str, Any]:
    """Copy the arrays of a message into `views`, and return the text behind them."""
    at = 8 * WORDS
    for view in views:
        flat = message[at : at + view.nbytes]
        view[...] = flat.view(view.dtype).reshape(view.shape)
        at += view.nbytes
    return dict(json.loads(bytes(message[at:]))) if at < message.size else {}
