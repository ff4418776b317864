"""Arguments of several commands, and loading of the specs that they name."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pearl.spec.system import System


def overrides(pairs: list[str] | None) -> dict[str, object]:
    """Return KEY=VALUE arguments as a mapping."""
    from pearl.spec.reading import parse_set

    return dict(parse_set(pair) for pair in pairs or ())


def whole_number(text: str) -> int:
    """Return a whole number of at least 1, such as `50000` or `5e4`.

    Raises:
        BadParameter: the text is none.
    """
    from pearl.spec.yaml_reader import parse_scalar

    value = parse_scalar(text.strip())
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise typer.BadParameter(f"given {text!r}; a whole number of at least 1 is needed")
    return value


def choose_folder(parent: str, name: str, *, resume: bool) -> Path:
    """Return the first free folder of NAME, NAME-2, … in `parent`; to resume, the last one that
    exists, if there is one."""
    stem, number = re.sub(r"[^\w.-]+|^\.+", "-", name), 1
    folder, last = Path(parent) / stem, None
    while folder.exists():
        last, number = folder, number + 1
        folder = folder.with_name(f"{stem}-{number}")
    return last if resume and last is not None else folder


def load_spec(spec: str, pairs: list[str] | None) -> System:
    """Load a spec with KEY=VALUE arguments laid over it. If code of the spec ends the process, a
    line says which code did."""
    from pearl.runtime.environments.watchdog import watching_user_code
    from pearl.spec.reading import load_watched

    def watch(names: str) -> AbstractContextManager[None]:
        return watching_user_code(f"code of the spec ({names}), which is imported and tried,")

    return load_watched(spec, set=overrides(pairs), watch=watch)


def warn_of_measuring(system: System, *, to_train: bool = False) -> None:
    """Announce on standard error that planning will time kernels of this host's CPU, if it will.

    to_train: the plan is trained at once. Such a plan of one lane is made without timing while the
        host is busy.
    """
    from pearl.planner.planner import skipping_timing_if_busy
    from pearl.spec.user_code import build_graph
    from pearl_estimators.host import calibrator, measuring

    if not any(calibrator.is_calibrated_here(d) for d in system.platform.devices):
        return
    with skipping_timing_if_busy(system) if to_train else nullcontext():
        missing = calibrator.missing_groups(build_graph(system).kernels)
    if missing:
        max_s = measuring.limit_of(measuring.SECONDS)
        print(
            f"timing this host's kernels once ({', '.join(missing)}): about a minute, at most "
            f"{max_s:.0f} s. Ctrl-C stops and keeps the timings so far",
            file=sys.stderr,
            flush=True,
        )


Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="The spec: a YAML file, or the name of a shipped one.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A folder left by `pearl train`.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Allow importing code named by a run that you did not train."),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Override keys of the spec, as in algorithm.batch_size=256."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="The same as KEY=VALUE after SPEC."),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write the result as a page with figures."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print every table.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output."),
]
