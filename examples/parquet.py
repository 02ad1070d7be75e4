"""A Spark job that writes a topic to Parquet, each message once for readers in Spark.

    pip install "nsqcy[spark]"             # and java 17
    nsqcy up --retention-time=24h          # in another terminal
    python examples/parquet.py clicks clicks.parquet clicks.checkpoint

The job writes the messages of the topic and ends. Started again with the same checkpoint, it
writes those that have come since. Without `availableNow` it runs until stopped. The first batch
may take a minute, as Spark starts.
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
