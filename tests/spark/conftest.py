"""Skips if pyspark, pyarrow or java is missing."""

from support.spark_requirements import pytest_collection_modifyitems, pytest_pycollect_makemodule
from support.spark_session import jvm_log, spark

__all__ = ["jvm_log", "pytest_collection_modifyitems", "pytest_pycollect_makemodule", "spark"]
