"""Simulated host on which tests type the commands of a runbook.

A directory serves as /, with an nsqcy as docs/runbooks/install.md installs it and the units of
conf/systemd; `tests/stand_ins` has the system's commands.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import nsqcy
from nsqcy.testing.http_requests import Web, eventually
from stand_ins import pip
from support.nsqd_process import environment, free_port
from support.sanitizer import SANITIZED

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OF_THE_HOST = re.compile(r"(?<![\w.])/(?=(?:opt|etc|var/lib)/)")
STAND_INS = ROOT / "tests/stand_ins"
FOLDERS = ["bin", "opt", "etc/nsqcy", "etc/default", "etc/systemd/system"]
FOLDERS += ["etc/sysusers.d", "etc/tmpfiles.d"]
LIMIT = 30.0  # maximum seconds for a command
STRICT = ["-euo", "pipefail", "-c"]
FAILING = ["-uo", "pipefail", "-c", 'trap \'echo "exit code $?"\' ERR; eval "$0"']


def blocks(page: str) -> list[str]:
    """Return the shell blocks of a runbook."""
    return SHELL.findall((RUNBOOKS / f"{page}.md").read_text())


class BareHost:
    """A host without nsqcy, whose nsqd will have these flags in addition to those in its
    configuration. In runbooks, ports are replaced with the host's own. `names` has the replacements
    for placeholders and for other hosts' addresses."""

    def __init__(self, path: Path, *flags: str) -> None:
        self.path = path
        self.data = path / "var/lib/nsqd"
        self.data.mkdir(parents=True)
        for folder in FOLDERS:
            (path / folder).mkdir(parents=True)
        self.tcp_port = free_port()
        self.web = Web(free_port())
        self.ports = {":4150": self.tcp_port, ":4151": self.web.port, ":4152": free_port()}
        self.names = {"TOPIC": "orders", "CHANNEL": "billing", "DATA_PATH": "/var/lib/nsqd"}
        kinds = zip(("tcp", "http", "https"), self.ports.values(), strict=True)
        here = [f"--{kind}-address=127.0.0.1:{port}" for kind, port in kinds]
        self.flags("nsqd", *here, *flags)
        self.install("systemctl", f'exec {sys.executable} {STAND_INS}/systemctl.py {path} "$@"')
        self.install("python3", f'exec {sys.executable} {STAND_INS}/python3.py "$@"')
        self.install("journalctl", f"cat {path}/nsqd.log")
        self.install("runuser", 'shift 3; exec "$@"')  # -u USER --
        if SANITIZED:  # curl hangs with a sanitizer in its process
            self.install("curl", f'exec env -u LD_PRELOAD {shutil.which("curl")} "$@"')
        for name in ("systemd-sysusers", "systemd-tmpfiles"):
            self.install(name, f'echo "{name} $*" >> {path}/called')

    def install(self, name: str, script: str) -> None:
        """Add a system command."""
        file = self.path / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def flags(self, unit: str, *flags: str) -> None:
        """Set flags of a daemon on this host, in addition to its configuration."""
        (self.path / f"{unit}.flags").write_text(shlex.join(flags))

    def type(self, text: str, *, failing: bool = False) -> str:
        """Run a command, which must succeed, and return its output. failing: commands may report
        an error as an exit code, which is added to the output."""
        for usual, ours in self.names.items():
            text = text.replace(usual, ours)
        for usual, port in self.ports.items():
            text = text.replace(usual, f":{port}")
        text = OF_THE_HOST.sub(f"{self.path}/", text)
        programs = f"{self.path}/bin:{self.path}/opt/nsqcy/bin"
        with subprocess.Popen(
            ["bash", *(FAILING if failing else STRICT), text],
            env=environment() | {"PATH": f"{programs}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as typed:
            patience = threading.Timer(LIMIT, os.killpg, (typed.pid, signal.SIGKILL))
            patience.start()
            out, err = typed.communicate()
            patience.cancel()
        assert failing or typed.returncode == 0, f"{text}\n{out}{err}"
        if re.search(r"systemctl (start|restart|enable --now) nsqd$", text, re.MULTILINE):
            eventually(self.answers)
        return out

    def called(self) -> set[str]:
        """Add commands that do nothing here."""
        return set((self.path / "called").read_text().splitlines())

    def log(self) -> str:
        """Return the logs of all runs of the host's nsqd."""
        return (self.path / "nsqd.log").read_text()

    def kill(self) -> None:
        """Kill nsqd and its workers at the same time."""
        self._kill(self.path / "nsqd.pid")

    def end(self) -> None:
        """Kill every daemon of this host, in any state."""
        for pidfile in self.path.glob("*.pid"):
            self._kill(pidfile)

    def _kill(self, pidfile: Path) -> None:
        """Handle a daemon that has ended on its own: its file remains, and its process id may be
        reused."""
        pid = int(pidfile.read_text())
        with contextlib.suppress(OSError):
            if str(self.path) in Path(f"/proc/{pid}/cmdline").read_text():
                os.killpg(pid, signal.SIGKILL)
        pidfile.unlink()

    def answers(self) -> bool:
        try:
            body = self.web.get("/ping").body
            return body == b"OK" or b"groups of copies" in body
        except OSError:
            return False


class Host(BareHost):
    """Host with nsqcy installed, with `workers` workers."""

    def __init__(self, path: Path, workers: int, *flags: str) -> None:
        super().__init__(path, *flags)
        version = f"nsqcy-{nsqcy.__version__}"
        pip.install(path / "opt" / version, nsqcy.__version__)
        (path / "opt/nsqcy").symlink_to(version)
        for unit in (ROOT / "conf/systemd").glob("*.service"):
            shutil.copy(unit, path / "etc/systemd/system")
            shutil.copy(ROOT / f"conf/{unit.stem}.ini", path / "etc/nsqcy")
        file = path / "etc/nsqcy/nsqd.ini"
        file.write_text(re.sub(r"(?m)^#workers = .*$", f"workers = {workers}", file.read_text()))
