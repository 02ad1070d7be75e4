"""Fixture for tests that count live objects."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def only_what_is_new() -> Iterator[None]:
    """Hide older garbage from the collection before each count."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
