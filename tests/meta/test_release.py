"""Files that accompany the archives of a release, and the workflows that publish them."""

import io
import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import nsqcy
from release import assemble, build, pythons
from support.distribution_files import PROJECT, ROOT

yaml = pytest.importorskip("yaml")
pytest.importorskip("cyclonedx")
from release import sbom  # noqa: E402

WORKFLOWS = {path.name: path for path in (ROOT / ".github/workflows").glob("*.yml")}
PINNED = re.compile(r"^ *-? *uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+(\.\d+)+$")
# Files that cannot be read in a review, by directory.
BINARY = ("docs/images/", "tests/fuzz/corpus/", "tests/daemon/data-")


# --- archives -----------------------------------------------------------------------------------


def sdist(folder: Path, mode: int, time: int, names: list[str]) -> Path:
    path = folder / "nsqcy.tar.gz"
    folder.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.mode, info.mtime, info.uid, info.uname, info.size = mode, time, 7, "me", len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    build.make_reproducible(path, 1_700_000_000)
    return path


def test_an_sdist_does_not_depend_on_times_owners_modes_and_order(tmp_path: Path) -> None:
    one = sdist(tmp_path / "one", 0o640, 1, ["a", "b/c"])
    other = sdist(tmp_path / "other", 0o664, 2, ["b/c", "a"])
    assert one.read_bytes() == other.read_bytes()
    assert assemble.differences(one.parent, other.parent) == []
    with tarfile.open(one) as archive:
        found = [(each.name, each.mode, each.mtime, each.uid) for each in archive]
        data = [archive.extractfile(name).read() for name in archive.getnames()]  # type: ignore
    assert found == [("a", 0o644, 1_700_000_000, 0), ("b/c", 0o644, 1_700_000_000, 0)]
    assert data == [b"a", b"b/c"]


def test_a_different_or_missing_archive_is_named(tmp_path: Path) -> None:
    for folder, files in {"one": {"a.whl": "1", "b.whl": "1"}, "other": {"a.whl": "2"}}.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    assert assemble.differences(tmp_path / "one", tmp_path / "other") == ["a.whl", "b.whl"]


def test_only_known_versions_and_machines_are_built() -> None:
    with pytest.raises(SystemExit, match=r"3\.1 m68k: must be among 3\.11"):
        build.main(["3.1", "3.13", "m68k"])


def test_packages_that_build_are_pinned() -> None:
    pinned = dict(
        line.split("==") for line in build.CONSTRAINTS.read_text().splitlines() if "==" in line
    )
    wanted = {re.split("[><=]", each)[0] for each in PROJECT["build-system"]["requires"]}
    assert pinned.keys() == wanted


# --- checksums, release notes -------------------------------------------------------------------


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz", "NOTES.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(assemble.checksums(tmp_path))
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["NOTES.md: OK", "a.tar.gz: OK", "b.whl: OK"]


def test_notes_are_the_section_of_the_version() -> None:
    text = "# Changelog\n\n## 1.10.0 (unreleased)\n\nnew\n\n## 1.1.0 (2026-01-01)\n\n[a](b.md#c)\n"
    assert assemble.notes(text, "1.10.0", "") == "new\n"
    assert assemble.notes(text, "1.1.0", "https://x/") == "[a](https://x/b.md#c)\n"


def test_this_version_has_notes() -> None:
    found = assemble.notes((ROOT / "CHANGELOG.md").read_text(), nsqcy.__version__, "")
    assert found.startswith("### Upgrading")


# --- SBOM ---------------------------------------------------------------------------------------


def distribution(folder: Path, name: str, number: str, *lines: str, **files: str) -> None:
    """Create a package as pip installs it; `files` are in its metadata directory or modules."""
    info = folder / f"{name}-{number}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("\n".join([f"Name: {name}", f"Version: {number}", *lines]))
    for path, text in files.items():
        (info / path).parent.mkdir(exist_ok=True)
        (info / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{info.name}/{path},,\n" for path in files))


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "nsqcy-1-cp312-cp312-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "nsqcy-1.dist-info/METADATA",
            "Requires-Dist: Fast.Loop>=1\nRequires-Dist: crypto\n"
            'Requires-Dist: pytest; extra == "test"\n',
        )
    return path


