"""For tests that take a census of what is alive."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def only_what_is_new() -> Iterator[None]:
    """Each census collects garbage; not among all that other tests have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
