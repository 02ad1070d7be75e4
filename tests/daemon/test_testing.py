"""nsqcy.testing: private daemons in scripts and with the pytest plugin."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import tomllib
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from nsqcy import testing
from nsqcy.testing import DaemonError
from nsqcy.testing.http_requests import Web, eventually
from support.nsqd_process import environment

pytestmark = pytest.mark.real_start

ROOT = Path(__file__).parents[2]


def web(daemon: testing.Daemon) -> Web:
    host, _, port = daemon.http_address.rpartition(":")
    return Web(int(port), host)


def script(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words, "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# in a script


def test_an_nsqd_and_an_nsqlookupd() -> None:
    with (
        testing.nsqlookupd(inactive_producer_timeout="1m") as lookupd,
        testing.nsqd(lookupd_tcp_address=[lookupd.tcp_address], max_rdy_count=7) as nsqd,
    ):
        assert nsqd.alive and lookupd.alive
        assert nsqd.tcp_address.startswith("127.0.0.1:") and not nsqd.tcp_address.endswith(":0")
        web(nsqd).create("t", "c")
        answer = eventually(lambda: web(lookupd).get("/lookup", topic="t").json().get("producers"))
        assert f"127.0.0.1:{answer[0]['tcp_port']}" == nsqd.tcp_address
        assert web(nsqd).get("/config/max_rdy_count").json() == 7
        assert f"TCP: listening on {nsqd.tcp_address}" in nsqd.log
        processes, home = [nsqd.process, lookupd.process], Path(nsqd.data_path).parent
        assert home.exists()
    assert [each.returncode for each in processes] == [0, 0]
    assert not home.exists() and not nsqd.alive and nsqd.log == ""


def test_a_restart_keeps_addresses_and_data() -> None:
    with testing.nsqd() as nsqd:
        addresses = nsqd.tcp_address, nsqd.http_address
        web(nsqd).create("t", "c")
        web(nsqd).pub("t", b"kept")
        nsqd.restart()
        assert addresses == (nsqd.tcp_address, nsqd.http_address)
        assert web(nsqd).counts("t", "c")["depth"] == 1
        nsqd.stop()
        assert not nsqd.alive and addresses[0] == nsqd.tcp_address
        nsqd.start()
        assert web(nsqd).counts("t", "c")["depth"] == 1
        assert nsqd.log.count("NSQ: bye") == 2


def test_killed_it_loses_what_was_in_memory() -> None:
    with testing.nsqd(workers=2) as nsqd:
        web(nsqd).create("t", "c")
        web(nsqd).pub("t", b"lost")
        family = psutil.Process(nsqd.process.pid).children()
        assert len(family) == 2
        nsqd.kill()
        nsqd.restart()
        assert all(map(ended, family))
        assert web(nsqd).counts("t", "c")["depth"] == 0
        nsqd.kill()


def test_options() -> None:
    with pytest.raises(TypeError, match="nsqd has no option 'mem_queue'; did you mean mem_queue_s"):
        testing.nsqd(mem_queue=1)
    options = {"snappy": False, "statsd_address": None, "log_format": "json", "log_level": "error"}
    with testing.nsqd(**options, http_address="") as nsqd:
        assert nsqd.log == ""
        assert nsqd.http_address == ""
        words = psutil.Process(nsqd.process.pid).cmdline()
        assert "--snappy=false" in words and not any("statsd" in word for word in words)


def test_a_start_that_fails_says_why() -> None:
    with testing.nsqd() as first:
        with (
            pytest.raises(DaemonError) as failed,
            testing.nsqd(tcp_address=first.tcp_address),
        ):
            pass
        text = str(failed.value)
        assert text.startswith(
            "nsqd exited with status 1 before it was ready; its log ends with\n[nsqd] "
        )
        assert f"listen tcp {first.tcp_address}: bind: address already in use" in text
        with pytest.raises(DaemonError, match="already running"):
            first.start()


def test_a_death_of_its_own_is_reported() -> None:
    with pytest.raises(DaemonError, match="nsqd was killed by SIGKILL"), testing.nsqd() as nsqd:
        nsqd.process.kill()
    with pytest.raises(ZeroDivisionError), testing.nsqd() as nsqd:
        nsqd.process.kill()
        raise ZeroDivisionError  # the first error is raised
    with pytest.raises(DaemonError, match="nsqd is not running"):
        print(nsqd.process)


def test_it_outlives_the_thread_that_started_it() -> None:
    nsqd = testing.nsqd()
    thread = threading.Thread(target=nsqd.start)
    thread.start()
    thread.join()
    try:
        assert web(nsqd).get("/ping").body == b"OK"
    finally:
        nsqd.close()


def test_it_does_not_outlive_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = script(
        "import os; from nsqcy.testing import nsqd; daemon = nsqd(); daemon.start()\n"
        "print(daemon.process.pid, daemon.data_path, flush=True); os.kill(os.getpid(), 9)"
    )
    pid, path = done.stdout.split()
    try:
        eventually(lambda: not psutil.pid_exists(int(pid)) or ended(psutil.Process(int(pid))))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)
    assert "nsqd.dat" in os.listdir(path)


@pytest.mark.parametrize("first", ["", "from gevent import monkey; monkey.patch_all()\n"])
def test_with_gevent_and_without(first: str) -> None:
    done = script(
        first + "from nsqcy.testing import nsqd\nimport threading, urllib.request\n"
        "def ping(daemon):\n"
        "    print(urllib.request.urlopen(f'http://{daemon.http_address}/ping').read())\n"
        "with nsqd() as daemon:\n"
        "    thread = threading.Thread(target=ping, args=[daemon]); thread.start(); thread.join()\n"
        "    daemon.restart()\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'OK'\n", "")


def test_asking_costs_no_compiled_module() -> None:
    """nsqcy.testing only starts processes, so it must load neither gevent nor a compiled module."""
    done = script(
        "import sys, nsqcy.testing\n"
        "print([name for name in sys.modules if name.startswith(('gevent', 'nsqcy._'))])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# with the pytest plugin

PAGE = """
import urllib.request

