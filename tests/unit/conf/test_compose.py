"""compose.yaml: it follows the Compose specification, and fits the daemons, the image and
itself."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import nsqcy
from nsqcy.config import loader
from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.net import listeners
from nsqcy.nsqd.master.worker_lifecycle import KILL_LIMIT, STOP_LIMIT
from support.daemon_tables import DAEMONS
from support.kubernetes_manifests import ROOT, Object

yaml: Any = pytest.importorskip("yaml")

FILE = ROOT / "compose.yaml"
COMPOSE: Object = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Object] = COMPOSE["services"]
NSQDS = [name for name, each in SERVICES.items() if each["command"][0] == "nsqd"]

each_service = pytest.mark.parametrize("name", SERVICES)


def options_of(name: str) -> Any:
    """Return the daemon's options from its flags, without warnings."""
    daemon, *words = SERVICES[name]["command"]
    table, resolve, _ = DAEMONS[daemon]
    settings = loader.load(table, words)
    assert settings.warnings == []
    return resolve(settings)


def ports_of(name: str) -> set[str]:
    options = options_of(name)
    addresses = [getattr(options, f"{kind}_address", None) for kind in ("tcp", "http")]
    return {listeners.parse(each).port for each in addresses if each}


def test_it_follows_the_specification() -> None:
    program = Path(sys.executable).parent / "check-jsonschema"
    words = ["--builtin-schema", "vendor.compose-spec", FILE]
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def is_installed(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(
    not is_installed(["docker", "compose", "version"]), reason="docker compose is not installed"
)
def test_docker_compose_reads_it() -> None:
    words = ["docker", "compose", "--file", FILE, "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@each_service
def test_the_image_is_of_this_version_and_built_here(name: str) -> None:
    service = SERVICES[name]
    assert service["image"] == f"nsqcy:{nsqcy.__version__}"
    build = service["build"]
    assert (FILE.parent / build["context"] / "Dockerfile").exists()
    assert f"ARG PYTHON={build['args']['PYTHON']}\n" in (ROOT / "Dockerfile").read_text()


@each_service
def test_a_daemon_answers_the_health_check(name: str) -> None:
    daemon = SERVICES[name]["command"][0]
    kind, program, *_, url = SERVICES[name]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "curl")
    port, _, path = url.removeprefix("http://127.0.0.1:").partition("/")
    options = options_of(name)
    assert listeners.parse(options.http_address).port == port
    assert any((each.method, each.path) == ("GET", f"/{path}") for each in DAEMONS[daemon][2])


@each_service
def test_ports_are_published_on_the_loopback_address(name: str) -> None:
    inside = set()
    for text in SERVICES[name]["ports"]:
        host, _, port = text.split(":")
        assert host == "127.0.0.1"
        inside.add(port)
    assert inside == ports_of(name)


def test_no_port_is_published_twice() -> None:
    outside = [text.split(":")[1] for each in SERVICES.values() for text in each["ports"]]
    assert len(outside) == len(set(outside))


@each_service
def test_other_services_find_it_by_its_name(name: str) -> None:
    for word in SERVICES[name]["command"][1:]:
        flag, _, value = word.partition("=")
        if flag == "--broadcast-address":
            assert value == name
        elif flag.startswith("--lookupd-"):
            host, _, port = value.partition(":")
            assert port in ports_of(host)
            assert SERVICES[name]["depends_on"] == {host: {"condition": "service_healthy"}}


@pytest.mark.parametrize("name", NSQDS)
def test_an_nsqd_keeps_its_messages(name: str) -> None:
    assert SERVICES[name]["volumes"] == [f"{name}:{options_of(name).data_path}"]
    assert name in COMPOSE["volumes"]
    grace = parse_duration(SERVICES[name]["stop_grace_period"]) / SECOND
    assert grace > STOP_LIMIT + KILL_LIMIT


def test_nsqds_have_different_ids() -> None:
    assert len(NSQDS) == 2
    assert len({options_of(name).node_id for name in NSQDS}) == len(NSQDS)
