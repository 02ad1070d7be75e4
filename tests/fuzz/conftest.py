"""Fixture for tests that count live objects."""

import gc

import pytest


@pytest.fixture(autouse=True)
def only_what_is_new() -> None:
    """Collect the garbage of earlier tests, so that each count is of the test's own objects."""
    gc.collect()
