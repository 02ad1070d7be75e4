"""Handlers listed in the NSQCY setting."""

from nsqcy.client import Message
from nsqcy.integrations.django import consumer, producer
from support.shop_notes import hang


@consumer("slow", "billing")
def slow(message: Message) -> None:
    hang(message.body.decode())
    producer().publish("orders", b"after the stop")
