"""Fixture of the process tests: toy nsqds in the test's directory."""

import pytest

from toy import Toy


@pytest.fixture
def toy(tmp_path):
    """Factory of masters with toy engines. All of their processes end with the test."""
    made = []

    def start(**settings):
        made.append(Toy(settings.pop("data_path", tmp_path), **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()
