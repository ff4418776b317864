"""The benchmark of GPUs: on the stand-in it runs through and says no times; and it can go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bars import ABSENT
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import loops
from benchmarks.gpu.crossover import crossing
from benchmarks.gpu.target import Case, Target, target
from pearl_devices import Device, Platform, discover
from pearl_devices.gpu.driver import HostDriver


def numbers(value: Any) -> Iterator[Any]:
    """All numbers in an object of JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_parts_run_through_on_the_stand_in_and_say_no_times(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "results.json"
    assert command.command(["--stand-in", "crossover", "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "bar: crossover, the stand-in, no GPU | 3 pass | 3 | met" in said
    assert " us" not in said
    assert "µs" not in said
    found = json.loads(file.read_text())["parts"]
    assert list(found) == ["crossover"]
    cases = [case for part in found.values() for case in part["cases"]]
    assert all(isinstance(n, int) for n in numbers(cases)), "counts alone, no times"


def test_a_case_that_fails_is_a_bar_that_is_missed_and_a_stand_in_has_no_figures() -> None:
    stand_in = target(True)
    cases = [Case("it", True, {"firings": 3}), Case("that", False, note="why")]
    (bar,) = command.part("kernels", cases, stand_in).bars
    assert (bar.measured, bar.asked, bar.met) == ("1 pass", "2", False)
    with pytest.raises(AssertionError, match="figures of a stand-in"):
        command.part("kernels", [Case("it", True, figures={"us": 1.0})], stand_in)


def test_a_run_goes_on_with_the_parts_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file, ran = tmp_path / "results.json", list[str]()

    class Section:
        @staticmethod
        def run(target: Any) -> list[Case]:
            return [Case("it", ran[-1] != "benchmarks.gpu.crossover", {"firings": 3})]

    monkeypatch.setattr(command, "import_module", lambda name: ran.append(name) or Section)
    assert command.command(["--stand-in", "kernels", "loops", "--resume", str(file)]) == 0
    assert command.command(["--stand-in", "--resume", str(file)]) == 1, "crossover fails"
    said = capsys.readouterr().out
    assert "kernels: done before" in said
    line = "bar: kernels, the stand-in, no GPU | 1 pass | 1 | met"
    assert line in said.rpartition("done before")[2]
    assert len(ran) == len(set(ran)) == len(command.PARTS)
    (bar,) = json.loads(file.read_text())["parts"]["crossover"]["bars"]
    assert bar["met"] is False
    file.write_text(file.read_text().replace("the stand-in, no GPU", "NVIDIA H100"))
    with pytest.raises(SystemExit, match=r"it has results of .*H100"):
        command.command(["--stand-in", "--resume", str(file)])
    file.write_text("[]")
    with pytest.raises(SystemExit, match="no results of this benchmark"):
        command.command(["--stand-in", "--resume", str(file)])
    assert file.read_text() == "[]"


def test_parts_begin_no_later_than_the_limit(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(command, "LIMIT_S", -1.0)
    assert command.command(["--stand-in", "kernels"]) == 0
    assert "kernels: left out, the time is up" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    alone = Platform("host", (discover.cpu(),))
    monkeypatch.setattr(discover, "host", lambda: alone)
    assert command.command(["kernels"]) == ABSENT
    assert "absent: no GPU is here; --stand-in" in capsys.readouterr().out


def test_the_batch_at_which_two_devices_are_as_fast_is_interpolated() -> None:
    batches = (16, 64, 256)
    # CPU: 1 us a row; GPU: 100 us whatever the batch
    assert crossing(batches, [16, 64, 256], [100, 100, 100]) == pytest.approx(100)
    assert crossing(batches, [200, 300, 400], [100, 100, 100]) == 16
    assert crossing(batches, [1, 1, 1], [2, 2, 2]) == math.inf


@pytest.mark.parametrize(("per_j", "met"), [(40.0, True), (30.0, False)])
def test_a_loop_is_judged_by_the_best_of_the_others_in_throughput_and_energy(
    per_j: float, met: bool
) -> None:
    def case(per_s: float, per_j: float) -> Case:
        return Case("it", True, {}, {"env_steps_per_s": per_s, "env_steps_per_j": per_j})

    gpu = Target(Device("gpu", "gpu"), HostDriver(), False, "host")
    others = [case(100.0, 3.0), case(50.0, 10.0)]
    *same, ours = loops.judged(gpu, [*others, case(220.0, per_j)])
    assert same == others
    assert ours.passed == met
    assert ours.figures["env_steps_per_s_over_best"] == 2.2
    assert ours.figures["env_steps_per_j_over_best"] == per_j / 10
    assert loops.judged(gpu, [ours]) == [ours]
