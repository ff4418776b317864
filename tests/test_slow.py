"""Which tests are slow: those that the last recorded profile found dear (`tests/profiler.py`)."""

import json

import pytest

from tests.profiler import KEPT, SLOW_S, WRITTEN


def test_the_last_profile_decides_which_tests_are_slow(request):
    """A test that its source marks, though it is cheap, is slow for no reason."""
    costs = json.loads(KEPT.read_text())
    dear = {test for test, cpu_s in costs.items() if cpu_s > SLOW_S}
    run = {item.nodeid for item in request.session.items}
    if request.config.option.markexpr == "not slow":
        assert not dear & run
    needless = [t for t, marked in request.config.stash[WRITTEN].items() if marked and t in costs]
    assert [test for test in needless if test not in dear] == []


def test_every_test_of_the_profile_is_there(request):
    if request.config.args != [str(request.config.rootpath / "tests")] and request.config.args != [
        "tests"
    ]:
        pytest.skip("only some tests were collected")
    gone = set(json.loads(KEPT.read_text())) - request.config.stash[WRITTEN].keys()
    assert gone == set(), "record a profile again: `pytest --profile FILE`"
