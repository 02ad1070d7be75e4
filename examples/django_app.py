"""A Django project in one file: a view that publishes, and a handler that consumes.

    pip install "nsqcy[django]"
    nsqcy up                                              # in another terminal
    python examples/django_app.py runserver --noreload    # the web server
    python examples/django_app.py nsqcy_consume           # the worker
    curl -X POST 'http://127.0.0.1:8000/orders/7'

Each web process has one producer, which every thread shares. In a project with apps, handlers
belong in an app's consumers.py.
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from nsqcy import Message
from nsqcy.integrations.django import consumer, publish_on_commit

settings.configure(
    DEBUG=True,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["nsqcy.integrations.django"],
    NSQCY={"NSQD_TCP_ADDRESSES": [os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")]},
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",
)


def create_order(request: HttpRequest, number: int) -> JsonResponse:
    with transaction.atomic():
        # A project would save the order here.
        publish_on_commit("shop-orders", str(number).encode())
    return JsonResponse({"id": number}, status=202)


urlpatterns = [path("orders/<int:number>", csrf_exempt(create_order))]


@consumer("shop-orders", "billing")
def send_invoice(message: Message) -> None:
    print(f"order {message.body.decode()}: invoice sent", flush=True)


if __name__ == "__main__":
    sys.modules["django_app"] = sys.modules["__main__"]
    django.setup()
    execute_from_command_line(sys.argv)
