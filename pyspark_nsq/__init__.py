"""The package in which PySpark finds `format("nsq")`: PySpark searches every package named
`pyspark_*`.

A package that raises on import would hide all the others, so this one never raises.
"""

try:
    from nsqcy.spark.source import NsqDataSource as DefaultSource
except Exception:  # PySpark then reports that the format does not exist
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
