"""Where PySpark finds `format("nsq")` by itself: it looks into every package called `pyspark_*`.

One of them that raises would hide all the others from it, so this one never does.
"""

try:
    from nsqcy.spark.source import NsqDataSource as DefaultSource
except Exception:  # PySpark says then that there is no such format
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
