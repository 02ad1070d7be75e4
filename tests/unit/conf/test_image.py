"""The Dockerfile: the files that it copies exist, and it refers to existing commands and
options."""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from nsqcy.nsqadmin.api import service as nsqadmin
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqd.http import api as nsqd
from nsqcy.nsqd.master.worker_lifecycle import KILL_LIMIT, STOP_LIMIT
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd import api as nsqlookupd
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from support.kubernetes_manifests import ROOT, WORKLOADS

Instruction = tuple[str, str]


def instructions(text: str) -> list[Instruction]:
    """Return each instruction as a keyword and its arguments, without comments or line
    continuations."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(word, rest.strip()) for word, _, rest in found]


STEPS = instructions((ROOT / "Dockerfile").read_text())
STARTS = [number for number, (word, _) in enumerate(STEPS) if word == "FROM"]
BUILD, FINAL = STEPS[STARTS[0] : STARTS[1]], STEPS[STARTS[1] :]


def only(word: str) -> str:
    """Return the argument of the only instruction with this keyword in the last stage."""
    (found,) = [rest for each, rest in FINAL if each == word]
    return found


def is_ignored(path: str) -> bool:
    """Return whether the last line in .dockerignore that matches the path excludes it."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        whole = fnmatch(path, pattern) or path.startswith(f"{pattern}/")
        if line and line[0] != "#" and (whole or fnmatch(Path(path).name, pattern)):
            ignored = not line.startswith("!")
    return ignored


def test_what_is_copied_is_there_and_nothing_that_was_built() -> None:
    sources = [each for word, rest in BUILD if word == "COPY" for each in rest.split()[:-1]]
    assert {"cext", "nsqcy", "pyproject.toml"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source
    assert is_ignored("nsqcy/_topic.cpython-311-x86_64-linux-gnu.so")
    assert is_ignored("tests") and is_ignored(".git") and is_ignored("data")


def test_all_that_a_wheel_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {each for word, rest in BUILD if word == "COPY" for each in rest.split()[:-1]}
    tables = project["tool"]["setuptools"]
    packages = {each.partition(".")[0] for each in tables["packages"]["find"]["include"]}
    data = {each.partition("/")[0] for files in tables["data-files"].values() for each in files}
    assert packages | data | {project["project"]["readme"]} <= copied


def test_no_compiler_is_where_it_runs() -> None:
    assert "gcc" in str(BUILD)
    assert not re.search(r"gcc|g\+\+|make|build-essential|-dev\b", str(FINAL))


def test_it_does_not_run_as_root() -> None:
    user = only("USER")
    for workload in WORKLOADS.values():
        context = workload.pod["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    words = [word for word, _ in FINAL]
    assert "RUN" not in words[words.index("USER") :]


def test_data_is_in_the_volume() -> None:
    volume = only("VOLUME")
    program, *flags = json.loads(only("CMD"))
    assert (program, flags) == ("nsqd", [f"--data-path={volume}"])
    assert f"--data-path={volume}" in WORKLOADS["nsqd"].words


def test_every_port_is_exposed() -> None:
    tables = [NSQD, NSQLOOKUPD, NSQADMIN]
    addresses = [
        str(option.default)
        for table in tables
        for option in table
        if option.name in ("tcp_address", "http_address", "https_address")
    ]
    assert only("EXPOSE").split() == [each.rpartition(":")[2] for each in addresses]


def test_health_is_asked_of_a_route_of_each() -> None:
    asked = re.findall(r"\b(\d+)(/\w+)\b", only("HEALTHCHECK"))
    routes = {"4151": nsqd.ROUTES, "4161": nsqlookupd.ROUTES, "4171": nsqadmin.ROUTES}
    assert [port for port, _ in asked] == list(routes)
    for port, path in asked:
        assert any((each.method, each.path) == ("GET", path) for each in routes[port])


def test_the_time_to_stop_that_it_names_is_enough() -> None:
    (seconds,) = re.findall(r"docker stop -t (\d+)", (ROOT / "Dockerfile").read_text())
    assert int(seconds) > STOP_LIMIT + KILL_LIMIT


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
