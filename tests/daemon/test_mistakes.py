"""Typical mistakes: each results in one line that describes the problem and the remedy.

Every test runs the real program and compares the complete line that the user sees.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.ports import Ports
from support.logged_process import Logged
from support.nsqadmin_process import Admin, refused
from support.nsqd_process import START_BUDGET, Nsqd, environment, free_port
from support.nsqlookupd_process import Lookupd

pytestmark = pytest.mark.ours

# The prefix of each line: the date, and in a FATAL line the level and name.
LOG_PREFIX = re.compile(
    r"^(\[\w+\] )?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d+ (INFO|FATAL): | )", re.MULTILINE
)
MODULES = {name: f"nsqcy.{name}.main" for name in ("nsqd", "nsqlookupd", "nsqadmin")}


def module(program: str) -> str:
    return MODULES.get(program, f"nsqcy.tools.{program}")


class Running(Logged):
    """A program that starts despite a mistake."""

    def __init__(self, line: str, home: Path) -> None:
        super().__init__()
        name, *flags = line.split(" ")
        words = [sys.executable, "-m", module(name), *flags]
        self._spawn(words, cwd=home, env=environment())

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def await_text(self, text: str) -> None:
        deadline = time.monotonic() + START_BUDGET
        while text not in self.log_text():
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.01)

    def warnings(self) -> list[str]:
        """Return the warnings so far, without the prefix."""
        lines = self.log_text().splitlines()
        return [line.partition(" WARNING: ")[2] for line in lines if " WARNING: " in line]


def run(line: str, home: Path) -> tuple[int, str]:
    """Run a command line to its end; return the exit code and stderr without dates."""
    name, *flags = line.split(" ")
    result = subprocess.run(
        [sys.executable, "-m", module(name), *flags],
        cwd=home,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.stdout == ""
    return result.returncode, LOG_PREFIX.sub("", result.stderr)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "nsqd --lookupd-tcp-adress=127.0.0.1:4160",
            "flag provided but not defined: -lookupd-tcp-adress;"
            " did you mean --lookupd-tcp-address?",
        ),
        (
            "nsqlookupd --inactive-producer-timeout=300",
            'invalid value "300" for flag -inactive-producer-timeout: missing unit;'
            " did you mean 300s?",
        ),
        (
            "nsqadmin --lookupd-tcp-address=127.0.0.1:4160",
            "flag provided but not defined: -lookupd-tcp-address;"
            " did you mean --lookupd-http-address?",
        ),
        (
            "nsq_tail --topics=orders",
            "flag provided but not defined: -topics; did you mean --topic?",
        ),
        (
            "nsq_to_file --consumer-opt=max_inflight,5",
            'invalid value "max_inflight,5" for flag -consumer-opt: invalid option max_inflight;'
            " did you mean max_in_flight?",
        ),
    ],
)
def test_a_mistyped_command_line(line: str, text: str, tmp_path: Path) -> None:
    assert run(line, tmp_path) == (2, f"{text}\n")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "nsqd --tcp-address=http://127.0.0.1:4150",
            "failed to instantiate nsqd - listen (http://127.0.0.1:4150) failed - listen unix"
            " http://127.0.0.1:4150: bind: no such file or directory; did you mean 127.0.0.1:4150?",
        ),
        (
            "nsqlookupd --tcp-address=4160",
            "failed to instantiate nsqlookupd - listen (4160) failed - listen tcp: address 4160:"
            " missing port in address; did you mean :4160?",
        ),
        (
            "nsqadmin --nsqd-http-address=127.0.0.1:4151 --http-address=0.0.0.0",
            "failed to instantiate nsqadmin - listen (0.0.0.0) failed - listen tcp: address"
            " 0.0.0.0: missing port in address; write HOST:PORT",
        ),
        (
            "nsqadmin --lookupd-http-address=127.0.0.1",
            "failed to instantiate nsqadmin - failed to resolve --lookupd-http-address (127.0.0.1)"
            " - address 127.0.0.1: missing port in address; did you mean 127.0.0.1:4161?",
        ),
    ],
)
def test_an_address_of_the_wrong_form(line: str, text: str, tmp_path: Path) -> None:
    code, err = run(line, tmp_path)
    assert (code, err.splitlines()[-1]) == (1, text)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "nsqd --data-path=/no/such/dir",
            "failed to lock data-path: open /no/such/dir: no such file or directory;"
            " create the directory, or change --data-path",
        ),
        (
            "nsqd --data-path=/dev/null",
            "failed to lock data-path: open /dev/null: not a directory;"
            " --data-path must be a directory",
        ),
        (
            "nsqd --tcp-address=192.0.2.1:4150",
            "listen (192.0.2.1:4150) failed - listen tcp 192.0.2.1:4150: bind: cannot assign"
            " requested address; no network interface of this machine has the address",
        ),
    ],
)
def test_a_place_that_cannot_be_used(line: str, text: str, tmp_path: Path) -> None:
    code, err = run(line, tmp_path)
    assert (code, err.splitlines()[-1]) == (1, f"failed to instantiate nsqd - {text}")


def test_a_tool_with_an_address_without_a_port(tmp_path: Path) -> None:
    code, err = run("nsq_tail --topic=t --lookupd-http-address=4161", tmp_path)
    assert (code, err.splitlines()[-1]) == (1, "address '4161' has no port: write HOST:PORT")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, err = run(f"nsqd --tcp-address={address}", tmp_path)
    assert (code, err.splitlines()[-1]) == (
        1,
        f"failed to instantiate nsqd - listen ({address}) failed - listen tcp {address}: bind:"
        " address already in use; stop the process that uses it, or change --tcp-address",
    )


LOCAL = "nsqd --tcp-address=127.0.0.1:0 --http-address=127.0.0.1:0"


def test_a_port_for_copies_in_use(tmp_path: Path) -> None:
    """Worker 1 listens on the port after the configured one."""
    port = free_port()
    address = f"127.0.0.1:{port + 1}"
    with socket.create_server(("127.0.0.1", port + 1)):
        code, err = run(
            f"{LOCAL} --workers=2 --etcd-endpoints=127.0.0.1:1 --copies-address=127.0.0.1:{port}",
            tmp_path,
        )
    assert code == 1
    assert (
        f"worker 1: cannot boot: failed to instantiate nsqd - listen ({address}) failed -"
        f" listen tcp {address}: bind: address already in use; stop the process that uses it, or"
        " change --copies-address"
    ) in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            f"{LOCAL} --verbose false",
            '"false" is ignored: boolean flag --verbose takes no separate value;'
            " write --verbose=false",
        ),
        (
            f"{LOCAL} --workers 1 2",
            '"2" is ignored: it is neither a flag nor the value of one',
        ),
        (
            f"{LOCAL} start --workers=1",
            '"start" and all words after it are ignored: flags must precede all other words',
        ),
        (
            f"{LOCAL} --http-address=4151",
            "--http-address 4151 is the path of a unix socket; did you mean :4151?",
        ),
        (
            f"{LOCAL} --broadcast-address=10.0.0.1:4150",
            "--broadcast-address 10.0.0.1:4150 contains a port: set only the host, and set the"
            " ports with --broadcast-tcp-port and --broadcast-http-port",
        ),
        (
            f"{LOCAL} --broadcast-address=0.0.0.0",
            "--broadcast-address 0.0.0.0 is not an address to which clients can connect:"
            " set it to this machine's name or address",
        ),
        (
            f"{LOCAL} --statsd-address=127.0.0.1",
            "--statsd-address 127.0.0.1 has no port; did you mean 127.0.0.1:8125?",
        ),
    ],
)
def test_a_suspicious_value(line: str, text: str, tmp_path: Path) -> None:
    with Running(line, tmp_path) as nsqd:
        nsqd.await_text("WARNING")
        nsqd.await_text("TCP: listening on")
        assert text in nsqd.warnings()


# --- an HTTP port where a TCP port is meant, and vice versa -----------------------------------


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Lookupd]:
    with Lookupd() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def one_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(tmp_path_factory.mktemp("nsqd"), workers=1).start()
    yield daemon
    daemon.destroy()


def assert_reported_once(address: str, text: str, home: Path) -> None:
    line = f"{LOCAL} --log-level=debug --lookupd-tcp-address={address}"
    text = f"LOOKUPD({address}): IDENTIFY - {text}"
    with Running(line, home) as nsqd:
        nsqd.await_text(f" ERROR: {text}\n")
        nsqd.await_text(f" DEBUG: {text}\n")  # a later attempt
        assert nsqd.log_text().count(f" ERROR: {text}\n") == 1


def test_nsqd_with_the_http_port_of_nsqlookupd(lookupd: Lookupd, tmp_path: Path) -> None:
    text = "the address answers HTTP: use nsqlookupd's TCP port (4160 by default)"
    assert_reported_once(lookupd.http_address, text, tmp_path)


def test_nsqd_with_the_address_of_an_nsqd(one_nsqd: Nsqd, tmp_path: Path) -> None:
    text = "the address belongs to an nsqd: use nsqlookupd's TCP port (4160 by default)"
    assert_reported_once(one_nsqd.addresses["TCP"], text, tmp_path)


def test_nsqd_with_a_url_of_nsqlookupd(tmp_path: Path) -> None:
    with Running(f"{LOCAL} --lookupd-tcp-address=http://127.0.0.1:4160", tmp_path) as nsqd:
        nsqd.await_text(
            " ERROR: LOOKUPD(http://127.0.0.1:4160): connecting - too many colons in address;"
            " did you mean 127.0.0.1:4160?\n"
        )


def test_nsqadmin_with_the_tcp_port_of_nsqlookupd(lookupd: Lookupd) -> None:
    address = lookupd.addresses["TCP"]
    with Admin(lookupd_http_address=address) as admin:
        text = (
            f"failed to query any nsqlookupd: {address}: this is nsqlookupd's TCP port:"
            " use its HTTP port (4161 by default)"
        )
        refused(admin.web.get("/api/nodes"), 502, f"UPSTREAM_ERROR: {text}")


def test_nsq_tail_with_the_tcp_port_of_nsqlookupd(lookupd: Lookupd, tmp_path: Path) -> None:
    address = lookupd.addresses["TCP"]
    with Running(f"nsq_tail --topic=t --lookupd-http-address={address}", tmp_path) as tail:
        tail.await_text(
            f"lookupd: {address}: this is nsqlookupd's TCP port: use its HTTP port (4161 by "
            "default)\n"
        )


def test_nsq_stat_with_the_tcp_port_of_nsqd(one_nsqd: Nsqd, tmp_path: Path) -> None:
    address = one_nsqd.addresses["TCP"]
    line = f"nsq_stat --topic=t --channel=c --nsqd-http-address={address}"
    assert run(line, tmp_path) == (
        1,
        f"ERROR: failed to get topic producers - {address}: this is nsqd's TCP port:"
        " use its HTTP port (4151 by default)\n",
    )


def test_nsq_tail_with_the_http_port_of_nsqd(one_nsqd: Nsqd, tmp_path: Path) -> None:
    address = one_nsqd.addresses["HTTP"]
    code, err = run(f"nsq_tail --topic=t --nsqd-tcp-address={address}", tmp_path)
    assert (code, err.splitlines()[-1]) == (
        1,
        f"failed to connect to nsqd - unexpected HTTP response from {address},"
        " a nsqd TCP endpoint is required: use nsqd's TCP port (4150 by default)",
    )


# --- certificates and keys --------------------------------------------------------------------

SERVER, STRANGER, LATE = make("server"), make("stranger"), make("late", expired=True)


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        (
            SERVER.certificate,
            STRANGER.key,
            "the key in a.key does not belong to the certificate in a.pem",
        ),
        (None, SERVER.key, "open a.pem: no such file or directory"),
        (
            "rubbish",
            SERVER.key,
            "a.pem is not in PEM format (allowed: a certificate in PEM format)",
        ),
        (
            SERVER.key,
            SERVER.certificate,
            "a.pem contains a private key instead of a certificate"
            " (allowed: a certificate in PEM format)",
        ),
        (
            SERVER.certificate,
            "",
            "a.key is empty (allowed: a private key in PEM format, without a passphrase)",
        ),
    ],
)
def test_unusable_certificates(
    certificate: str | None, key: str, text: str, tmp_path: Path
) -> None:
    if certificate is not None:
        (tmp_path / "a.pem").write_text(certificate)
    (tmp_path / "a.key").write_text(key)
    line = f"{LOCAL} --https-address=127.0.0.1:0 --tls-cert=a.pem --tls-key=a.key"
    code, err = run(line, tmp_path)
    assert (code, err.splitlines()[-1]) == (
        1,
        f"failed to instantiate nsqd - failed to build TLS config - {text}",
    )
    code, err = run(
        "nsqadmin --lookupd-http-address=127.0.0.1:4161"
        " --http-client-tls-cert=a.pem --http-client-tls-key=a.key",
        tmp_path,
    )
    assert (code, err.splitlines()[-1]) == (
        1,
        f"failed to instantiate nsqadmin - failed to LoadX509KeyPair a.pem, a.key - {text}",
    )


def test_an_expired_certificate(tmp_path: Path) -> None:
    LATE.save(tmp_path)
    line = f"{LOCAL} --https-address=127.0.0.1:0 --tls-cert=late.pem --tls-key=late.key"
    with Running(line, tmp_path) as nsqd:
        nsqd.await_text(" WARNING: late.pem: the certificate of CN=late expired on ")
        nsqd.await_text("TCP: listening on")


# --- configuration files ----------------------------------------------------------------------


def test_all_errors_of_an_ini_file(tmp_path: Path) -> None:
    (tmp_path / "nsqd.ini").write_text(
        "[nsqd]\n"
        "tcp_adress = 127.0.0.1:4150\n"
        "msg_timeout = 60\n"
        "id = 5000\n"
        "durability: os\n"
        "[topic orders]\n"
        "max_attempts = 5\n"
    )
    start = "failed to load config file nsqd.ini - line"
    assert run("nsqd --config=nsqd.ini", tmp_path) == (
        1,
        f'{start} 2: unknown key "tcp_adress"; did you mean tcp_address?\n'
        f'{start} 3: msg_timeout: invalid value "60": missing unit (allowed: a number with a unit,'
        " such as 250ms, 1.5h30m or 0; units are ns, us, ms, s, m, h)\n"
        f'{start} 4: node_id: invalid value "5000" (allowed: [0,1024))\n'
        f"{start} 5: not a setting: durability: os (allowed: key = value, or # and a comment)\n"
        f'{start} 7: unknown key "max_attempts": it belongs in a section [channel …]\n',
    )


# --- a full disk ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system requires root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    nsqd = Nsqd(small_disk, workers=1, mem_queue_size=0).start()
    try:
        filler = small_disk / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(b"x" * (1 << 20))
        for _ in range(3):
            assert nsqd.web.post("/pub", b"x", topic="orders").status == 503
        line = (
            f" ERROR: TOPIC(orders): cannot write {small_disk}/orders.topic/{1:020}.seg:"
            " no space left on device: free disk space or enlarge the file system;"
            " publishes to orders that must be written are refused until a write succeeds\n"
        )
        eventually(lambda: nsqd.log_text().count(line) == 1)
        filler.unlink()
        nsqd.web.pub("orders", b"x")
        text = " INFO: TOPIC(orders): writes succeed again; publishes to orders are accepted\n"
        eventually(lambda: text in nsqd.log_text())
        assert nsqd.log_text().count(line) == 1
        nsqd.stop()
    finally:
        nsqd.destroy()


# --- nsqadmin without its nsqlookupd ----------------------------------------------------------


def test_nsqadmin_whose_nsqlookupd_is_down() -> None:
    lookupd = Lookupd().start()
    address = lookupd.http_address
    failed = f" ERROR: failed to query any nsqlookupd: {address}: Connection refused\n"
    try:
        with Admin(lookupd_http_address=address) as admin:
            assert b' data-live="current"' in admin.web.get("/topics").body
            lookupd.kill()
            for _ in range(3):
                assert admin.web.get("/api/topics").status == 502
                page = admin.web.get("/topics")
                assert page.status == 502
                assert b' data-live="outdated"' in page.body
            lookupd.start()
            admin.get("/api/topics")
            eventually(lambda: f" INFO: {address} answers again\n" in admin.log_text())
            assert admin.log_text().count(failed) == 1
            assert b' data-live="current"' in admin.web.get("/topics").body
            lookupd.kill()
            assert admin.web.get("/api/topics").status == 502
            eventually(lambda: admin.log_text().count(failed) == 2)
    finally:
        lookupd.destroy()


def test_nsqadmin_reports_an_outage_that_no_page_has_met() -> None:
    lookupd = Lookupd().start()
    address = lookupd.http_address
    try:
        with Admin(lookupd_http_address=address, history_interval="1s") as admin:
            lookupd.kill()
            text = f" ERROR: failed to query any nsqlookupd: {address}: Connection refused\n"
            eventually(lambda: text in admin.log_text())
            lookupd.start()
            eventually(lambda: f" INFO: {address} answers again\n" in admin.log_text())
            assert admin.log_text().count(text) == 1
    finally:
        lookupd.destroy()


# --- pollers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_pollers_do_not_fill_the_log(kind: str, one_nsqd: Nsqd, tmp_path: Path) -> None:
    http = "--http-address=127.0.0.1:0"
    line = {
        "nsqd": f"nsqd --tcp-address=127.0.0.1:0 --workers=1 {http}",
        "nsqlookupd": f"nsqlookupd --tcp-address=127.0.0.1:0 {http}",
        "nsqadmin": f"nsqadmin --nsqd-http-address={one_nsqd.addresses['HTTP']} {http}",
    }[kind]
    with Running(f"{line} --log-level=debug", tmp_path) as daemon:
        daemon.await_text("HTTP: listening on")
        web = Web(int(daemon.addresses["HTTP"].rpartition(":")[2]))
        for _ in range(3):
            assert web.get("/ping").status == 200
        assert web.get("/no-such-path").status == 404
        daemon.await_text(" INFO: 404 GET /no-such-path (")
        assert daemon.log_text().count(" INFO: 200 GET /ping (") == 1
        assert daemon.log_text().count(" DEBUG: 200 GET /ping (") == 2


def test_a_mistyped_key_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "users.ini").write_text("[user alice]\ntokn = sha256:00\n")
    code, err = run(f"{LOCAL} --auth-file=users.ini", tmp_path)
    start = "failed to load config file users.ini - line 2: "
    assert (code, err.splitlines()[-1].partition(" (allowed:")[0]) == (
        1,
        f'{start}unknown key "tokn"; did you mean token?',
    )


# Standard streams, and /proc


@pytest.mark.parametrize(
    "words",
    [
        "nsqcy --help",
        "nsqcy version",
        "nsqcy completion bash",
        "nsqcy doctor --checks",
        "nsqcy copies --help",
        "nsqcy passwd --help",
        "nsqcy data --help",
        "nsqcy data check --help",
        "nsqcy.pipeline --help",
    ],
)
def test_output_to_a_full_disk(words: str) -> None:
    name, *rest = words.split(" ")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", name, *rest],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            timeout=60,
        )
    program = name.replace(".", "-")
    assert (done.returncode, done.stderr) == (
        1,
        f"{program}: cannot write the output: no space left on device\n",
    )


@pytest.mark.parametrize("name", ["nsqd", "nsqlookupd", "nsqadmin", "nsq_tail", "to_nsq"])
@pytest.mark.parametrize(("word", "stream"), [("--version", "stdout"), ("--help", "stderr")])
def test_help_and_version_to_a_full_disk(name: str, word: str, stream: str) -> None:
    """Like NSQ's programs, nsqcy's programs print the help on stderr."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with open("/dev/full", "wb") as full:
        line = [sys.executable, "-m", module(name), word]
        done = subprocess.run(
            line, **streams | {stream: full}, env=environment(), text=True, timeout=60
        )
    said = f"{name}: cannot write the output: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, said if stream == "stdout" else None)


