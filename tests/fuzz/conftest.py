"""Fixture for tests that count live objects."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def only_what_is_new() -> Iterator[None]:
    """Exclude everything that already exists from the collections before the counts. Afterwards,
    collect the new garbage, and exclude the remaining objects again, as tests/conftest.py does."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
