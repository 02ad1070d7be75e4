"""Flags and the config file from the user's point of view: the CFG cases."""

import binascii
import hashlib
import re
import signal
import socket
import subprocess

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.wire_client import Conn
from support.nsqd_process import Nsqd, flags, free_port, run

Result = subprocess.CompletedProcess[str]


def refused(nsqd: Starter, *args: str, config: str | None = None) -> Result:
    """Run nsqd with a separate data path and free ports until it exits."""
    daemon = nsqd.prepare()
    if config is not None:
        file = nsqd.path / "nsqd.toml"
        file.write_text(config)
        args = (*args, f"--config={file}")
    return run(*flags(daemon.options), *args)


def configured(nsqd: Starter, text: str, *args: str, **options: object) -> Nsqd:
    """Start nsqd with this config file."""
    file = nsqd.path / "nsqd.toml"
    file.write_text(text)
    return nsqd(args=(f"--config={file}", *args), **options)


@pytest.mark.case("CFG-01", "H03", "H04", "TOOL-001")
def test_version() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/[a-z0-9.-]+\)\n", result.stdout), result


@pytest.mark.case("CFG-02")
@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_help(flag: str) -> None:
    result = run(flag)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.startswith("Usage of nsqd:\n")
    names = re.findall(r"^  -([a-z0-9-]+)", result.stderr, re.MULTILINE)
    assert {"tcp-address", "mem-queue-size", "lookupd-tcp-address"} <= set(names)
    assert names == sorted(names)


@one_worker
@pytest.mark.case("CFG-05", "CFG-08", "CFG-14", "CFG-06", "CFG-07", "CFG-12", "H01", "H02")
def test_values_and_forms(nsqd: Starter) -> None:
    daemon = nsqd(
        args=(
            "-msg-timeout",
            "1.5h30m",
            "--max-rdy-count",
            "0x10",
            "-max-output-buffer-size=1_000_000",
            "--deflate=false",
            "--deflate=true",
            "--deflate=0",
            "-snappy=f",
            "--tls-min-version=TLS1.3",
            "--worker-id",
            "--verbose",
            "--max-msg-timeout=3h",
            "--max-msg-timeout=2h",
        ),
        mem_queue_size="0x10",
    )
    answer = daemon.connect().negotiate(
        output_buffer_size=1_000_000, deflate=True, snappy=True, output_buffer_timeout=0
    )
    assert answer["msg_timeout"] == answer["max_msg_timeout"] == 7200000
    assert answer["max_rdy_count"] == 16
    assert answer["output_buffer_size"] == 1_000_000
    assert (answer["deflate"], answer["snappy"]) == (False, False)
    daemon.connect().pub("t", *[b"x"] * 18)
    daemon.web.await_counts("t", depth=18, backend_depth=2)


@one_worker
@pytest.mark.case("CFG-36", "F11")
def test_unknown_experiment(nsqd: Starter) -> None:
    daemon = nsqd(enable_experiment="bogus")
    daemon.connect().usable()
    daemon.stop()
    warnings = [line for line in daemon.log_text().splitlines() if " WARNING: " in line]
    assert any("bogus" in line and "topology-aware-consumption" in line for line in warnings)


@one_worker
@pytest.mark.case("CFG-06")
def test_values_that_start(nsqd: Starter) -> None:
    daemon = nsqd(
        args=("--queue-scan-selection-count=5", "--queue-scan-worker-pool-max=2"),
        mem_queue_size="1_000",
        enable_experiment="topology-aware-consumption",
    )
    daemon.connect().mpub("t", [b"x"] * 1001)
    daemon.web.await_counts("t", depth=1001, backend_depth=1)


@pytest.mark.case("CFG-13")
def test_log_level(nsqd: Starter) -> None:
    daemon = nsqd(
        announced=False,
        log_level="WARN",
        tcp_address=f"127.0.0.1:{free_port()}",
        http_address=f"127.0.0.1:{free_port()}",
    )
    daemon.connect().usable()
    daemon.stop()
    assert " INFO: " not in daemon.log_text()


