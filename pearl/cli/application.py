"""The application: registration of commands, their output, errors and exit status.

Exit status: 0 done; 1 infeasible, refused or failed; 2 the spec or the arguments are wrong; 3 a
plan is valid but not certified; 130 after Ctrl-C. Commands import heavy modules themselves, so that
`pearl --help` is quick.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from pearl.early_exit import ending_with_an_error
from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import printable_lines

if TYPE_CHECKING:
    from pearl.report.document import Page

SCHEMA = 1
DONE, FAILED, WRONG, UNCERTIFIED, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    name="pearl",
    help="Plans which device runs each part of a deep-RL training loop, then trains with that "
    "plan.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        from pearl.planning.plans import pearl_version

        print(f"pearl {pearl_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@dataclass(frozen=True)
class Result:
    """The result of a command.

    text: for people, printed on standard output.
    object: for programs, written as JSON.
    status: exit status of the process.
    after: called when text and object are written; None for no call.
    page: makes the page that `--html` writes; None if the command has none.
    """

    text: str
    object: dict[str, Any]
    status: int = DONE
    after: Callable[[], None] | None = None
    page: Callable[[], Page] | None = None


def command(function: Callable[..., Result]) -> Callable[..., None]:
    """Register `function` as the command of its name; the one place for output, errors and exit."""

    name = function.__name__.strip("_").replace("_", "-")

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        target: str | None = options.get("json_file")
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _note
                with _working_folder_kept(), _prints_apart():
                    result = _attempt(lambda: function(*args, **options), f"pearl {name}")
                if target != "-" and result.text:
                    print(printable_lines(result.text), flush=True)
                _write_json(result.object, target)
                _write_html(result, options.get("html_file"))
                if result.after is not None:
                    with _prints_apart():
                        result.after()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of the output, such as `head`, has ended
                raise
            error_line(f"{error.filename or 'output'}: {error.strerror or error}")
            raise typer.Exit(FAILED) from None
        raise typer.Exit(result.status)

    app.command(name=name)(run)
    return run


def register_refusal(name: str, why: str) -> None:
    """Register a hidden command that says why it does not exist."""

    @app.command(
        name=name,
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def refuse() -> None:
        error_line(why)
        raise typer.Exit(WRONG)


_results: list[TextIO] = []
"""The standard output of the command that runs."""


@contextmanager
def _prints_apart() -> Iterator[None]:
    """Within this context, what code of the user prints goes to standard error; see `say`."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def say(text: str) -> None:
    """Print a result on standard output while a command runs."""
    print(text, file=_results[-1] if _results else sys.stdout, flush=True)


def _take_standard_output() -> TextIO:
    """Let descriptor 1 be standard error, and `sys.stdout` write to what it was; return it.

    C libraries and child processes write to the descriptor, some when the process ends.
    """
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    before = sys.stdout
    line = os.isatty(own)
    stream = open(own, "w", 1 if line else -1, before.encoding, "replace")  # noqa: SIM115 (to the end)
    sys.stdout = stream  # `sys.__stdout__` writes to the descriptor, as code of the user does
    return stream


def _write_rest(output: TextIO) -> None:
    """Write what is buffered. If its reader has ended, it goes nowhere: closing the stream, which
    Python does at the end, would fail once more and say so."""
    try:
        output.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


@contextmanager
def _working_folder_kept() -> Iterator[None]:
    """Return to the working folder at the end, because code of the user may leave it: files that
    the user has named lie here."""
    folder = ""
    with suppress(OSError):  # it may have been removed
        folder = os.getcwd()
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(folder)


def _attempt(work: Callable[[], Result], name: str) -> Result:
    from pearl_devices.base import EnvironmentFailed, UnsupportedError
    from pearl_devices.rooms import absence_text
    from pearl_estimators.sealed_files import CalibrationError

    try:
        return work()
    except ModuleNotFoundError as error:
        text = absence_text(name, error.name)
        if text is None:
            raise
        error_line(text)
        return Result("", {"schema": SCHEMA, "status": "failed", "message": text}, FAILED)
    except SpecError as error:
        for problem in error.problems:
            error_line(problem)
        problems = list(error.problems)
        return Result("", {"schema": SCHEMA, "status": "invalid", "problems": problems}, WRONG)
    except InfeasibleError as error:
        error_line(str(error))
        conflict = list(error.conflict)
        value = {"status": "infeasible", "message": str(error), "conflict": conflict}
        return Result("", {"schema": SCHEMA, **value}, FAILED)
    except (UnsupportedError, EnvironmentFailed, CalibrationError) as error:
        error_line(str(error))
        failed = {"schema": SCHEMA, "status": "failed", "message": str(error)}
        return Result("", failed, FAILED)


def _note(message: Warning | str, *where: Any, **options: Any) -> None:
    """Print a warning as one line, without its place in the code."""
    print(f"note: {printable_lines(str(message))}", file=sys.stderr, flush=True)


def error_line(line: str) -> None:
    """Print an error, without characters that command the terminal."""
    print(f"error: {printable_lines(line)}", file=sys.stderr, flush=True)


def _write_json(value: dict[str, Any], target: str | None) -> None:
    if target is None:
        return
    from pearl.planning.plans import plain

    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    if target == "-":
        print(text, end="", flush=True)
        return
    from pearl.files import write_atomically

    write_atomically(target, text.encode())


def _write_html(result: Result, target: Path | None) -> None:
    if target is None or result.page is None:
        return
    from pearl.files import write_atomically
    from pearl.report.html import page_html

    write_atomically(target, page_html(result.page()).encode())


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed. Otherwise the next files and pipes
    would get their numbers, and a child process would write its output into them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (to the end)


class _Notes(logging.Handler):
    """Prints what PEARL logs as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        _note(record.getMessage())


def main() -> None:
    """Entry point of the `pearl` command."""
    _open_closed_streams()
    output = _take_standard_output()
    if given := os.environ.get("PEARL_CACHE_DIR"):  # code of the user may leave the working folder
        os.environ["PEARL_CACHE_DIR"] = os.path.abspath(given)
    log = logging.getLogger("pearl")
    log.addHandler(_Notes())
    log.setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:  # a terminal without UTF-8 shows ? rather than nothing
            reconfigure(errors="replace")
    try:
        with ending_with_an_error():
            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _write_rest(output)
