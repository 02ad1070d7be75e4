"""A Spark job that writes a topic to Parquet, each message exactly once for Spark readers.

    pip install "nsqcy[spark]"             # and Java 17
    nsqcy up --retention-time=24h          # in another terminal
    python examples/parquet.py clicks clicks.parquet clicks.checkpoint

The job writes the topic's messages and exits. When it is restarted with the same checkpoint, it
writes the messages that have arrived since. Without `availableNow`, it runs until it is stopped.
The first batch may take a minute, because Spark has to start.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from nsqcy.spark import register

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")


def main(topic: str, output: str, checkpoint: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("topic to Parquet")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    messages = (
        spark.readStream.format("nsq")
        .option("nsqdTcpAddresses", TCP)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        messages.withColumn("text", f.col("body").cast("string"))
        .writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"{spark.read.parquet(output).count()} messages in {output}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