@one_worker
@pytest.mark.case("CFG-20", "CFG-21", "CFG-22", "CFG-23", "TOOL-013")
def test_lists_are_accepted(nsqd: Starter) -> None:
    daemon = configured(
        nsqd,
        "e2e_processing_latency_percentiles = [0.5, 0.99]\n"
        'nsqlookupd_tcp_addresses = "127.0.0.1:1,127.0.0.1:2"\n',
        "--e2e-processing-latency-percentile=0.99,1.0",
        "--e2e-processing-latency-percentile=0.5",
    )
    daemon.connect().usable()
    addresses = daemon.web.get("/config/nsqlookupd_tcp_addresses").json()
    assert addresses == ["127.0.0.1:1", "127.0.0.1:2"]


@one_worker
@pytest.mark.case("CFG-24", "CFG-25", "CFG-27", "CFG-28", "CFG-29", "CFG-30", "C246")
@pytest.mark.case("TOOL-011", "TOOL-012", "TOOL-015")
def test_config_file(nsqd: Starter) -> None:
    daemon = configured(
        nsqd,
        "\n".join(
            [
                "# a comment",
                "max_rdy_count = 7",
                "msg_timeout = 1500",
                'max_msg_timeout = "2s"',
                'mem_queue_size = "77"',
                "mem-queue-size = 5",
                "unheard_of = true",
                "node_id = 6",
                'lookupd_tcp_address = "127.0.0.1:1"',
                "id = 5",
                'tls_min_version = ""',
                "snappy = false",
            ]
        ),
        "--max-rdy-count=9",
    )
    answer = daemon.connect().negotiate()
    assert (answer["max_rdy_count"], answer["msg_timeout"]) == (9, 1500)
    assert answer["max_msg_timeout"] == 2000
    producer = daemon.connect()
    producer.mpub("t", [b"x"] * 80)
    daemon.web.await_counts("t", depth=80, backend_depth=3)
    message = daemon.connect().sub("t", "c", rdy=1).message()
    assert (int(message.id, 16) >> 12) & 1023 == 5
    assert "ID: 5\n" in daemon.log_text()


@one_worker
@pytest.mark.case("CFG-28")
@pytest.mark.ours
def test_a_file_with_sections_is_ini(nsqd: Starter) -> None:
    daemon = configured(nsqd, "[nsqd]\nmax_rdy_count = 7\nmsg_timeout = 1500ms\n")
    answer = daemon.connect().negotiate()
    assert (answer["max_rdy_count"], answer["msg_timeout"]) == (7, 1500)
    daemon.stop()
    result = refused(nsqd, config="[nsqd]\nmax_rdy_count = 7\nunheard_of = 1\n")
    assert result.returncode == 1
    assert "nsqd.toml" in result.stderr and "unheard_of" in result.stderr
    assert re.search(r"\b3\b", result.stderr), result


@pytest.mark.case("C327")
@one_worker
@pytest.mark.case("CFG-33", "TOOL-010")
def test_missing_data_path(nsqd: Starter) -> None:
    result = refused(nsqd, "--data-path=/nonexistent")
    assert result.returncode == 1
    assert "failed to lock data-path: open /nonexistent" in result.stderr


@one_worker
@pytest.mark.case("CFG-37")
def test_no_http(nsqd: Starter) -> None:
    daemon = nsqd(http_address="")
    daemon.connect().usable()
    assert set(daemon.addresses) == {"TCP"}
    daemon.stop()


def default_node_id(hostname: str) -> int:
    return binascii.crc32(hashlib.md5(hostname.encode()).digest()) % 1024


@one_worker
@pytest.mark.case("CFG-38")
def test_default_node_id(shared: Nsqd, topic: str) -> None:
    assert default_node_id("vm") == 617
    node = default_node_id(socket.gethostname())
    assert f"ID: {node}\n" in shared.log_text()
    conn: Conn = shared.connect()
    conn.pub(topic, b"x")
    ident = conn.sub(topic, "c", rdy=1).message().id
    assert (int(ident, 16) >> 12) & 1023 == node


@pytest.mark.case("CFG-41", "H15", "TOOL-008")
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_clean_exit(nsqd: Starter, signal_name: str) -> None:
    daemon = nsqd()
    daemon.connect().usable()
    daemon.process.send_signal(getattr(signal, signal_name))
    assert daemon.wait() == 0
    assert daemon.log_text().rstrip().endswith("NSQ: bye")
