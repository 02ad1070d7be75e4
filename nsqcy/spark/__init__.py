"""Topics as Spark data: `spark.read.format("nsq")`, `spark.readStream.format("nsq")`.

Pure Python and pyarrow. From nsqcy, the modules of this package import only `nsqcy.options` and, if
it is installed, the compiled checksum. They import nothing that imports this package: executors
receive the package and `nsqcy.options` by value and do not need nsqcy.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register `format("nsq")` with this session, including for executors without nsqcy.

    With a local master, workers then run the driver's Python rather than the `python3` on the PATH,
    unless PYSPARK_PYTHON is set.
    """
    from pyspark import cloudpickle

    import nsqcy.options
    import nsqcy.spark
    from nsqcy.spark.source import NsqDataSource

    for package in (nsqcy.spark, nsqcy.options):
        cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    context = getattr(spark, "sparkContext", None)  # None with Spark Connect
    if context and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(NsqDataSource)