import pytest

def ask(daemon, path, data=None):
    url = f"http://{daemon.http_address}{path}"
    return urllib.request.urlopen(url, data).read()


@pytest.mark.parametrize("time", [1, 2])
def test_fresh(nsqd, time):
    assert b"Topics: None" in ask(nsqd, "/stats")
    ask(nsqd, "/pub?topic=t", b"m")
    assert b"lookupd" not in ask(nsqd, "/config/nsqlookupd_tcp_addresses")


def test_both(nsqd, nsqlookupd):
    assert nsqlookupd.tcp_address.encode() in ask(nsqd, "/config/nsqlookupd_tcp_addresses")


@pytest.fixture(scope="module")
def shared(nsqd_factory, nsqlookupd_factory):
    return nsqd_factory(lookupd_tcp_address=nsqlookupd_factory().tcp_address, max_rdy_count=7)


seen = set()


@pytest.mark.parametrize("time", [1, 2])
def test_shared(shared, time):
    assert ask(shared, "/config/max_rdy_count") == b"7"
    seen.add(shared.process.pid)
    assert len(seen) == 1


def test_red(nsqd):
    assert ask(nsqd, "/ping") == b"NOK"
"""


def test_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(PAGE)
    words = ["-m", "pytest", "-p", "nsqcy.testing.plugin", "-p", "no:cacheprovider", "test_page.py"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "= 1 failed, 5 passed in" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: assert b'OK' == b'NOK'" in done.stdout
    report = done.stdout.partition(" nsqd log ")[2]
    assert "TCP: listening on 127.0.0.1:" in report


def test_the_plugin_is_announced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    assert import_module(module).nsqd
