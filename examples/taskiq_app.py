"""A taskiq application on nsqd: a task, a delay, a schedule, and a retry.

    nsqcy up                                        # in another terminal
    cd examples
    taskiq worker taskiq_app:broker                 # in a third terminal
    python taskiq_app.py                            # publishes four tasks

Needs `pip install "nsqcy[taskiq]"`.
"""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends

from nsqcy.integrations.taskiq import NsqBroker, NsqScheduleSource

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

broker = NsqBroker(TCP)
broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
schedule = NsqScheduleSource(broker)


@broker.task("greet")
async def greet(name: str) -> None:
    print(f"hello, {name}", flush=True)


@broker.task("send_mail", retry_on_error=True)
async def send_mail(to: str, context: Context = TaskiqDepends()) -> None:  # noqa: B008
    retries = int(context.message.labels.get("_retries", 0))
    if retries == 0:
        raise ConnectionError("no mail server")
    print(f"mail for {to} sent after {retries} retry", flush=True)


async def main() -> None:
    await broker.startup()
    await greet.kiq("Ada")
    await greet.kicker().with_labels(delay=1).kiq("the near future")  # deferred in nsqd
    at = datetime.now(UTC) + timedelta(seconds=2)
    await greet.schedule_by_time(schedule, at, "the future")
    await send_mail.kiq("grace@example.org")
    await broker.shutdown()
    print("published 4 tasks")


if __name__ == "__main__":
    asyncio.run(main())
