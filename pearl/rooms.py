"""Use of a room that an installation may leave out; `pearl_devices.rooms` says what that is."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from pearl.errors import SpecError


def use_room(code: str, need: str) -> Any:
    """Return what `module:name` names; the module for `module:`.

    need: what asks for it, such as an option of a command.

    Raises:
        SpecError: the room is left out.
    """
    try:
        return resolve_name(code)
    except ModuleNotFoundError as error:
        from pearl_devices.rooms import absence_text

        text = absence_text(need, error.name)
        if text is None:
            raise
        raise SpecError(text) from None
