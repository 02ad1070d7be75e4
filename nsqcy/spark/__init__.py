"""Topics as Spark data: `spark.read.format("nsq")`, `spark.readStream.format("nsq")`.

Pure Python and pyarrow. Of the rest of nsqcy, modules here import only `nsqcy.options` and the
compiled checksum, if that is installed. Nothing there imports this package: executors get it and
`nsqcy.options` by value, and need no nsqcy.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make `format("nsq")` known to this session, also where executors have no nsqcy installed.

    With a local master its workers then run the driver's Python instead of the PATH's `python3`,
    unless PYSPARK_PYTHON is set.
    """
    from pyspark import cloudpickle

    import nsqcy.options
    import nsqcy.spark
    from nsqcy.spark.source import NsqDataSource

    for package in (nsqcy.spark, nsqcy.options):
        cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    context = getattr(spark, "sparkContext", None)  # none with Spark Connect
    if context and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(NsqDataSource)
