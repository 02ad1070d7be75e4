"""`nsqcy-pipeline`: jobs that move topics to files and back, on Spark.

`__main__` selects the job; each job is a module with HELP, OPTIONS and run(options, report).
pyspark, pyarrow and nsqcy.spark are imported only when a job runs, so a missing package can be
reported.
"""
