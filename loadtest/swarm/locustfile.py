"""File for `locust -f`: the users, the shape, and the additions to locust."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from locust import events
from locust.env import Environment

sys.path.insert(0, str(Path(__file__).parents[2]))  # locust loads this file outside its package

from loadtest.swarm import options
from loadtest.swarm.consumers import ConsumeUser
from loadtest.swarm.publishers import BatchUser, DeferUser, HttpUser, PublishUser
from loadtest.swarm.shape import Shape
from loadtest.swarm.wiring import Wiring

__all__ = ["BatchUser", "ConsumeUser", "DeferUser", "HttpUser", "PublishUser", "Shape"]


@events.init_command_line_parser.add_listener
def add_flags(parser: ArgumentParser, **_: Any) -> None:
    options.add(parser)


@events.init.add_listener
def wire(environment: Environment, **_: Any) -> None:
    assert environment.parsed_options is not None
    try:
        options.Options.of(environment.parsed_options)
    except ValueError as error:
        print(f"locust: {error}", file=sys.stderr)
        sys.exit(2)
    Wiring(environment)
