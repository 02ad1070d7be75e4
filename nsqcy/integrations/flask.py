"""Flask extension: a producer per process, and a command that runs handlers.

    nsq = Nsq()
    nsq.init_app(app)

    nsq.producer.publish("orders", b"1")    # in a view

    @nsq.consumer("orders", "billing")
    def send_invoice(message: Message) -> None: ...

`flask --app APP nsqcy consume` runs the handlers.
"""

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import click
from flask import Flask, current_app
from flask.cli import AppGroup, with_appcontext

from nsqcy.client import Producer
from nsqcy.integrations.process_producer import ProcessProducer
from nsqcy.integrations.web.recording import Published, RecordingProducer
from nsqcy.integrations.web.settings import Settings, checked_addresses, checked_options
from nsqcy.integrations.web.subscriptions import H, Handler, HandlerKeywords, Subscriptions
from nsqcy.integrations.web.worker import consume, consumers_of

EXTENSION = "nsqcy"
PREFIX = "NSQCY_"
NSQDS = "NSQCY_NSQD_TCP_ADDRESSES"
LOOKUPDS = "NSQCY_LOOKUPD_HTTP_ADDRESSES"
OPTIONS = "NSQCY_OPTIONS"
KEYS = (NSQDS, LOOKUPDS, OPTIONS)


@dataclass(frozen=True, slots=True)
class _State:
    """The state of the extension for one app."""

    settings: Settings
    producer: ProcessProducer
    subscriptions: Subscriptions


class Nsq:
    """The extension. One object may serve several apps; they share its handlers.

    Configuration:

    - NSQCY_NSQD_TCP_ADDRESSES: an address or a list of addresses
    - NSQCY_LOOKUPD_HTTP_ADDRESSES: likewise
    - NSQCY_OPTIONS: the client's options, for the producer and for all consumers
    """

    def __init__(self, app: Flask | None = None) -> None:
        self._subscriptions = Subscriptions(blocking=True)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read the configuration. Does not connect: each process connects with its first publish.

        Raises ValueError and TypeError for unknown keys, and for invalid addresses or options.
        """
        if EXTENSION in app.extensions:
            raise ValueError("the app already has an Nsq extension")
        settings = _settings(app)
        app.extensions[EXTENSION] = _State(
            settings,
            ProcessProducer(
                lambda: Producer(settings.nsqds, settings.lookupds, **settings.producer)
            ),
            self._subscriptions,
        )
        app.cli.add_command(commands)

    @property
    def producer(self) -> Producer:
        """The producer of this process, which all threads share. Needs an app context."""
        return _state(current_app).producer.get()

    def consumer(
        self,
        topic: str,
        channel: str,
        *,
        concurrency: int = 1,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[H], H]:
        """Return a decorator: `flask nsqcy consume` runs the function for messages of a channel.

        The function runs in an app context, in up to `concurrency` threads. Its result answers the
        message, as in Consumer. Options override those of NSQCY_OPTIONS. Raises ValueError, and
        TypeError for unknown options and for coroutine functions.
        """
        return self._subscriptions.registering(topic, channel, concurrency, options)

    @contextlib.contextmanager
    def recorded(self, app: Flask) -> Iterator[list[Published]]:
        """Record an app's messages in a list within the block, and send nothing. For tests."""
        state = _state(app)
        recording = RecordingProducer(**state.settings.producer)
        with state.producer.replaced(recording):
            yield recording.messages


def _consume(names: tuple[str, ...]) -> None:
    """Run the handlers until SIGTERM or SIGINT."""
    app: Any = current_app
    app = app._get_current_object()
    state = _state(app)
    try:
        subscriptions = state.subscriptions.selected(names)
    except LookupError as error:
        raise click.ClickException(f"{error.args[0]}") from error
    consumers = consumers_of(subscriptions, state.settings, functools.partial(_in_context, app))
    click.echo(f"consuming {', '.join(each.name for each in subscriptions)}")
    consume(consumers)
    state.producer.close()


# Functions instead of decorators: without Flask and click, mypy rejects these as untyped.
commands = AppGroup("nsqcy", help="Messages on nsqd.")
commands.add_command(
    click.Command(
        "consume",
        callback=with_appcontext(_consume),
        params=[
            click.Option(
                ["--only", "names"],
                multiple=True,
                metavar="TOPIC/CHANNEL",
                help="Run this handler. May be given several times. Default: all handlers.",
            )
        ],
        help=_consume.__doc__,
    )
)


def _in_context(app: Flask, handler: Handler) -> Handler:
    @functools.wraps(handler)
    def handle(*received: Any) -> Any:
        with app.app_context():
            return handler(*received)

    return handle


def _settings(app: Flask) -> Settings:
    for key in app.config:
        if key.startswith(PREFIX) and key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, 1)
            meant = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(KEYS)}"
            raise ValueError(f"Flask's configuration has an unknown key {key}: {meant}")
    config = app.config
    return Settings(
        *checked_addresses(config.get(NSQDS, ()), config.get(LOOKUPDS, ()), NSQDS),
        *checked_options(config.get(OPTIONS, {}), OPTIONS),
    )


def _state(app: Flask) -> _State:
    state: _State | None = app.extensions.get(EXTENSION)
    if state is None:
        raise RuntimeError("the app has no Nsq extension: call init_app(app)")
    return state
