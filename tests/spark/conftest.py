"""Skips if pyspark, pyarrow or java is missing."""

from support.spark_requirements import pytest_collection_modifyitems, pytest_pycollect_makemodule

__all__ = ["pytest_collection_modifyitems", "pytest_pycollect_makemodule"]
