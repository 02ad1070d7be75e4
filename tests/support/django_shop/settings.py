"""Settings of the project."""

import os

ALLOWED_HOSTS = ["127.0.0.1"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_FILE"] + ".sqlite3",
    }
}
INSTALLED_APPS = ["nsqcy.integrations.django", "django_shop"]
MIDDLEWARE: list[str] = []
NSQCY = {
    "NSQD_TCP_ADDRESSES": os.environ.get("SHOP_NSQD", "127.0.0.1:1"),
    "OPTIONS": {"msg_timeout": 2.0},
    "MODULES": ["django_shop.slow_handlers"],
}
ROOT_URLCONF = "django_shop.urls"
SECRET_KEY = "only for tests"
WSGI_APPLICATION = "django_shop.urls.application"
