"""Options that several daemons share, and checks for option rules.

Contains no table: each daemon has its own.
"""

import os
from collections.abc import Iterable

from nsqcy.config.durations import SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, DURATION, LEVEL, STRING
from nsqcy.errors import StartError, all_of
from nsqcy.logging import logger
from nsqcy.options.option import Option, Rule


def hostname() -> str:
    return os.uname().nodename


VERSION = Option("version", BOOL, False, "print the version and exit", in_file=False)
CONFIG = Option("config", STRING, "", "path to a configuration file", in_file=False)
LOG_LEVEL = Option(
    "log-level",
    LEVEL,
    logger.INFO,
    "minimum level to log: debug, info, warn, error or fatal",
    runtime=True,
)
LOG_FORMAT = Option(
    "log-format",
    STRING,
    "text",
    "format of log lines: text, as in NSQ, or json, with one object per line",
    rule=Rule("text or json", lambda value: value in logger.FORMATS),
)
VERBOSE = Option(
    "verbose",
    BOOL,
    False,
    "deprecated, no effect; use --log-level",
    in_file=False,
    notice="is deprecated and has no effect; use --log-level",
)
HTTP_IDLE_TIMEOUT = Option(
    "http-idle-timeout",
    DURATION,
    650 * SECOND,
    "time after which an idle HTTP connection is closed; set it above a load balancer's idle "
    "timeout",
    rule=Rule(">= 1s", lambda value: value >= SECOND),
)
DEBUG_REMOTE = Option(
    "debug-remote",
    BOOL,
    False,
    "also answer /debug requests from other machines",
    guard=True,
)


def auth_file(daemon: str) -> Option[str]:
    """Return the --auth-file option for nsqd or nsqlookupd, whose users are programs."""
    return Option(
        "auth-file",
        STRING,
        "",
        f"INI or TOML users file with permissions; without it, HTTP requests to {daemon}"
        " are not authenticated",
        guard=True,
    )


def log_prefix(daemon: str) -> Option[str]:
    return Option("log-prefix", STRING, f"[{daemon}] ", "prefix of every log line")


def refuse(settings: Settings, text: str, name: str = "") -> StartError:
    """Return the error for an invalid option, with the place where it was set."""
    where = settings.where(name)
    return StartError(f"failed to instantiate {settings.table.daemon} - {text}{where}")


def check_auth_file(settings: Settings) -> None:
    """Raise StartError for an empty --auth-file flag, which an unset variable may cause.

    An empty flag would silently turn authorization off. In a configuration file, empty is the
    default, as in the sample.
    """
    is_flag = "auth_file" in settings.given and not settings.where("auth_file")
    if is_flag and not settings["auth_file"]:
        text = "--auth-file is empty: set it to a users file, or omit the option"
        raise refuse(settings, text)


def obey_rules(settings: Settings, names: Iterable[str]) -> None:
    """Raise StartError if one of these options violates its rule.

    The error then also covers all other options, so that one start shows all violations.
    """
    errors = _violations(settings, names)
    if errors:
        others = [name for name in settings.values if name not in names]
        raise all_of([*errors, *_violations(settings, others)])


def _violations(settings: Settings, names: Iterable[str]) -> list[StartError]:
    options = [settings.table.by_name[name] for name in names]
    return [
        refuse(settings, f"--{option.flag} must be {option.rule.text}", option.name)
        for option in options
        if option.rule and not option.rule.holds(settings[option.name])
    ]
