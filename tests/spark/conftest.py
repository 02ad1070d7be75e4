"""What is skipped here without pyspark, pyarrow or java."""

from support.spark_requirements import pytest_collection_modifyitems, pytest_pycollect_makemodule

__all__ = ["pytest_collection_modifyitems", "pytest_pycollect_makemodule"]
