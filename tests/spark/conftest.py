"""What is skipped here without pyspark, pyarrow or java."""

from spark_needs import pytest_collection_modifyitems, pytest_pycollect_makemodule

__all__ = ["pytest_collection_modifyitems", "pytest_pycollect_makemodule"]
