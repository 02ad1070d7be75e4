"""Hooks for test directories that need pyspark, pyarrow and, if they start Spark, java.

Without these, the tests are skipped, with the reason.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.nsqd_process import environment

# JVMs that run only for seconds need less than two thirds of the CPU time with these options.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# The Python processes that Spark starts need less than half with this directory in PYTHONPATH.
QUICK_PYTHON = str(Path(__file__).with_name("spark_python"))
LOCAL_JAVA = {
    "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    "OPENBLAS_NUM_THREADS": "1",
    "SPARK_LOCAL_IP": "127.0.0.1",
}
MISSING = [name for name in ("pyarrow", "pyspark") if find_spec(name) is None]


def spark_environment() -> dict[str, str]:
    """Return an environment in which Spark's processes import the same packages as the tests."""
    ours = environment()
    path = os.pathsep.join([QUICK_PYTHON, ours["PYTHONPATH"]])
    return ours | LOCAL_JAVA | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}


class Skipped(pytest.Module):
    def collect(self) -> Any:
        pytest.skip(f"not installed: {', '.join(MISSING)}", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    return Skipped.from_parent(parent, path=module_path) if MISSING else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("java") is None:
        for item in items:
            if item.get_closest_marker("spark"):
                item.add_marker(pytest.mark.skip(reason="java is not installed"))
