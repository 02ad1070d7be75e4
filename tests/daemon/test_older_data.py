"""A data path from an earlier version opens with all of its content."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import older_data

ARCHIVES = sorted(Path(__file__).parent.glob("data-*.tar.gz"))


def test_there_is_a_data_path() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
@pytest.mark.parametrize("life", older_data.LIVES)
def test_it_opens(archive: Path, life: str, tmp_path: Path) -> None:
    expected = older_data.unpack(archive, tmp_path)[life]
    with older_data.start(tmp_path / life) as daemon:
        found = json.loads(json.dumps(older_data.describe(daemon)))
    drop_newer_keys(found["policies"], expected["policies"])
    assert found == expected


def drop_newer_keys(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Drop the policy keys that older versions did not have. Their values are the defaults."""
    for name, policy in found.items():
        for key in policy["config"].keys() - expected[name]["config"].keys():
            assert policy["config"].pop(key)["from"] == "default"
