"""`os._exit(0)` in code of the user is no success; its forks end as they like."""

import os

import pytest

from pearl.early_exit import ENDED, ending_with_an_error
from tests.needs import needs_linux

FORKS = needs_linux("forks")


@FORKS
@pytest.mark.parametrize(("given", "status"), [(0, ENDED), (7, 7)])
def test_a_process_that_ends_early_has_not_succeeded(given, status, capfd):
    child = os.fork()
    if not child:
        with ending_with_an_error():
            os._exit(given)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
    assert ("os._exit(0)" in capfd.readouterr().err) == (given == 0)


@FORKS
def test_a_fork_may_end_with_zero():
    with ending_with_an_error():
        child = os.fork()
        if not child:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
