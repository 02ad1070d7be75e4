"""The messages of the demo."""

import random
from itertools import islice

from nsqcy.cli import demo


def test_the_load_is_modest() -> None:
    rates = (demo.ORDERS, demo.PAGE_VIEWS, demo.EMAILS, demo.PAYMENTS, demo.REMINDERS)
    assert sum(rates) <= 200


def test_the_backlog_of_emails_grows_less_than_it_drains() -> None:
    slow, fast = demo.EMAIL_RATES
    assert slow < demo.EMAILS < fast
    assert demo.EMAILS - slow < fast - demo.EMAILS


def test_every_topic_is_bounded() -> None:
    for policy in (demo.TOPIC_POLICY, demo.DEAD_LETTER_POLICY):
        assert policy["on_full"] == "drop-oldest" and policy["max_depth"]
    assert demo.CHANNEL_POLICY["dead_letter_topic"] in demo.TOPICS


def test_a_few_payments_fail() -> None:
    payments = islice(demo.Shop(random.Random(1)).payments(), 2 * demo.FAILURE_EVERY)
    failing = [each["payment_id"] for each in payments if each["card"] == demo.EXPIRED]
    assert failing == [demo.FIRST_FAILURE, demo.FAILURE_EVERY + demo.FIRST_FAILURE]
