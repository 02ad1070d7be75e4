"""A Spark stream that counts events per minute, and closes each minute even though events may
arrive late.

    pip install "nsqcy[spark]"             # and Java 17
    nsqcy up --retention-time=24h          # in another terminal
    curl -d '{"page": "/", "at": "2026-01-31T07:00:10Z"}' 'http://127.0.0.1:4151/pub?topic=views'
    python examples/spark_windows.py views views.parquet views.checkpoint

The time of an event is in the message. The watermark is ten minutes behind the newest event. Once
it has passed the end of a minute, the job writes the minute's counts, and drops later events for
it. Each count is written exactly once. The job reads the messages that exist now, and exits; when
it is restarted with the same checkpoint, it continues with the minutes that are not finished.
Without `availableNow`, it runs until it is stopped.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from nsqcy.spark import register
from nsqcy.spark.failures import one_line_errors

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
SCHEMA = "page STRING, at TIMESTAMP"


def main(topic: str, output: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("views per minute")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")  # one_line_errors prints errors
    register(spark)
    messages = (
        spark.readStream.format("nsq")
        .option("nsqdTcpAddresses", TCP)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    views = messages.select(f.from_json(f.col("body").cast("string"), SCHEMA).alias("view")).select(
        "view.*"
    )
    counts = (
        views.withWatermark("at", "10 minutes")
        .groupBy(f.window("at", "1 minute"), "page")
        .count()
        .select(f.col("window.start").alias("minute"), "page", "count")
    )
    query = (
        counts.writeStream.format("parquet")
        .outputMode("append")  # only finished minutes
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for minute, page, count in spark.read.parquet(output).orderBy("minute", "page").collect():
        print(f"{minute:%H:%M} {page}: {count}")
    spark.stop()


if __name__ == "__main__":
    with one_line_errors():
        main(*sys.argv[1:])