def described(wheel: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    # imported late: it takes two seconds
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    monkeypatch.setattr(sbom, "version", "{}-version".format)  # the tools need not be installed
    own = [*sbom._linked("3.12"), *sbom._tools(build.THIS)]
    text = sbom.JsonV1Dot6(sbom.describe(wheel, own, folder)).output_as_string()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


def test_an_sbom_names_dependencies_and_what_they_contain(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    inner = {"components": [{"name": "tls", "version": "4.0", "purl": "pkg:generic/tls@4.0?x=y"}]}
    monkeypatch.setitem(sbom.LIBRARIES, "fast-loop", ("libloop",))
    distribution(
        site,
        "fast_loop",
        "2.0",
        "License-Expression: MIT",
        "Requires-Dist: crypto",
        'Requires-Dist: absent; extra == "docs"',
        **{"core.so": ""},
    )
    distribution(
        site, "crypto", "3.0", **{"sboms/bom.json": json.dumps(inner), "crypto.abi3.so": ""}
    )
    found = described(wheel, site, monkeypatch)
    root = found["metadata"]["component"]
    assert root["hashes"] == [{"alg": "SHA-256", "content": build.digest(wheel)}]
    components = {each["name"]: each for each in found["components"]}
    assert components["fast-loop"]["purl"] == "pkg:pypi/fast-loop@2.0"
    assert components["fast-loop"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert [each["name"] for each in components["fast-loop"]["components"]] == ["libloop"]
    assert [each["purl"] for each in components["crypto"]["components"]] == ["pkg:generic/tls@4.0"]
    needed = {each["ref"]: each.get("dependsOn", []) for each in found["dependencies"]}
    assert {"pkg:pypi/crypto@3.0", "pkg:pypi/fast-loop@2.0"} <= {*needed[root["bom-ref"]]}
    assert needed["pkg:pypi/fast-loop@2.0"] == ["pkg:pypi/crypto@3.0"]


def test_an_sbom_names_what_is_linked_in_and_what_built_it(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "fast_loop", "2.0")
    distribution(tmp_path, "crypto", "3.0")
    found = described(wheel, tmp_path, monkeypatch)
    components = {each["name"]: each for each in found["components"]}
    assert components["CPython"]["version"] == "3.12"
    assert components["glibc"]["version"] == build.GLIBC
    assert components["Cython"]["version"] == "Cython-version"
    excluded = {name for name, each in components.items() if each.get("scope") == "excluded"}
    assert excluded == {"auditwheel", "gcc", "patchelf", "setuptools"}


def test_an_sbom_of_the_same_archive_is_the_same(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "fast_loop", "2.0")
    distribution(tmp_path, "crypto", "3.0")
    one, other = (described(wheel, tmp_path, monkeypatch) for _ in range(2))
    for each in (one, other):
        del each["metadata"]["timestamp"]  # `write` sets the time of the commit
    assert one == other


def test_the_sbom_of_an_sdist_is_of_the_newest_python_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(wanted: list[Requirement], python: str, machine: str, folder: str) -> None:
        assert ([each.name for each in wanted], python) == (["crypto"], "3.12")
        distribution(Path(folder), "crypto", "3.0")

    here = {"3.11": Path("python3.11"), "3.12": Path("python3.12")}
    monkeypatch.setattr(pythons, "find", here.get)
    monkeypatch.setattr(sbom, "_install", install)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    path = tmp_path / "nsqcy-1.tar.gz"
    metadata = b"Requires-Dist: crypto\n"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("nsqcy-1/PKG-INFO")
        info.size = len(metadata)
        archive.addfile(info, io.BytesIO(metadata))
    sbom.write(path)
    found = json.loads((tmp_path / "nsqcy-1.tar.gz.cdx.json").read_text())
    components = {each["name"]: each["version"] for each in found["components"]}
    assert components == {"crypto": "3.0", "CPython": "3.12"}


@pytest.mark.parametrize(
    ("lines", "licences"),
    [
        (
            ["License-Expression: 0BSD", "Classifier: License :: OSI Approved :: BSD License"],
            ["0BSD"],
        ),
        (["License: MIT"], ["MIT"]),
        (["Classifier: License :: OSI Approved :: BSD License"], ["BSD License"]),
        ([], []),
    ],
)
def test_licences_of_newer_and_older_packages(
    tmp_path: Path, lines: list[str], licences: list[str]
) -> None:
    distribution(tmp_path, "crypto", "3.0", *lines)
    (package,) = sbom.distributions(path=[str(tmp_path)])
    assert sbom._licences(package) == licences


def test_compiled_modules_with_unknown_content_are_refused(wheel: Path, tmp_path: Path) -> None:
    distribution(tmp_path, "crypto", "3.0", **{"core.so": ""})
    with pytest.raises(SystemExit, match="crypto: list the libraries"):
        sbom.describe(wheel, [], tmp_path)


# --- workflows, repository ----------------------------------------------------------------------


@pytest.fixture(params=WORKFLOWS.values(), ids=WORKFLOWS)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return found


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    used = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert used and [line for line in used if not PINNED.match(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_workflows_use_no_untrusted_text(path: Path) -> None:
    used = set(re.findall(r"\$\{\{ *(.*?) *\}\}", path.read_text()))
    assert used <= {"github.repository", "github.token"}


def test_workflows_have_least_permissions(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] in ({}, {"contents": "read"})


def test_jobs_with_permissions_run_no_code_of_the_repository(workflow: dict[str, Any]) -> None:
    for name, job in workflow["jobs"].items():
        actions = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
        if "actions/checkout" in actions:
            assert job.get("permissions", {"contents": "read"}) == {"contents": "read"}, name
            checkout = job["steps"][actions.index("actions/checkout")]
            assert checkout["with"]["persist-credentials"] is False


def test_a_release_is_attested_before_it_is_published() -> None:
    jobs = yaml.safe_load(WORKFLOWS["release.yml"].read_text())["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None,
        "attest": "build",
        "pypi": "attest",
        "github": "pypi",
    }
    (attest,) = (each for each in jobs["attest"]["steps"] if "attest" in each["uses"])
    assert attest["with"] == {"subject-checksums": f"dist/{assemble.CHECKSUMS.name}"}
    assert jobs["pypi"]["environment"] == "pypi"
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
    assert "make release" in [step.get("run") for step in jobs["build"]["steps"]]


def test_no_binary_file_is_tracked() -> None:
    command = ["git", "ls-files", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git repository")
    names = [name for name in done.stdout.split("\0") if name and not name.startswith(BINARY)]
    assert [
        name for name in names if (ROOT / name).exists() and b"\0" in (ROOT / name).read_bytes()
    ] == []
