"""Hooks for test directories that need pyspark, pyarrow and, if they start Spark, java.

Without these, the tests are skipped, with the reason.
"""

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
LOCAL_JAVA = {"JAVA_TOOL_OPTIONS": QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1"}
MISSING = [name for name in ("pyarrow", "pyspark") if find_spec(name) is None]


def spark_environment() -> dict[str, str]:
    """Return an environment in which Spark's processes import the same packages as the tests."""
    return environment() | LOCAL_JAVA | {"PYSPARK_PYTHON": sys.executable}


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
