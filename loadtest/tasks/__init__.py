"""Celery on nsqd, Redis and RabbitMQ: throughput, kills and ETAs."""
