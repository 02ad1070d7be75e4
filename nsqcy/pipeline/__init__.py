"""`nsqcy-pipeline`: jobs that move topics to files and back, on Spark.

`__main__` chooses the job; each is a module with HELP, OPTIONS and run(options, report). Nothing of
pyspark, pyarrow or nsqcy.spark is imported before a job runs, so that a missing package can be
reported.
"""
