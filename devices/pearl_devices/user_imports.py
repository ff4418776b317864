"""Code that a spec names: `module:callable`, and environments of gymnasium. Only this module
imports and calls such code.

Callables of Python's standard library are refused before they are called. None of them makes an
environment, a network or a loss, so naming one is a mistake. The refusal is no security boundary: a
user who may name code may name code of any other package (`docs/trust.md`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from inspect import isclass, isroutine, signature
from pathlib import Path
from types import ModuleType
from typing import Any

CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""`module:callable`. A gymnasium id with a module has a version: `module:Name-v0`."""


def refuse_standard(name: str) -> None:
    """Refuse a name (a module, `module:callable` or `module:Id-v0`) of Python's standard library.
    Import nothing.

    Raises:
        ValueError: the name is of the standard library.
    """
    module = name.partition(":")[0]
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"{module} is a module of Python's standard library, and PEARL calls none of its code; "
            "name your own code or a package's"
        )


@contextmanager
def _working_folder() -> Iterator[None]:
    """Within this context, Python also finds modules in the working folder, after all other
    places."""
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def import_user_module(module: str) -> ModuleType:
    """Import a module. Python looks into the working folder after all other places.

    Raises:
        ValueError: the module is of the standard library, or it cannot be imported.
    """
    refuse_standard(module)
    try:
        with _working_folder():
            return import_module(module)
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        raise ValueError(error_text(error)) from error


def import_function(program: str) -> Callable[..., Any]:
    """Import the callable that `module:callable` names.

    Raises:
        ValueError: the name cannot be imported, is no callable or is of the standard library.
    """
    module, _, name = program.partition(":")
    home = import_user_module(module)
    try:
        found = getattr(home, name)
    except Exception as error:  # the module's own __getattr__ may raise anything
        raise ValueError(error_text(error)) from error
    if not callable(found):
        raise ValueError(f"it is of type {type(found).__name__}, which is no callable")
    code = found
    while isinstance(code, partial):
        code = code.func
    if isroutine(code) or isclass(code):
        refuse_standard(str(code.__module__))
    return found  # type: ignore[no-any-return]


def register_env(program: str) -> str:
    """Return gymnasium's id; for `module:Id-v0`, import the module to register `Id-v0`."""
    module, colon, name = program.rpartition(":")
    if colon:
        import_user_module(module)
    return name


def make_environment(program: str, args: Mapping[str, Any], **options: Any) -> Any:
    """Make one gymnasium.Env from a gymnasium id or `module:callable`, called with `args`.

    options: for `gymnasium.make` alone.

    Raises:
        ValueError: the environment cannot be made; the text says why.
    """
    import gymnasium

    made = make_environments(program, args, 1, **options)
    if isinstance(made, gymnasium.vector.VectorEnv):
        from pearl_devices.primitives.envs.spaces import Lone

        return Lone(made)
    return made


def make_environments(program: str, args: Mapping[str, Any], envs: int, **options: Any) -> Any:
    """Make one environment as `make_environment` does, or a gymnasium VectorEnv of `envs`
    environments if `module:callable` returns one. Such a callable has a parameter `num_envs`.

    Raises:
        ValueError: the environment cannot be made, or the VectorEnv has another number of
            environments.
    """
    import gymnasium

    vector = gymnasium.vector.VectorEnv
    try:
        if CALLABLE.fullmatch(program):
            make = import_function(program)
            told = "num_envs" not in args and "num_envs" in _parameters(make)
            made = make(**args, **({"num_envs": envs} if told else {}))
        else:
            made = gymnasium.make(register_env(program), **options, **args)
    except (Exception, SystemExit) as error:  # the environment's code may raise anything
        raise ValueError(error_text(error)) from error
    if isinstance(made, vector) and (not told or made.num_envs != envs):
        raise ValueError(
            f"it returns a {type(made).__name__} of {made.num_envs}, and {envs} are needed; "
            "a callable that returns a VectorEnv must have a parameter num_envs and return so many "
            "(acting: algorithm.num_envs, evaluation: 1); env_args must not set num_envs"
        )
    if not isinstance(made, gymnasium.Env | vector):
        raise ValueError(f"it returns a {type(made).__name__}, not a gymnasium.Env")
    return made


def _parameters(make: Callable[..., Any]) -> tuple[str, ...]:
    """The parameter names of a callable; none if Python cannot tell them."""
    try:
        return tuple(signature(make).parameters)
    except (TypeError, ValueError):
        return ()


def error_text(error: BaseException) -> str:
    """Return the text of an exception on one line of at most 300 characters, with control
    characters of terminals escaped."""
    text = " ".join(str(error).split())[:300]
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if isinstance(error, SystemExit):
        return f"it ends the process ({type(error).__name__}{f': {text}' if text else ''})"
    return text or type(error).__name__
