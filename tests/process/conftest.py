"""Fixtures of the process tests: a toy nsqd in a folder of its own."""

import pytest

from toy import Toy


@pytest.fixture
def toy(tmp_path):
    """Starts masters with toy engines; nothing of them outlives the test."""
    made = []

    def start(**settings):
        made.append(Toy(settings.pop("data_path", tmp_path), **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()
