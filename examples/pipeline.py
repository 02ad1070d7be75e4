"""Reading and writing topics with Spark, as a notebook in plain Python: cells begin with `# %%`.

    pip install "nsqcy[spark,plots]"       # and Java 17
    nsqcy up --retention-time=24h          # in another terminal
    python examples/pipeline.py

The notebook counts words while they are published, plots the rates per window, archives the topic,
and replays a part of the archive to a different topic. Editors that support `# %%` run it cell by
cell.
"""

# %% A topic, and a thread that publishes to it
import itertools
import os
import subprocess
import sys
import this  # some text
import threading
import urllib.request

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from nsqcy.spark import register

NSQD = os.environ.get("NSQD", "127.0.0.1")
TCP = f"{NSQD}:{os.environ.get('NSQD_TCP_PORT', '4150')}"
HTTP = f"{NSQD}:{os.environ.get('NSQD_HTTP_PORT', '4151')}"
SECONDS = int(os.environ.get("EXAMPLE_SECONDS", "30"))

text = "".join(this.d.get(letter, letter) for letter in this.s)
lines = [line for line in text.splitlines() if line]
done = threading.Event()


def publish() -> None:
    """Publish one line after the other, in waves: faster, then slower."""
    for number, line in enumerate(itertools.cycle(lines)):
        url = f"http://{HTTP}/pub?topic=zen"
        urllib.request.urlopen(urllib.request.Request(url, line.encode())).close()
        if done.wait(0.02 if number // 150 % 2 else 0.005):
            return


publish_thread = threading.Thread(target=publish, daemon=True)
publish_thread.start()

# %% Spark, and the topic as a stream
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # this Python has pyarrow
spark = (
    SparkSession.builder.master("local[2]")
    .appName("nsqcy example")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
register(spark)
zen = (
    spark.readStream.format("nsq")
    .option("nsqdTcpAddresses", TCP)
    .option("topic", "zen")
    .option("startingOffsets", "earliest")
    .option("waitForTopic", "true")
    .load()
)

# %% Words, counted while they are published
words = zen.select(f.explode(f.split(f.lower(zen.body.cast("string")), "[^a-z]+")).alias("word"))
counts = words.where("word != ''").groupBy("word").count()
counting = counts.writeStream.outputMode("complete").format("memory").queryName("words").start()

# %% Rates, in windows of two seconds
windows = zen.withWatermark("timestamp", "5 seconds").groupBy(f.window("timestamp", "2 seconds"))
rates = windows.agg(f.count(f.lit(1)).alias("messages"), f.sum(f.length("body")).alias("bytes"))
rating = rates.writeStream.outputMode("update").format("memory").queryName("rates").start()

# %% Wait a while, then show the results
done.wait(SECONDS)
done.set()
publish_thread.join()
counting.processAllAvailable()
rating.processAllAvailable()
print("The words most often used:")
for row in spark.table("words").orderBy(f.desc("count"), "word").limit(8).collect():
    print(f"{row['count']:>8,}  {row['word']}")
found = (  # the latest row of each window
    spark.table("rates")
    .groupBy("window.start")
    .agg(f.max("messages").alias("messages"), f.max("bytes").alias("bytes"))
    .orderBy("start")
    .collect()
)
counting.stop()
rating.stop()

# %% A plot of the rates
try:
    from matplotlib.figure import Figure
except ImportError:
    print('matplotlib is not installed: no plots: pip install "nsqcy[plots]"')
else:
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    starts, messages = [row["start"] for row in found], [row["messages"] / 2 for row in found]
    axes.fill_between(starts, messages, step="post", alpha=0.3)
    axes.step(starts, messages, where="post")
    axes.set(title="zen: messages per second", ylim=(0, None))
    figure.savefig("zen.png", dpi=144)
    print("zen.png has the rates")
spark.stop()


# %% Archive, verify and replay, as in a shell
def job(*words: str) -> None:
    print("$ nsqcy-pipeline", *words, flush=True)
    subprocess.run([sys.executable, "-m", "nsqcy.pipeline", *words], check=True)


job("archive", "--topic=zen", "--once", f"--nsqd-tcp-address={TCP}")
job("verify")
job(
    *("replay", "--root=archive", "--topic=zen", "--to=zen-never"),
    *("--where=contains(cast(body as string), 'never')", f"--nsqd-tcp-address={TCP}"),
)
