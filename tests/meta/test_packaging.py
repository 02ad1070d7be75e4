"""The published packages: their content, and the consistency of versions and changelog."""

import datetime
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import nsqcy
from nsqcy.broker import core
from release import audit, build, pythons
from support import distribution_files
from support.distribution_files import ROOT

HEADING = re.compile(r"^## (\d+)\.(\d+)\.(\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$")


def setup(folder: Path, *words: str) -> None:
    """Run setup.py without compiling modules and without writing to this tree."""
    command = [sys.executable, "setup.py", "-q", "build", f"--build-base={folder}/build"]
    done = subprocess.run(
        [*command, "egg_info", f"--egg-base={folder}", *words],
        cwd=ROOT,
        env=os.environ | {"NSQCY_BUILT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_an_sdist_holds(tmp_path: Path) -> None:
    setup(tmp_path)
    names = set((tmp_path / "nsqcy.egg-info/SOURCES.txt").read_text().splitlines())
    assert distribution_files.missing_from_sdist(names) == set()
    assert distribution_files.generated(names) == set()


@pytest.mark.slow
def test_what_a_wheel_holds(tmp_path: Path) -> None:
    """All files except the extension modules."""
    setup(tmp_path, "bdist_wheel", f"--dist-dir={tmp_path}", f"--bdist-dir={tmp_path}/wheel")
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert distribution_files.missing_from_wheel(names) == set()
    assert distribution_files.unwanted(names) == set()


def test_nothing_unwanted_goes_unnoticed() -> None:
    names = {"nsqcy/a.py", "tests/a.py", "nsqcy/broker/topic.c", "conf/nsqd.ini"}
    assert distribution_files.unwanted(names) == names - {"nsqcy/a.py"}
    assert distribution_files.generated({"cext/a.c", "nsqcy/a.so", "a.pyx"}) == {
        "cext/a.c",
        "nsqcy/a.so",
    }


def test_the_top_of_the_changelog_is_this_version() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    found = [HEADING.match(line) for line in headings]
    assert all(found), headings
    versions = [tuple(map(int, each.groups()[:3])) for each in found if each]
    assert ".".join(map(str, versions[0])) == nsqcy.__version__
    assert versions == sorted(set(versions), reverse=True)
    days = [each[4] for each in found if each]
    assert "unreleased" not in days[1:]
    assert all(day <= str(datetime.date.today()) for day in days if day != "unreleased")


def test_upgrading_comes_first() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    for section in re.split(r"(?m)^## ", text)[1:]:
        (first, *_) = re.findall(r"(?m)^### (.*)$", section)
        assert first == "Upgrading"


def test_every_python_that_is_promised_gets_a_wheel() -> None:
    (oldest,) = re.findall(
        r">=(\d+\.\d+)", distribution_files.PROJECT["project"]["requires-python"]
    )
    assert pythons.VERSIONS[0] == oldest
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = pythons.find(ours)
    assert ours in pythons.VERSIONS and (found is None or found.exists())
    assert pythons.find("3.1") is None


def test_what_an_index_shows_of_the_project() -> None:
    project = distribution_files.PROJECT["project"]
    assert project["authors"] and project["keywords"]
    assert all(url.startswith("https://") for url in project["urls"].values())
    promised = {f"Programming Language :: Python :: {each}" for each in pythons.VERSIONS}
    found = set(project["classifiers"])
    assert {each for each in found if re.search(r"Python :: 3\.\d", each)} == promised
    # An SPDX expression replaces the license classifier.
    assert not [each for each in found if each.startswith("License ::")]


def test_every_compiled_module_has_its_source() -> None:
    assert Path(core.__file__).suffix == ".so"
    stubs = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "nsqcy").rglob("*/*.pyi")}
    modules = distribution_files.compiled_modules()
    assert stubs == {Path("nsqcy", *name.split(".")) for name in modules}


def test_no_path_of_this_machine_gets_into_a_module() -> None:
    """The compiler flags of this Python may contain paths of this machine."""
    compiler = build.compiler(Path(sys.executable), build.THIS, Path("/source"))
    assert compiler.keys() >= {"CC", "CFLAGS", "LDSHARED", "LDFLAGS"}  # replace Python's own
    assert "rpath" not in str(compiler)
    assert not re.search(" -[IL]", str(compiler))
    assert "-ffile-prefix-map=/source=." in compiler["CFLAGS"]


def test_a_wheel_for_a_different_machine_has_its_compiler_and_names() -> None:
    other = next(each for each in build.MACHINES if each != build.THIS)
    compiler = build.compiler(Path(sys.executable), other, Path("/source"))
    assert f"ziglang cc -target {other}-linux-gnu" in compiler["CC"]
    assert compiler["_PYTHON_HOST_PLATFORM"] == f"linux-{other}"
    assert compiler["SETUPTOOLS_EXT_SUFFIX"].endswith(f"-{other}-linux-gnu.so")


@pytest.mark.parametrize(
    ("package", "strict", "code"),
    [
        ({"vulns": []}, True, 0),
        ({"vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}, False, 1),
        ({"vulns": [{"id": "CVE-1", "fix_versions": []}]}, False, 0),
        ({"vulns": [{"id": "CVE-1", "fix_versions": []}]}, True, 1),
        ({"skip_reason": "not found"}, False, 0),
        ({"skip_reason": "not found"}, True, 1),
    ],
)
def test_what_an_audit_makes_of_an_answer(
    package: dict[str, object], strict: bool, code: int
) -> None:
    answer = {"dependencies": [{"name": "p", "version": "1.0"} | package]}
    told, found = audit.judge(answer, strict)
    assert found == code
    assert len(told) == (package != {"vulns": []})


def test_an_audit_is_of_what_we_need_and_of_what_that_needs() -> None:
    found = audit.needed("nsqcy", audit.EXTRAS)
    assert {"gevent", "greenlet", "urllib3", "cffi"} <= found.keys()
    assert "pytest" not in found and "nsqcy" not in found