DAEMONS = {
    "nsqd": "--tcp-address=127.0.0.1:0",
    "nsqlookupd": "--tcp-address=127.0.0.1:0",
    "nsqadmin": "--nsqd-http-address=127.0.0.1:1",
}


@contextlib.contextmanager
def started(name: str, home: Path, prefix: list[str]) -> Iterator[Web]:
    """Run a daemon behind a command until the end of the block, and stop it."""
    with Ports() as ports:
        web = Web(ports.take())
        words = [sys.executable, "-m", module(name), DAEMONS[name]]
        words.append(f"--http-address=127.0.0.1:{web.port}")
        process = subprocess.Popen([*prefix, *words], cwd=home, env=environment())

        def answers() -> bool:
            assert process.poll() is None
            with contextlib.suppress(OSError):
                return web.get("/ping").status == 200
            return False

        try:
            eventually(answers)
            yield web
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("name", DAEMONS)
def test_without_standard_streams(name: str, tmp_path: Path) -> None:
    """Otherwise, a file opened in place of standard error would receive the log."""
    with started(name, tmp_path, ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]):
        pass


@pytest.mark.parametrize("name", DAEMONS)
def test_without_proc(name: str, tmp_path: Path) -> None:
    hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    with started(name, tmp_path, hide) as web:
        paths = ["/stats", "/metrics", "/debug/pprof/heap"] if name == "nsqd" else ["/metrics"]
        assert [web.get(path).status for path in paths] == [200] * len(paths)
