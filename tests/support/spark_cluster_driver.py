"""A driver for a cluster: reads a topic as a batch, and copies it to another topic as a stream.

spark-submit spark_cluster_driver.py OPTIONS TOPIC TARGET CHECKPOINT; prints its results as JSON.
"""

import json
import sys
from importlib.util import find_spec


def main(options: str, topic: str, target: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    from nsqcy.spark import register

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    given = json.loads(options)
    rows = spark.read.format("nsq").options(**given, topic=topic, minPartitions="4").load()
    batch = rows.selectExpr("count(*)", "count(distinct log_id, seq)").first()
    query = (
        spark.readStream.format("nsq")
        .options(**given, topic=topic, startingOffsets="earliest", minPartitions="4")
        .load()
        .select("body")
        .writeStream.format("nsq")
        .options(**given, topic=target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    names = ("nsqcy", "nsqcy.base.core")
    tasks = spark.sparkContext.parallelize(range(8), 8)
    there = tasks.map(lambda _: [name for name in names if is_there(name)]).first()
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    executors = len(tracker.getExecutorInfos()) - 1  # the driver is listed as well
    found = {"batch": list(batch), "on_executors": there, "executors": executors}
    print(json.dumps(found | {"on_driver": [name for name in names if is_there(name)]}))


def is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
