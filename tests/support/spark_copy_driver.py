"""A driver that copies a topic to another topic as a stream, with options given as JSON.

python spark_copy_driver.py CHECKPOINT READ_OPTIONS WRITE_OPTIONS
"""

import json
import sys


def main(checkpoint: str, reading: str, writing: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    query = (
        spark.readStream.format("nsq")
        .options(**json.loads(reading))
        .load()
        .select("body")
        .writeStream.format("nsq")
        .options(**json.loads(writing))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
