"""The order in which the kernel kills nsqd's processes."""

from pathlib import Path

import pytest

from nsqcy.process import oom_score


@pytest.mark.parametrize(
    ("inherited", "raised"),
    [("0\n", "100"), ("-900\n", "-800"), ("950\n", "1000"), ("1000\n", "1000")],
)
def test_the_inherited_value_is_raised(tmp_path: Path, inherited: str, raised: str) -> None:
    file = tmp_path / "oom_score_adj"
    file.write_text(inherited)
    oom_score.raise_above_parent(str(file))
    assert file.read_text() == raised


@pytest.mark.parametrize("content", ["", "nonsense"])
def test_other_content_stays(tmp_path: Path, content: str) -> None:
    file = tmp_path / "oom_score_adj"
    file.write_text(content)
    oom_score.raise_above_parent(str(file))
    assert file.read_text() == content


def test_a_failure_is_no_error(tmp_path: Path) -> None:
    oom_score.raise_above_parent(str(tmp_path / "missing"))
    oom_score.raise_above_parent("/proc/self/status")  # readable, but no number


def test_a_value_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "oom_score_adj"
    file.write_text("0")
    file.chmod(0o400)
    oom_score.raise_above_parent(str(file))  # root may write it
    assert file.read_text() in ("0", "100")
