"""System checks of the NSQCY setting, for `manage.py check` and other commands."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured

from nsqcy.integrations.django.configuration import (
    EXAMPLE,
    OPTIONS,
    OPTIONS_NAME,
    given_addresses,
    given_setting,
    handler_modules,
    unknown_keys,
)
from nsqcy.integrations.web.settings import checked_options

ADDRESS_HINT = "An address is host:port, for example 127.0.0.1:4150."
OPTIONS_HINT = "OPTIONS contains the client's options, for producers and consumers."
MODULES_HINT = "MODULES lists modules with handlers, as dotted names."


def check_settings(**_: Any) -> list[Any]:
    """Return an Error for each mistake in the setting."""
    try:
        found = given_setting()
    except ImproperlyConfigured:
        return [
            Error(
                "The NSQCY setting must be a dict.",
                hint=f"For example: {EXAMPLE}",
                id="nsqcy.E001",
            )
        ]
    errors = [
        Error(f"The NSQCY setting has an unknown key {key!r}.", hint=hint, id="nsqcy.E002")
        for key, hint in unknown_keys(found).items()
    ]
    options = found.get(OPTIONS, {})
    errors += _refused(partial(given_addresses, found), ADDRESS_HINT, "nsqcy.E003")
    errors += _refused(partial(checked_options, options, OPTIONS_NAME), OPTIONS_HINT, "nsqcy.E004")
    return [*errors, *_missing_modules(found)]


def _refused(check: Callable[[], object], hint: str, number: str) -> Iterator[Any]:
    try:
        check()
    except (ValueError, TypeError) as error:
        yield Error(str(error), hint=hint, id=number)


def _missing_modules(found: Mapping[str, Any]) -> Iterator[Any]:
    try:
        names = handler_modules(found)
    except TypeError as error:
        yield Error(str(error), hint=MODULES_HINT, id="nsqcy.E005")
        return
    for name in names:
        if not _exists(name):
            text = f"The NSQCY setting names a module that does not exist: {name!r}."
            yield Error(text, hint=MODULES_HINT, id="nsqcy.E005")


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or the name is invalid
        return False
