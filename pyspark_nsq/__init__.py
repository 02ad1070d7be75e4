"""The package in which PySpark finds `format("nsq")`: it searches every package called `pyspark_*`.

A package that raises would hide all the others, so this one never raises.
"""

try:
    from nsqcy.spark.source import NsqDataSource as DefaultSource
except Exception:  # PySpark then reports that there is no such format
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
