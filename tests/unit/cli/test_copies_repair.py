"""`nsqcy copies repair` on a data path."""

from pathlib import Path

import pytest

from nsqcy.cli.main import main
from nsqcy.process import data_path_lock
from nsqcy.storage.state_file import parse_object


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    """The data path of an nsqd that has a complete copy and has seen revision 7 of etcd."""
    copy = tmp_path / "copies" / "0" / "group"
    copy.mkdir(parents=True)
    (copy / "copy.json").write_text('{"whole": true, "epoch": 3, "boot": "b", "serves": true}')
    (tmp_path / "copies" / "node.0.json").write_text('{"processes": ["p"], "revision": 7}')
    return tmp_path


def test_copies_and_revisions_are_not_trusted(
    data_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["copies", "repair", str(data_path)]) == 0
    facts = parse_object((data_path / "copies" / "0" / "group" / "copy.json").read_bytes())
    assert facts == {"whole": False, "epoch": 3, "boot": "b", "serves": True}
    node = parse_object((data_path / "copies" / "node.0.json").read_bytes())
    assert node == {"processes": ["p"], "revision": 0, "mark": 0, "repaired": True}
    assert "1 copy will be compared" in capfd.readouterr().out


def test_a_running_nsqd_is_left_alone(data_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with data_path_lock.lock_data_path(str(data_path)):
        assert main(["copies", "repair", str(data_path)]) == 1
    assert '"revision": 7' in (data_path / "copies" / "node.0.json").read_text()
    assert "in use" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "missing argument 'DATA_PATH'"),
        (["--yes"], 2, "unknown option --yes"),
        (["/nowhere"], 1, "no copies"),
    ],
)
def test_mistakes(
    words: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["copies", "repair", *words]) == code
    assert text in capfd.readouterr().err
