"""A Django project in one file: a view that publishes, and a command that consumes.

    pip install django
    nsqcy up                                              # in another terminal
    python examples/django_app.py runserver --noreload    # the web server
    python examples/django_app.py consume                 # the worker
    curl -X POST 'http://127.0.0.1:8000/orders/7'

Each web process has one producer, which every thread shares. In a real project, the command belongs
in management/commands/consume.py; run it as a separate service.
"""

import os
import signal
import sys
from functools import cache

import django
from django.conf import settings
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand
from django.db import close_old_connections
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from nsqcy.client import Consumer, Message, Producer

settings.configure(
    DEBUG=True,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",
    NSQD=os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150"),
)


@cache
def producer() -> Producer:
    """Return this process's producer. It connects on its first publish, after any fork."""
    return Producer(settings.NSQD)


@csrf_exempt
@require_POST
def create_order(request: HttpRequest, number: int) -> JsonResponse:
    # In a transaction, publish after the commit: transaction.on_commit(...).
    producer().publish("shop-orders", str(number).encode())
    return JsonResponse({"id": number}, status=202)


urlpatterns = [path("orders/<int:number>", create_order)]


class Consume(BaseCommand):
    help = "send the invoices of orders"

    def handle(self, *args: object, **options: object) -> None:
        consumer = Consumer("shop-orders", "billing", settings.NSQD, message_handler=self.invoice)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: consumer.close(wait=False))
        consumer.run()

    def invoice(self, message: Message) -> None:
        close_old_connections()  # as Django does before each request
        self.stdout.write(f"order {message.body.decode()}: invoice sent")
        self.stdout.flush()


if __name__ == "__main__":
    sys.modules["django_app"] = sys.modules["__main__"]
    django.setup()
    utility = ManagementUtility(sys.argv)
    if sys.argv[1:2] == ["consume"]:
        Consume().run_from_argv(sys.argv)
    else:
        utility.execute()
