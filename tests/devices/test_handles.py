"""Handles that a run keeps have numbers that no new file gets."""

import os
import resource

import pytest

from pearl_devices.system.portable import HIGH, Portable


@pytest.fixture
def handle():
    found = os.open(os.devnull, os.O_RDONLY)
    yield found
    os.close(found)


def test_a_moved_handle_is_above_those_of_new_files_and_not_inherited(handle):
    moved = Portable().move_up(os.dup(handle))
    try:
        assert moved >= HIGH
        assert os.path.samestat(os.fstat(moved), os.fstat(handle))
        assert not os.get_inheritable(moved)
    finally:
        os.close(moved)
    again = os.dup(handle)  # the number that was moved from is free again
    os.close(again)
    assert again < HIGH


def test_where_no_high_number_is_allowed_a_low_one_does(handle):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH, hard))
    try:
        moved = Portable().move_up(os.dup(handle))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert moved < HIGH
    os.close(moved)
