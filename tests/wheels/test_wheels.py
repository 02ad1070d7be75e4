"""The wheels built by `make dist`, used without this tree and without a compiler.

Each wheel is installed into a new environment of its Python. Its dependencies also come from wheels
only, and its PATH contains nothing else.
"""

import os
import re
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsqcy
from nsqcy.testing.http_requests import eventually
from release import pythons
from support import distribution_files
from support.doc_examples import blocks
from support.wheel_environment import DIST, WHEELS, Room

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

SMALL = 75  # maximum size in MB, including dependencies
# Packages of the extras, by the names to import.
OF_EXTRAS = {
    *(
        "celery",
        "click",
        "django",
        "dramatiq",
        "fast_depends",
        "faststream",
        "flask",
        "kombu",
        "matplotlib",
    ),
    *("opentelemetry", "prometheus_client", "pyarrow", "pyspark", "pytest", "requests"),
    *("starlette", "taskiq", "tqdm", "zstandard"),
}
IMPORT_ALL = """
import importlib, pkgutil
for package in ("nsqcy", "pyspark_nsq"):
    path = importlib.import_module(package).__path__
    for each in pkgutil.walk_packages(path, package + "."):
        if not each.name.endswith("__main__"):
            try:
                importlib.import_module(each.name)
                print("yes", each.name)
            except ModuleNotFoundError as error:
                print("no", each.name, error.name)
"""


@pytest.fixture(scope="module", params=WHEELS, ids=lambda path: path.name)
def room(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(request.param, tmp_path_factory.mktemp("room"))


def test_there_are_some() -> None:
    assert len(WHEELS) > 0


def test_the_sdist_is_complete() -> None:
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert distribution_files.missing_from_sdist(names) == set()
    assert distribution_files.generated(names) == set()


@pytest.mark.parametrize("wheel", sorted(DIST.glob("*.whl")), ids=lambda path: path.name)
def test_a_wheel_is_complete(wheel: Path) -> None:
    assert "-manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        built = {name: archive.read(name) for name in names if name.endswith(".so")}
    assert distribution_files.missing_from_wheel(names) == set()
    assert distribution_files.unwanted(names) == set()
    assert distribution_files.modules_of(names) == distribution_files.compiled_modules()
    paths = [str(each).encode() for each in (distribution_files.ROOT, Path.home(), pythons.PYENV)]
    assert [name for name, code in built.items() if any(path in code for path in paths)] == []


def test_nothing_here_could_compile(room: Room) -> None:
    compilers = ("cc", "gcc", "clang", "c++", "make", "cython")
    assert [name for name in compilers if shutil.which(name, path=room.environ["PATH"])] == []


def test_the_core_is_small(room: Room) -> None:
    (site,) = room.bin.parent.glob("lib/python*/site-packages")
    sizes = {
        each.name: sum(file.stat().st_size for file in (each, *each.rglob("*")) if file.is_file())
        for each in site.iterdir()
    }
    total = sum(sizes.values()) / 1e6
    largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
    print(f"\ninstalled in {room.seconds:.1f} s: {total:.0f} MB, including")
    print("\n".join(f"  {sizes[name] / 1e6:5.1f} {name}" for name in largest))
    assert total < SMALL


def test_every_module_can_be_imported(room: Room) -> None:
    lines = [line.split() for line in room.run("python", "-c", IMPORT_ALL).splitlines()]
    assert len(lines) > 100
    refused = [line for line in lines if line[0] == "no" and line[2] not in OF_EXTRAS]
    assert refused == []


@pytest.mark.parametrize("script", distribution_files.PROJECT["project"]["scripts"])
def test_commands_start(room: Room, script: str) -> None:
    if script == "nsqcy-pipeline":
        assert "archive" in room.run(script, "--help")
    elif script == "nsqcy":
        assert nsqcy.__version__ in room.run(script, "version")
    else:
        assert room.run(script, "--version").startswith(f"{script} v{nsqcy.NSQ_VERSION}")


def test_units_and_manifests_are_installed(room: Room) -> None:
    share = room.bin.parent / "share" / "nsqcy"
    assert (share / "systemd" / "nsqd.service").exists()
    assert (share / "kubernetes" / "kustomization.yaml").exists()
    assert room.run("nsqcy", "config", "check", f"{share}/kubernetes/nsqd.ini")
    chart = {path.name for path in (share / "helm" / "nsqcy").rglob("*")}
    assert {"Chart.yaml", "values.schema.json", "_helpers.tpl", "NOTES.txt"} <= chart


@pytest.fixture
def up(room: Room) -> Iterator[dict[int, int]]:
    """Run `nsqcy up`; yield the actual port for each default port in the README."""
    words = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    words += [f"--nsqlookupd-{word.removeprefix('--')}" for word in words]
    words.append("--nsqadmin-http-address=127.0.0.1:0")
    log = room.folder / "up.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [room.bin / "nsqcy", "up", *words],
            cwd=room.folder,
            env=room.environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        at = r"nsqd: +TCP on 127.0.0.1:(\d+), HTTP on 127.0.0.1:(\d+)"
        found = eventually(lambda: re.search(at, log.read_text()), timeout=60)
        room.environ["NSQCY_NSQD_HTTP_ADDRESS"] = f"127.0.0.1:{found[2]}"  # instead of 4151
        yield {4150: int(found[1]), 4151: int(found[2])}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_first_minute_of_the_readme(room: Room, up: dict[int, int]) -> None:
    typed = blocks((distribution_files.ROOT / "README.md").read_text())
    assert {block.language for block in typed} == {"sh", "python"}
    for block in typed:
        command, *words = block.command(up, "python")
        program = shutil.which(command, path=room.environ["PATH"])
        assert program
        printed = room.run(os.path.relpath(program, room.bin), *words)
        assert block.is_what(printed, up), f"{block.text}\n{printed}"
