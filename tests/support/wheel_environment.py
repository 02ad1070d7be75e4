"""New environments with a wheel from `make dist`, in which nothing can be compiled."""

import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

from release import pythons
from support import distribution_files

DIST = distribution_files.ROOT / "dist"
WHEELS = sorted(DIST.glob(f"*_{platform.machine()}.whl"))
# Commands that the README uses; none of them can build anything.
COMMANDS = ("sh", "bash", "curl", "cat", "sleep")


class Room:
    """Environment with one installed wheel.

    extra: an extra of nsqcy. packages: additional packages to install.
    """

    def __init__(self, wheel: Path, folder: Path, extra: str = "", *packages: str) -> None:
        found = re.search(r"-cp(\d)(\d+)-", wheel.name)
        assert found
        python = pythons.find(f"{found[1]}.{found[2]}")
        assert python
        self.folder = folder
        self.bin = folder / "env" / "bin"
        tools = folder / "tools"
        tools.mkdir()
        for name in COMMANDS:
            (tools / name).symlink_to(shutil.which(name) or "")
        self.environ = {"HOME": str(folder), "PATH": f"{self.bin}:{tools}", "LANG": "C.UTF-8"}
        begun = time.monotonic()
        subprocess.run([python, "-m", "venv", self.bin.parent], check=True)
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        install = ("python", "-m", "pip", "install", "-q", "--only-binary=:all:")
        self.run(*install, wanted, *packages)
        self.seconds = time.monotonic() - begun  # until the programs can be started
        self.run("python", "-m", "pip", "uninstall", "-q", "-y", "pip", "setuptools")

    def run(self, *words: str) -> str:
        """Run a command, which must succeed, and return its output."""
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout
