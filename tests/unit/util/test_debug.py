"""Debug information, which must not delay the hub."""

import _thread

import pytest

from nsqcy.util import debug


def test_memory_is_released_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    released_by: list[int] = []
    monkeypatch.setattr(debug, "_trim", lambda: released_by.append(_thread.get_ident()))
    assert debug.tell("free") == ""
    assert len(released_by) == 1
    assert released_by[0] != _thread.get_ident()
