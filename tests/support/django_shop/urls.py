"""Views of the project, and its WSGI application."""

import os

from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from nsqcy.integrations.django import publish_on_commit


@csrf_exempt
def publish(request: HttpRequest, topic: str, body: str) -> JsonResponse:
    with transaction.atomic():
        publish_on_commit(topic, body.encode())
    return JsonResponse({"pid": os.getpid()})


urlpatterns = [path("publish/<topic>/<body>", publish)]
application = get_wsgi_application()
