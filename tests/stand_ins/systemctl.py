"""systemctl of a simulated host: `systemctl.py ROOT COMMAND... UNIT`.

Runs the command from the unit's file, with the additional flags from /etc/default and
ROOT/UNIT.flags. A file with the process id identifies the daemon. Its log is ROOT/UNIT.log. A
daemon that exits is not restarted.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path


class Unit:
    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.pidfile = root / f"{name}.pid"

    def start(self) -> None:
        if self.is_active():
            return
        with (self.root / f"{self.name}.log").open("a") as log:
            daemon = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.pidfile.write_text(str(daemon.pid))

    def stop(self) -> None:
        if self.is_active():
            os.kill(self._pid(), signal.SIGTERM)
        while self.is_active():
            time.sleep(0.01)
        self.pidfile.unlink(missing_ok=True)

    def reload(self) -> None:
        os.kill(self._pid(), signal.SIGHUP)

    def is_active(self) -> bool:
        """Return whether the service is running. A zombie does not count: nothing here reaps it."""
        try:
            stat = Path(f"/proc/{self._pid()}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(") ")[2][0] != "Z"

    def _pid(self) -> int:
        return int(self.pidfile.read_text())

    def _command(self) -> list[str]:
        text = (self.root / f"etc/systemd/system/{self.name}.service").read_text()
        (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        command = re.sub(r"/(?=(?:opt|etc|var)/)", f"{self.root}/", command)
        command = re.sub(r"\$\w+", lambda found: self._default(found[0][1:]), command)
        return shlex.split(command) + shlex.split((self.root / f"{self.name}.flags").read_text())

    def _default(self, name: str) -> str:
        """Return the value of a variable in /etc/default."""
        file = self.root / f"etc/default/{self.name}"
        text = file.read_text() if file.exists() else ""
        found = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
        return "".join(shlex.split(found[-1])) if found else ""


def main() -> int:
    root, *words = sys.argv[1:]
    if words == ["daemon-reload"]:
        return 0
    unit = Unit(Path(root), words[-1])
    match words[:-1]:
        case ["disable"]:
            pass
        case ["start"] | ["enable", "--now"]:
            unit.start()
        case ["stop"]:
            unit.stop()
        case ["restart"]:
            unit.stop()
            unit.start()
        case ["reload"]:
            unit.reload()
        case ["status"] | ["-q", "is-active"]:
            return 0 if unit.is_active() else 3
        case _:
            raise SystemExit(f"systemctl {words} is not simulated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
