"""The NSQCY setting: its keys and their values."""

import difflib
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from nsqcy.integrations.web.settings import Settings, checked_addresses, checked_options

SETTING = "NSQCY"
NSQDS = "NSQD_TCP_ADDRESSES"
LOOKUPDS = "LOOKUPD_HTTP_ADDRESSES"
OPTIONS = "OPTIONS"
OPTIONS_NAME = f"NSQCY[{OPTIONS!r}]"  # name in error texts
MODULES = "MODULES"
KEYS = (NSQDS, LOOKUPDS, OPTIONS, MODULES)
EXAMPLE = f'NSQCY = {{"{NSQDS}": ["127.0.0.1:4150"]}}'


def given_setting() -> Mapping[str, Any]:
    """Return the setting. Raises ImproperlyConfigured if it is not a dict."""
    found = getattr(settings, SETTING, None)
    if not isinstance(found, Mapping):
        raise ImproperlyConfigured(f"the NSQCY setting must be a dict, for example {EXAMPLE}")
    return found


def unknown_keys(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the unknown keys, each with a hint."""
    hints = {}
    for key in (each for each in found if each not in KEYS):
        close = difflib.get_close_matches(str(key).upper(), KEYS, 1)
        hints[key] = f"Did you mean {close[0]}?" if close else f"Allowed: {', '.join(KEYS)}."
    return hints


def given_addresses(found: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of nsqds and nsqlookupds. Raises ValueError and TypeError."""
    return checked_addresses(found.get(NSQDS, ()), found.get(LOOKUPDS, ()), SETTING)


def handler_modules(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules with handlers, in addition to the apps' own. Raises TypeError."""
    value = found.get(MODULES, ())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"NSQCY['MODULES'] must be a list of dotted names, not {value!r}")
    return tuple(value)


def current_settings() -> Settings:
    """Return the checked setting. Raises ImproperlyConfigured."""
    found = given_setting()
    for key, hint in unknown_keys(found).items():
        raise ImproperlyConfigured(f"the NSQCY setting has an unknown key {key!r}. {hint}")
    try:
        return Settings(
            *given_addresses(found), *checked_options(found.get(OPTIONS, {}), OPTIONS_NAME)
        )
    except (ValueError, TypeError) as error:
        raise ImproperlyConfigured(str(error)) from error
