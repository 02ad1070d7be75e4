"""Celery on nsqd, Redis and RabbitMQ: throughput, kills and ETAs."""

import struct

RECORD = struct.Struct("<Id")  # record of a task that ran: its number, and a time in seconds
