"""A Dramatiq application on nsqd: a task, a delay, and a retry.

    nsqcy up                                        # in another terminal
    cd examples
    dramatiq dramatiq_app                           # in a third terminal
    python dramatiq_app.py                          # publishes three tasks

Needs `pip install "nsqcy[dramatiq]"`.
"""

import os

import dramatiq
from dramatiq.middleware import CurrentMessage

from nsqcy.integrations.dramatiq import NsqBroker

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

broker = NsqBroker(TCP)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor
def greet(name: str) -> None:
    print(f"hello, {name}", flush=True)


@dramatiq.actor(max_retries=3, min_backoff=500)
def send_mail(to: str) -> None:
    message = CurrentMessage.get_current_message()
    retries = message.options.get("retries", 0) if message else 0
    if retries == 0:
        raise ConnectionError("no mail server")  # nsqd holds the task until the retry
    print(f"mail for {to} sent after {retries} retry", flush=True)


if __name__ == "__main__":
    greet.send("Ada")
    greet.send_with_options(args=("the future",), delay=2000)  # deferred in nsqd, not in a worker
    send_mail.send("grace@example.org")
    print("published 3 tasks")
