"""nsqadmin's flags, files, signals and final errors."""

import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support.nsqadmin_process import Admin
from support.nsqd_process import environment

LOOKUPD = "--lookupd-http-address=127.0.0.1:1"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*Admin.command(), *args],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )


def last_words(*args: str) -> str:
    """Return the error with which nsqadmin refuses to start."""
    result = run(*args)
    assert (result.returncode, result.stdout) == (1, "")
    line = result.stderr.splitlines()[-1]
    before, _, text = line.partition(" FATAL: failed to instantiate nsqadmin - ")
    assert before.startswith("[nsqadmin] ")
    return text


@pytest.mark.real_start
@pytest.mark.case("ADM-001")
def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(r"nsqadmin v1\.3\.0 \(built w/[a-z0-9.-]+\)\n", result.stdout)


@pytest.mark.case("ADM-002")
def test_somebody_must_be_asked() -> None:
    assert last_words() == "--nsqd-http-address or --lookupd-http-address required"


@pytest.mark.case("ADM-003")
def test_one_kind_of_daemon_is_asked() -> None:
    text = "use --nsqd-http-address or --lookupd-http-address not both"
    assert last_words(LOOKUPD, "--nsqd-http-address=127.0.0.1:2") == text


@pytest.mark.case("ADM-004")
def test_certificates_have_keys() -> None:
    text = "--http-client-tls-key must be specified with --http-client-tls-cert"
    assert last_words(LOOKUPD, "--http-client-tls-cert=x") == text
    text = "--http-client-tls-cert must be specified with --http-client-tls-key"
    assert last_words(LOOKUPD, "--http-client-tls-key=x") == text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    text = last_words(LOOKUPD, "--http-client-tls-cert=/x", "--http-client-tls-key=/y")
    assert text == "failed to LoadX509KeyPair /x, /y - open /x: no such file or directory"
    text = last_words(LOOKUPD, "--http-client-tls-root-ca-file=/x")
    assert text == "failed to read TLS root CA file /x - No such file or directory"
    empty = tmp_path / "empty.pem"
    empty.touch()
    text = last_words(LOOKUPD, f"--http-client-tls-root-ca-file={empty}")
    allowed = "a file of CA certificates in PEM format"
    assert text == f"failed to AppendCertsFromPEM {empty} (allowed: {allowed})"


@pytest.mark.case("ADM-005")
@pytest.mark.parametrize("block", ["foo", "127.0.0.1", "127.0.0.1/33"])
def test_networks(block: str) -> None:
    text = f"failed to parse --allow-config-from-cidr ({block}) - invalid CIDR address: {block}"
    assert last_words(LOOKUPD, f"--allow-config-from-cidr={block}") == text


@pytest.mark.case("ADM-006")
@pytest.mark.parametrize("flag", ["--nsqd-http-address", "--lookupd-http-address"])
def test_addresses(flag: str) -> None:
    port = {"--nsqd-http-address": 4151, "--lookupd-http-address": 4161}[flag]
    text = f"failed to resolve {flag} (nohost) - address nohost: missing port in address"
    text += f"; did you mean nohost:{port}?"
    assert last_words(f"{flag}=nohost") == text
    text = f"failed to resolve {flag} (h:http) - lookup tcp/http: unknown port"
    assert last_words(f"{flag}=h:http") == text


def test_the_url_of_graphite() -> None:
    text = last_words(LOOKUPD, "--proxy-graphite", "--graphite-url=:nothing")
    assert text == "failed to parse --graphite-url (:nothing) - not an HTTP URL"


def test_an_address_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = last_words(LOOKUPD, f"--http-address={address}")
    reason = f"listen tcp {address}: bind: address already in use"
    reason += "; stop the process that uses it, or change --http-address"
    assert text == f"listen ({address}) failed - {reason}"


@pytest.mark.parametrize("flag", ["--use-statsd-prefix", "--log-level=warning"])
def test_command_lines_that_cannot_be_read(flag: str) -> None:
    result = run(flag)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.case("ADM-068")
def test_files_with_bad_values(tmp_path: Path) -> None:
    path = tmp_path / "nsqadmin.cfg"
    path.write_text('log_level="bogus"\nnsqlookupd_http_addresses = ["127.0.0.1:1"]\n')
    result = run(f"--config={path}")
    assert result.returncode == 1
    assert f"failed parsing log_level bogus - {path}: line 1: " in result.stderr


@pytest.mark.case("ADM-007")
@pytest.mark.parametrize(
    "text",
    [
        'nsqlookupd_http_addresses = ["127.0.0.1:1"]',
        "[nsqadmin]\nlookupd_http_address = 127.0.0.1:1",
    ],
)
def test_life(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f'{text}\nlog_level = "warn"\n')
    with Admin(args=(f"--config={path}",), log_level="info") as admin:
        path.write_text(f'{text}\nlog_level = "bogus"\n')
        admin.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the configuration stays unchanged" in admin.log_text())
        assert admin.get("/config/nsqlookupd_http_addresses") == ["127.0.0.1:1"]
        admin.stop()
        assert f"INFO: HTTP: closing {admin.http_address}\n" in admin.log_text()
        assert "INFO: nsqadmin v1.3.0 (built w/" in admin.log_text()
