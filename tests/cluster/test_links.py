"""Links between hosts: how they are fitted to timings, and how they are kept."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.cluster import links
from pearl.cluster.connection import Node
from pearl.cluster.links import MeasuredLink, TimedMessage, fit_link
from pearl.errors import SpecError

HOME = Node("a", "1" * 8, "10.0.0.1", 2, 0, 1e9)
OTHER = Node("b", "2" * 8, "10.0.0.2", 2, 0, 1e9)


def timings(latency_s: float, per_message_s: float, bytes_per_s: float) -> list[TimedMessage]:
    return [
        TimedMessage(n, latency_s + n / bytes_per_s, per_message_s + n / bytes_per_s, 1.0)
        for n in links.SIZES
    ]


def measured(**changed: object) -> MeasuredLink:
    figures = {"latency_s": 4e-4, "per_message_s": 5e-4, "bytes_per_s": 1e8, "error": 0.1}
    ends = {"home": "a", "other": "b", "addresses": ("10.0.0.1", "10.0.0.2"), "carrier": "tcp"}
    about = {**ends, "created": "2026-01-02T03:04:05Z", **figures, **changed}
    return MeasuredLink(**about, timings=tuple(timings(4e-4, 5e-4, 1e8)))  # type: ignore[arg-type]


@given(st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-2), st.floats(1e6, 1e10))
def test_a_link_of_the_model_is_found(
    latency_s: float, per_message_s: float, bytes_per_s: float
) -> None:
    found = fit_link(timings(latency_s, per_message_s, bytes_per_s))
    for each in timings(*found):
        expected = timings(latency_s, per_message_s, bytes_per_s)[
            links.SIZES.index(each.size_bytes)
        ]
        assert each.one_way_s == pytest.approx(expected.one_way_s, rel=1e-4)
        assert each.pipelined_s == pytest.approx(expected.pipelined_s, rel=1e-4)


def test_a_measured_link_is_kept_and_is_that_of_the_same_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    assumed = links.link(HOME, OTHER, "tcp")
    assert (assumed.a, assumed.b) == ("a", "b")
    assert all(text.startswith("assumed") for text in assumed.sources.values())
    links._keep([measured(), measured(other="c")])
    links._keep([measured(latency_s=1e-3)])
    assert sorted(k.other for k in links.load_links()) == ["b", "c"]
    found = links.link(HOME, OTHER, "tcp")
    known = links.HANDLED_S + 1e-3
    assert (found.latency_s, found.per_message_s, found.bytes_per_s) == (known, 5e-4, 1e8)
    source = "measured 2026-01-02 between a and b by tcp"
    assert found.sources["bytes_per_s"] == source
    assert found.sources["latency_s"] == f"{source}, and 0.35 ms that a run takes itself (assumed)"
    by_ray = links.ASSUMED["ray"]["latency_s"] + links.HANDLED_S
    assert links.link(HOME, OTHER, "ray").latency_s == by_ray
    links._keep([measured(carrier="ray", latency_s=2e-3)])
    assert links.link(HOME, OTHER, "ray").latency_s == links.HANDLED_S + 2e-3
    assert links.link(HOME, OTHER, "tcp").latency_s == known
    moved = Node("b", "3" * 8, "10.0.0.9", 2, 0, 1e9)
    assert links.link(HOME, moved, "tcp") == assumed


@pytest.mark.parametrize("damage", ["cut", "edited", "endless"])
def test_a_damaged_file_of_links_is_refused_with_the_remedy_and_measured_anew(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    links._keep([measured()])
    text = links.path().read_text()
    if damage == "cut":
        text = text[:100]
    elif damage == "edited":
        text = text.replace("0.0004", "0.0005")
    else:
        text = json.dumps({"schema": 1, "links": [{"latency_s": float("inf")}]})
    links.path().write_text(text)
    with pytest.raises(SpecError, match=r"links\.json: .*pearl calibrate --on ray"):
        links.link(HOME, OTHER, "tcp")
    links._keep([measured()])
    assert len(links.load_links()) == 1


def test_the_band_of_a_measured_link_is_that_of_its_messages_beside_their_lower_quartile() -> None:
    assert measured().link.band == (1.0, 1.0)  # every message took the same time
    spread = [replace(t, spread=16.0) for t in timings(4e-4, 5e-4, 1e8)]
    low, high = replace(measured(), timings=tuple(spread)).link.band
    assert high / low == pytest.approx(16)
    share = NormalDist().cdf(math.log(1 / low) / math.log(high / low) * 2 * 1.6449 - 1.6449)
    assert share == pytest.approx(0.25, abs=1e-3)
    assert links.link(HOME, OTHER, "tcp").band == (0.5, 3.0)
