"""The commit that the code was built from: nsqcy/commit.py."""

from pathlib import Path

import pytest

from nsqcy import commit as module
from nsqcy.commit import commit

DIGITS = "0123456789abcdef0123456789abcdef01234567"
OTHER = DIGITS[::-1]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("nsqcy", ".git/refs/heads"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "nsqcy")
    return tmp_path


def read() -> str:
    return commit.__wrapped__()


def test_a_branch(checkout: Path) -> None:
    (checkout / ".git/refs/heads/main").write_text(f"{DIGITS}\n")
    assert read() == "01234567"


def test_a_packed_branch(checkout: Path) -> None:
    lines = ["# pack-refs with: peeled", f"{OTHER} refs/heads/maine", f"{DIGITS} refs/heads/main"]
    (checkout / ".git/packed-refs").write_text("\n".join(lines))
    assert read() == "01234567"


def test_no_branch(checkout: Path) -> None:
    (checkout / ".git/HEAD").write_text(f"{DIGITS}\n")
    assert read() == "01234567"


def test_a_build_goes_before_a_checkout(checkout: Path) -> None:
    (checkout / ".git/HEAD").write_text(f"{OTHER}\n")
    (checkout / "nsqcy/commit.txt").write_text("01234567\n")
    assert read() == "01234567"


@pytest.mark.parametrize("head", [b"ref: refs/heads/gone\n", b"\xff", None])
def test_unknown(checkout: Path, head: bytes | None) -> None:
    path = checkout / ".git/HEAD"
    path.unlink() if head is None else path.write_bytes(head)
    assert read() == "unknown"
