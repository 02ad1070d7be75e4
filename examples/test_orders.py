"""Tests with a private nsqd: the `nsqd` fixture comes with nsqcy.

    pip install pytest
    pytest examples/test_orders.py

Each test has its own nsqd on free ports, which starts in a third of a second.
"""

from nsqcy import Consumer, Producer
from nsqcy.testing import Nsqd


def test_an_order_arrives(nsqd: Nsqd) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("orders", b"7")
    with Consumer("orders", "billing", nsqd.tcp_address) as consumer:
        message = consumer.get(timeout=10)
        assert message is not None and message.body == b"7"
        message.finish()


def test_orders_survive_a_restart(nsqd: Nsqd) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("orders", b"7")
    nsqd.restart()
    with Consumer("orders", "billing", nsqd.tcp_address) as consumer:
        message = consumer.get(timeout=10)
        assert message is not None and message.body == b"7"
        message.finish()
