"""The app's entry in INSTALLED_APPS."""

from typing import Any

from django.apps import AppConfig
from django.core.checks import register
from django.core.signals import setting_changed

from nsqcy.integrations.django.checks import check_settings
from nsqcy.integrations.django.publishing import forget_settings


class NsqcyConfig(AppConfig):
    name = "nsqcy.integrations.django"
    label = "nsqcy"
    verbose_name = "nsqcy"

    def ready(self) -> None:
        register(check_settings)
        setting_changed.connect(_changed)


def _changed(*, setting: str, **_: Any) -> None:
    """Apply NSQCY when a test overrides it."""
    if setting == "NSQCY":
        forget_settings()
