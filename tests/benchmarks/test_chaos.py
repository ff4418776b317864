"""The benchmark of killed runs, on a run of a second: what it kills, and what it notices."""

import pytest

from benchmarks import chaos
from pearl_devices.system import host_system

CASE = chaos.Case("dqn", "one")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def found(work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chaos.STEPS, "dqn", 4000)
        patch.setattr(host_system, "usable_cpus", host_system.usable_cpus)
        yield chaos.chaos((CASE,), 2, 0, work)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(found, capsys):
    kills = [kill for seen in found for kill in seen.kills]  # on a busy host of several runs
    assert not any(seen.wrong or seen.left for seen in found)
    assert len(kills) >= 2
    assert {who for _, who in kills} == {"main"}
    assert chaos.shown(found, [], None, {}) == 0
    assert (
        f"bar: runs of {len(found)} with {len(kills)} kills not as promised | 0"
        in capsys.readouterr().out
    )
