"""`make quick`: the tests that a change selects."""

import subprocess
import sys
from pathlib import Path

import pytest

import quick
from support.package_order import MODULES, RANK, ROOT, package


def unit(*folders: str) -> set[str]:
    return {f"tests/unit/{folder}" for folder in folders}


def test_a_module_brings_its_folder_and_those_who_import_it() -> None:
    found = set(quick.selected(["cext/nsqcy/storage/log.pyx"]))
    assert unit("storage", "broker/test_core.py", "nsqd/test_audit.py") <= found
    assert not unit("base/test_heap.py", "client/test_client_flow.py") & found
    assert not [each for each in found if each.startswith("tests/unit/storage/")]


def test_a_module_that_nothing_imports_brings_its_folder() -> None:
    found = set(quick.selected(["nsqcy/doctor/main.py"]))
    assert found == {*quick.ALWAYS, *unit("doctor")}


def test_what_is_above_is_found_at_any_distance() -> None:
    graph = {"a": set(), "b": {"a"}, "c": {"b"}, "d": set()}
    assert quick.above({"a"}, graph) == {"a", "b", "c"}
    assert quick.above({"d"}, graph) == {"d"}


def test_what_is_above_is_above_in_the_order_of_packages() -> None:
    for name in {package(each) for each in MODULES} - {"nsqcy"}:
        inside = {each for each in MODULES if package(each) == name}
        found = {package(each) for each in quick.above(inside, quick.graph()) & MODULES}
        assert all(RANK[each] > RANK[name] for each in found - {name}), name


@pytest.mark.parametrize(
    ("path", "modules"),
    [
        ("nsqcy/names.py", {"names"}),
        ("nsqcy/__init__.py", {"nsqcy"}),
        ("nsqcy/broker/__init__.py", {"broker"}),
        ("nsqcy/nsqd/http/api.py", {"nsqd.http.api"}),
        ("nsqcy/storage/core.pyi", {"storage.core"}),
        ("cext/nsqcy/broker/topic.pyx", {"broker.core"}),
        ("docs/TESTING.md", set()),
        ("tests/unit/base/test_heap.py", set()),
    ],
)
def test_the_module_of_a_file(path: str, modules: set[str]) -> None:
    assert quick.modules_of(path) == modules


def test_a_header_belongs_to_those_that_include_it() -> None:
    assert "storage.core" in quick.modules_of("cext/include/segment.h")
    assert "storage.core" in quick.modules_of("cext/src/iothread.c")
    assert quick.modules_of("cext/include/new.h") == {"base"}


def test_a_test_brings_itself() -> None:
    path = "tests/unit/base/test_heap.py"
    assert quick.selected([path]) == [*quick.ALWAYS, path]
    assert quick.selected([path, "nsqcy/base/core.pyi"]).count(path) == 0
    assert quick.selected(["tests/unit/base/test_gone.py"]) == quick.ALWAYS


def test_a_helper_brings_the_tests_that_use_it() -> None:
    found = set(quick.selected(["tests/support/worker_core.py"]))
    # The second test imports the helper indirectly.
    assert unit("broker/test_core.py", "protocol/test_session_moves.py") <= found
    assert not unit("base/test_heap.py") & found


def test_other_files_bring_the_tests_that_look_at_them() -> None:
    assert quick.selected(["docs/CONFIG.md"]) == [*quick.ALWAYS, "tests/unit/conf"]
    assert quick.selected(["loadtest/swarm/run.py"]) == [*quick.ALWAYS, "tests/unit/loadtest"]
    assert quick.selected(["tests/conformance/test_sub.py"]) == quick.ALWAYS
    assert quick.selected(["Makefile", "docs/CONFIG.md"]) == quick.EVERYTHING
    assert quick.selected([]) == quick.ALWAYS


def test_every_folder_of_unit_tests_is_that_of_a_package() -> None:
    folders = {path.parent.name for path in (ROOT / "tests/unit").rglob("test_*.py")}
    assert folders - {"unit"} <= RANK.keys() | set(quick.OUTSIDE.values())


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def test_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has changed since the merge base, whether committed or not; later changes on main do
    not count."""
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com"]
    run(tmp_path, "git", "init", "-q", "-b", "main")
    for name in ("moved", "edited", "kept"):
        (tmp_path / name).write_text(f"{name}\n" * 20)
    run(tmp_path, "git", "add", ".")
    run(tmp_path, *git, "commit", "-q", "-m", "first")
    run(tmp_path, "git", "checkout", "-q", "-b", "work")
    run(tmp_path, "git", "mv", "moved", "new place")
    run(tmp_path, *git, "commit", "-q", "-m", "second")
    run(tmp_path, "git", "checkout", "-q", "main")
    (tmp_path / "kept").write_text("of main\n")
    run(tmp_path, *git, "commit", "-q", "-a", "-m", "third")
    run(tmp_path, "git", "checkout", "-q", "work")
    (tmp_path / "edited").write_text("otherwise\n")
    (tmp_path / "unknown").write_text("")
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    assert quick.changed("main") == ["edited", "moved", "new place", "unknown"]


def test_it_lists_the_tests_it_would_run() -> None:
    words = [sys.executable, "tests/quick.py", "--list", "--base=HEAD"]
    assert run(ROOT, *words).startswith("quick: tests/meta ")
