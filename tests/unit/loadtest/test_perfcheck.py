"""The regression check for instructions per message: parsing, output, and the measured work."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.perfcheck import __main__ as command
from loadtest.perfcheck.callgrind import Count, Failure, count, readable, self_costs
from loadtest.perfcheck.work import Stretches, everything

DUMP = """\
positions: line
events: Ir
ob=(1) /x/session.cpython-311-x86_64-linux-gnu.so
fl=(1) a.c
fn=(1) __pyx_f_5nsqcy_8protocol_7session_7Session_parse
0 10
cob=(2) /lib/libc.so.6
cfn=(2) __memcpy_avx_unaligned_erms
calls=3 0
0 90
+3 5

ob=(2)
fn=(2)
0 90
ob=(1)
fn=(1)
* 2

totals: 107
"""


@pytest.fixture(scope="module")
def names() -> list[str]:
    """The kinds of work; each has already been run once without being counted."""
    found: dict[str, None] = {}

    class Names(Stretches):
        def of(self, name: str, messages: int) -> Any:
            assert messages > 1000
            found[name] = None
            return super().of(name, messages)

    everything(Names())
    return list(found)


def test_each_function_by_itself() -> None:
    session, libc = ("session", "Session.parse"), ("libc", "memcpy")
    assert self_costs(DUMP.splitlines()) == {session: 17, libc: 90}


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("__pyx_f_5nsqcy_8protocol_7session_7Session_put_frame", "Session.put_frame"),
        ("__pyx_f_5nsqcy_8protocol_4wire_split_line.constprop.0", "split_line"),
        ("__pyx_pw_5nsqcy_8protocol_4wire_15finish_all", "finish_all"),
        ("_PyEval_EvalFrameDefault'2", "_PyEval_EvalFrameDefault"),
        ("__memcmp_avx2_movbe", "memcmp"),
        ("__pyx_tp_new_vectorcall_memoryview", "__pyx_tp_new_vectorcall_memoryview"),
    ],
)
def test_names_as_the_source_has_them(mangled: str, name: str) -> None:
    assert readable(mangled) == name


def test_five_percent() -> None:
    then = {"a": 100.0, "b": 100.0, "c": 100.0, "d": 100.0, "e": 100.0}
    now = {"a": 105.0, "b": 105.1, "c": 95.0, "d": 94.9, "f": 1.0}
    said = {"a": "", "b": "worse", "c": "", "d": "better", "e": "gone", "f": "new"}
    assert command.compare(now, then) == said


def counted(monkeypatch: pytest.MonkeyPatch, **instructions: int) -> None:
    counts = {name: Count(10, total, Counter()) for name, total in instructions.items()}
    monkeypatch.setattr(command, "count", lambda: counts)
    monkeypatch.setattr(command, "details", lambda: {"Cython": "1"})


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(command, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(command.protocol, "COUNTED", False)
    return command.FIGURES


def test_recorded_then_compared(
    monkeypatch: pytest.MonkeyPatch, figures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(monkeypatch, publish=1000, finish=500)
    assert command.main([]) == 2
    assert "nothing to compare with" in capsys.readouterr().out
    assert command.main(["--update"]) == 0
    assert command.main([]) == 0
    counted(monkeypatch, publish=1060, finish=500)
    capsys.readouterr()
    assert command.main([]) == 1
    said = capsys.readouterr().out
    assert "more than 5% worse: publish\n" in said and "+6.0%" in said
    counted(monkeypatch, publish=1000, finish=400)
    assert command.main([]) == 0
    assert (
        "more than 5% better: finish; keep it: make perfcheck UPDATE=1" in capsys.readouterr().out
    )


def test_entries_of_others_stay(monkeypatch: pytest.MonkeyPatch, figures: Path) -> None:
    other = {"vax, CPython 3.11.0, GCC 2": {"with": {}, "figures": {"publish": 9.0}}}
    figures.write_text(json.dumps(other))
    counted(monkeypatch, publish=1000)
    assert command.main([]) == 2
    assert command.main(["--update"]) == 0
    recorded = json.loads(figures.read_text())
    assert len(recorded) == 2 and other.items() <= recorded.items()


def test_without_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Failure, match="valgrind is not installed"):
        count()


def test_recorded_figures_are_of_this_work(names: list[str]) -> None:
    recorded = json.loads(command.FIGURES.read_text())
    assert recorded
    for entry in recorded.values():
        assert list(entry["figures"]) == names
