"""A host that is made up: what a runbook says to type is typed on it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from daemon import environment, free_port
from web import Web, eventually

ROOT = Path(__file__).parents[1]
RUNBOOKS = ROOT / "docs" / "runbooks"
SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

SYSTEMCTL = """\
import os, signal, subprocess, sys, time
command, service = sys.argv[1:]
assert service == "nsqd"
pidfile = {host!r} + "/pid"
if command == "start":
    with open({host!r} + "/log", "a") as log:
        daemon = subprocess.Popen({nsqd!r}, stderr=log, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, start_new_session=True)
    with open(pidfile, "w") as file:
        file.write(str(daemon.pid))
elif command == "status":
    sys.exit(3)
elif os.path.exists(pidfile):
    with open(pidfile) as file:
        pid = int(file.read())
    os.kill(pid, signal.SIGTERM)
    while os.path.exists(f"/proc/{{pid}}") and open(f"/proc/{{pid}}/stat").read().split()[2] != "Z":
        time.sleep(0.01)
    os.unlink(pidfile)
"""


class Host:
    """A directory that stands for /, and commands that stand for the system's."""

    def __init__(self, path: Path, workers: int, *flags: str) -> None:
        self.path = path
        self.data = path / "var/lib/nsqd"
        self.data.mkdir(parents=True)
        (path / "etc").mkdir()
        (path / "bin").mkdir()
        self.web = Web(free_port())
        nsqd = [sys.executable, "-m", "nsqcy.nsqd.main", f"--data-path={self.data}"]
        nsqd += ["--tcp-address=127.0.0.1:0", f"--http-address=127.0.0.1:{self.web.port}"]
        nsqd += [f"--workers={workers}", *flags]
        self.ports = {":4151": self.web.port}
        self.install("nsqcy", "from nsqcy.__main__ import main; raise SystemExit(main())")
        self.install("systemctl", SYSTEMCTL.format(host=str(path), nsqd=nsqd))

    def install(self, name: str, source: str) -> None:
        file = self.path / "bin" / name
        file.write_text(f"#!{sys.executable}\n{source}\n")
        file.chmod(0o755)

    def type(self, text: str) -> str:
        """What a command prints; it must succeed."""
        text = text.replace("/var/lib", f"{self.path}/var/lib").replace("/etc", f"{self.path}/etc")
        for usual, port in self.ports.items():
            text = text.replace(usual, f":{port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            env=environment() | {"PATH": f"{self.path}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        if "systemctl start" in text:
            eventually(self.answers)
        return done.stdout

    def kill(self) -> None:
        """nsqd and its workers, at once."""
        pidfile = self.path / "pid"
        os.killpg(int(pidfile.read_text()), signal.SIGKILL)
        pidfile.unlink()

    def answers(self) -> bool:
        try:
            return self.web.get("/ping").body == b"OK"
        except OSError:
            return False
