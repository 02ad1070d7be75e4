"""Writes the classes that Spark loads to an archive, which JVMs map into memory: `make test`.

    python tests/support/spark_archive.py build/spark.jsa

Most of the CPU time of a JVM that runs for seconds is spent on loading, verifying and compiling
classes. With the archive, a Spark session takes half of it. A JVM that the archive does not fit
ignores it: a different release of Java or Spark, say. Without java, there is none.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "spark.jsa"
WRITE = f"-XX:ArchiveClassesAtExit={NAME} -XX:+UseSerialGC -Xlog:disable"


def main() -> None:
    if shutil.which("java") is None:
        return
    target = Path(sys.argv[1]).absolute()
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{WRITE}' pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        os.chdir(folder)  # java gets no path, which could contain a space
        java = use_spark()
        java.stdin.close()
        # It writes the archive when it exits. Half an archive would abort JVMs.
        if java.wait(600) != 0 or not Path(NAME).exists():
            sys.exit("java wrote no archive: tests that start Spark take longer")
        Path(NAME).replace(target)


def use_spark() -> Any:
    """Do what the tests do: batches, streams, Parquet, JSON, Python. Return the JVM's process."""
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number INT"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def read(self, partition: Any) -> Iterator[tuple[int]]:
            yield from ((number,) for number in range(10))

    settings = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": "warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    java = spark.sparkContext._gateway.proc
    spark.dataSource.register(Numbers)
    rows = spark.read.format("numbers").load()
    rows = rows.selectExpr("number", "to_json(struct(number)) AS text", "current_timestamp() AS at")
    rows.write.parquet("rows")
    stream = spark.readStream.schema("number INT, text STRING, at TIMESTAMP").parquet("rows")
    counts = (
        stream.selectExpr("from_json(text, 'number INT').number AS number", "at")
        .withWatermark("at", "1 minute")
        .groupBy("number")
        .count()
    )
    for number, (frame, mode) in enumerate([(stream, "append"), (counts, "update")]):
        query = (
            frame.writeStream.outputMode(mode)
            .option("checkpointLocation", f"checkpoint{number}")
            .foreachBatch(lambda batch, _: batch.write.mode("append").parquet("out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.read.parquet("rows").groupBy("text").count().orderBy("text").collect()
    spark.stop()
    return java


if __name__ == "__main__":
    main()
