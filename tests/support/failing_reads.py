"""A disk whose reads fail on request, for daemons in other processes."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
SHORT = -1  # passed instead of an errno: reads return no data


class FailingReads:
    """Fails the reads of the files below `data`, in processes that get `environ`."""

    def __init__(self, path: Path, data: Path, part: str = "") -> None:
        """part: fail reads only of files whose paths contain this text"""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler")
        library = path / "failing_reads.so"
        words = [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
        subprocess.run(words, check=True)
        self._control = path / "failing_reads"
        self.fail_with(0)
        self.environ = {
            "LD_PRELOAD": str(library),
            "FAILING_READS_DIR": str(data),
            "FAILING_READS_PART": part,
            "FAILING_READS_CONTROL": str(self._control),
        }

    def fail_with(self, error: int) -> None:
        """Make all reads fail with this errno, or as for SHORT. With 0, reads succeed."""
        mode = "r+b" if self._control.exists() else "wb"
        with self._control.open(mode) as file:
            file.write(struct.pack("i", error))
