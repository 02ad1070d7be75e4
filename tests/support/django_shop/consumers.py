"""Handlers that nsqcy_consume discovers."""

from django.db import connection

from nsqcy.client import Message
from nsqcy.integrations.django import consumer
from support.shop_notes import note


@consumer("orders", "billing", concurrency=2)
def order(message: Message) -> None:
    had_connection = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    note(task="order", body=message.body.decode(), had_connection=had_connection)
