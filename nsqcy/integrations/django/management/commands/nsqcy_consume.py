"""Worker: `manage.py nsqcy_consume`."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from nsqcy.integrations.django.configuration import current_settings
from nsqcy.integrations.django.handlers import discover, subscriptions, with_connections
from nsqcy.integrations.django.publishing import process_producer
from nsqcy.integrations.web.worker import consume, consumers_of


class Command(BaseCommand):
    help = "Run the handlers of the project's consumers.py modules, until SIGTERM or SIGINT."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--only",
            action="append",
            default=[],
            metavar="TOPIC/CHANNEL",
            help="Run this handler. May be given several times. Default: all handlers",
        )

    def handle(self, *_: Any, only: list[str], **options: Any) -> None:
        discover()
        try:
            selected = subscriptions.selected(only)
        except LookupError as error:
            raise CommandError(error.args[0]) from error
        consumers = consumers_of(selected, current_settings(), with_connections)
        self.stdout.write(f"consuming {', '.join(each.name for each in selected)}")
        self.stdout.flush()
        consume(consumers)
        process_producer.close()
