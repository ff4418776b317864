"""Progress of training on standard error: a bar on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from pearl.formatting import count
from pearl.training.steering import Progress


def describe_progress(now: Progress) -> str:
    """Describe return and rate: `return 212.5, 24,310 env steps/s, 0.97 of predicted`."""
    parts = []
    if now.mean_return is not None:
        parts.append(f"return {count(now.mean_return)}")
    if now.eval_mean is not None:
        parts.append(f"eval {count(now.eval_mean)}")
    parts.append(f"{count(now.env_steps_per_s)} env steps/s")
    if now.predicted_env_steps_per_s > 0:
        parts.append(f"{now.env_steps_per_s / now.predicted_env_steps_per_s:.2f} of predicted")
    return ", ".join(parts)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def progress_display(stream: TextIO | None = None) -> Iterator[Callable[[Progress], None]]:
    """Yield a listener for `Trainer.train(progress=…)`. On exit the drawing is complete."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty() and not in_notebook():
        yield _print_lines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[line]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    console = Console() if in_notebook() else Console(file=stream)
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("start", total=1, line="")

        def draw(now: Progress) -> None:
            bar.update(
                task,
                description=now.phase,
                total=now.total_steps,
                completed=now.env_steps,
                line=describe_progress(now),
            )

        yield draw


def _print_lines(stream: TextIO) -> Callable[[Progress], None]:
    told = [0]

    def tell(now: Progress) -> None:
        tenth = 10 * now.env_steps // max(now.total_steps, 1)
        if tenth > told[0]:
            told[0] = tenth
            share = f"{100 * now.env_steps // max(now.total_steps, 1)} %"
            print(
                f"{share:>5}  {now.env_steps:,} env steps, {describe_progress(now)}",
                file=stream,
                flush=True,
            )

    return tell
