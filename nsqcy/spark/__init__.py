"""Topics as Spark data: `spark.read.format("nsq")`, `spark.readStream.format("nsq")`.

Pure Python and pyarrow. Nothing here imports the rest of nsqcy but the compiled checksum, if that
is installed, and nothing there imports this: executors get these modules by value, and need no
nsqcy.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make `format("nsq")` known to this session, also where executors have no nsqcy installed.

    With a local master its workers then run the driver's Python instead of the PATH's `python3`,
    unless PYSPARK_PYTHON is set.
    """
    from pyspark import cloudpickle

    import nsqcy.spark
    from nsqcy.spark.source import NsqDataSource

    untyped: Any = cloudpickle
    untyped.register_pickle_by_value(nsqcy.spark)
    context = getattr(spark, "sparkContext", None)  # none with Spark Connect
    if context and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(NsqDataSource)
