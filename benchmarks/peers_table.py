"""Rows and bars of `benchmarks.peers`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.bars import Bar, at_least, at_most

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Row → what each run gave."""
PRODUCTS = ("products", "products, ours")
LIBRARIES = ("sb3", "sbx")
"""Of W4 the libraries of which the fastest counts."""


@dataclass(frozen=True)
class Asked:
    """Least ratio of one row of ours to another row, the fastest of them if there are several."""

    load: str
    row: str
    others: tuple[str, ...]
    least: float

    @property
    def text(self) -> str:
        others = (
            self.others[0] if len(self.others) == 1 else "the fastest of " + " | ".join(self.others)
        )
        return f"{self.load}: {self.row} over {others}"

    def within(self, rows: Mapping[str, Sequence[str]]) -> bool:
        """Whether all that is compared is among `rows`."""
        return {self.row, *self.others} <= set(rows.get(self.load, ()))


ASKED = (
    Asked("W1x8", "ours", ("sbx",), 6.0),
    Asked("W1x8", "ours", ("sb3",), 20.0),
    Asked("W1x8", "ours", ("rllib",), 200.0),
    Asked("W1x8", "ours", ("xla",), 1.5),
    Asked("W1x8", "ours, gymnasium", ("sbx",), 5.0),
    Asked("W1x1", "ours, own env", ("sb3",), 20.0),
    Asked("W1x1", "ours", ("xla",), 1.5),
    Asked("W2", "ours", ("tianshou",), 45.0),
    *(
        Asked(load, "ours", others, least)
        for load in ("W3", "W5")
        for others, least in ((PRODUCTS, 0.9), (("sbx",), 1.3), (("xla",), 1.1))
    ),
    Asked("W4", "ours", LIBRARIES, 12.0),
    Asked("W4", "ours", ("xla",), 1.2),
)


def ratio(runs: Runs, row: str, others: Sequence[str]) -> float:
    """Median over pairs of the row's rate to that of the fastest other of the same pair."""
    rates = [[run["per_cpu_s"] for run in runs[name]] for name in (row, *others)]
    each = [mine / max(theirs) for mine, *theirs in zip(*rates, strict=False)]
    return float(statistics.median(each))


def rows_of(found: Mapping[str, Runs]) -> list[list[str]]:
    """A line for every row that has rates."""
    rows = []
    for load, runs in found.items():
        for name, several in runs.items():
            rates = [run["per_cpu_s"] for run in several]
            against = (
                f"{ratio(runs, 'ours', (name,)):.2f}" if "ours" in runs and name != "ours" else ""
            )
            memory = statistics.median(run["rss_bytes"] for run in several) / 2**20
            spread = f"{min(rates):,.0f} – {max(rates):,.0f}"
            middle = f"{statistics.median(rates):,.0f}"
            rows.append([load, name, middle, spread, against, f"{memory:.0f}"])
    return rows


def bars_of(found: Mapping[str, Runs]) -> list[Bar]:
    """The bars whose rows were measured."""
    bars = []
    for asked in ASKED:
        runs = found.get(asked.load, {})
        if asked.within({asked.load: list(runs)}):
            value = ratio(runs, asked.row, asked.others)
            bars.append(at_least(asked.text, value, asked.least, "{:.2f}×"))
    for load in ("W1x1", "W2"):
        if "ours, smallest" in found.get(load, {}):
            rates = [run["per_cpu_s"] for run in found[load]["ours, smallest"]]
            each = 1e6 / statistics.median(rates)
            text = f"{load}: an iteration with next to no work: Python and dispatch"
            bars.append(at_most(text, each, 8.0, "{:.1f} µs"))
    return bars + _memory(found)


def _memory(found: Mapping[str, Runs]) -> list[Bar]:
    bars = []
    for load, runs in found.items():
        peers = [n for n in runs if n in ("sb3", "sbx", "rllib", "tianshou")]
        if "ours" in runs and peers:
            mine = _median(runs["ours"], "rss_bytes") / 2**20
            theirs = {name: _median(runs[name], "rss_bytes") / 2**20 for name in peers}
            least = min(theirs, key=lambda name: theirs[name])
            text = f"{load}: peak memory beside {least}'s"
            bars.append(at_most(text, mine, theirs[least], "{:.0f} MiB"))
        told = [run for run in runs.get("ours", ()) if "variants" in run]
        native = [run for run in told if "torch" not in run["variants"].values()]
        if native:
            imported = any(run["torch"] for run in native)
            said = "imported" if imported else "not imported"
            bars.append(Bar(f"{load}: torch in a native plan", said, "not imported", not imported))
    return bars


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))
