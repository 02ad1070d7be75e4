"""A Spark job that reads JSON messages with a schema, and reports those that do not match it.

    pip install "nsqcy[spark]"             # and Java 17
    nsqcy up --retention-time=24h          # in another terminal
    curl -d '{"id": 1, "country": "PT", "total": 25}' 'http://127.0.0.1:4151/pub?topic=orders'
    python examples/spark_json.py orders

It reads the messages that exist now, and prints the number of orders and their total for each
country. It prints an error as one line. Spark takes about ten seconds to start.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from nsqcy.spark import register
from nsqcy.spark.failures import one_line_errors

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
INVALID = "_invalid"  # from_json stores bodies that do not match the schema here
SCHEMA = f"id LONG, country STRING, total DOUBLE, {INVALID} STRING"


def main(topic: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("JSON orders")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")  # one_line_errors prints errors
    register(spark)
    messages = (
        spark.read.format("nsq")
        .option("nsqdTcpAddresses", TCP)
        .option("topic", topic)
        .option("columns", "seq,body")  # fetch nothing else
        .load()
    )
    parsed = messages.select(
        "seq",
        f.from_json(
            f.col("body").cast("string"), SCHEMA, {"columnNameOfCorruptRecord": INVALID}
        ).alias("order"),
    ).select("seq", "order.*")
    valid = f.col(INVALID).isNull()
    countries = parsed.where(valid).groupBy("country").agg(f.count("id"), f.sum("total"))
    for country, count, total in countries.orderBy("country").collect():
        print(f"{country}: {count} orders, {total:.2f} in total")
    for row in parsed.where(~valid).orderBy("seq").collect():
        print(f"message {row['seq']} is not an order: {row[INVALID]}")
    spark.stop()


if __name__ == "__main__":
    with one_line_errors():
        main(*sys.argv[1:])
