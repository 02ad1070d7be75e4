"""Typed calls between the processes of one nsqd: arguments, result, and what runs at the far end.

A call is a frozen dataclass. Its fields are the arguments, `run` executes in the other process, and
`Result` is what the caller gets. The control channel carries the name of the class and the fields
as JSON, so a call needs no other declaration. Owns that encoding; knows no topic, no worker and no
master.
"""

from collections.abc import Callable
from dataclasses import fields
from types import UnionType
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast, get_args, get_type_hints

from nsqcy.process.control import Answer, RemoteError, Request

Target = TypeVar("Target", contravariant=True)
Result = TypeVar("Result")
Ask = Callable[..., Answer]

Refusal = Literal[
    "TOPIC_NOT_FOUND",
    "CHANNEL_NOT_FOUND",
    "MESSAGE_NOT_FOUND",
    "CHANNEL_EXISTS",
    "TOO_MANY_TOPICS",
    "NOT_READ",
]


class Refused(Exception):
    """The call changed nothing and returned nothing; the code says why, in every process."""

    def __init__(self, code: Refusal) -> None:
        super().__init__(code)
        self.code = code


class Call(Generic[Target, Result]):
    """Runs at a `Target`: what the process at the far end offers to calls of this kind.

    A direct subclass is a kind of call with a registry of its own; classes below it are the calls.
    """

    kinds: ClassVar[dict[str, type[Any]]]
    timeout: ClassVar[float]
    """Seconds that the caller waits."""
    returns_bytes: ClassVar[bool] = False
    """Whether the result travels beside the JSON."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Call in cls.__bases__:
            cls.kinds = {}
        else:
            cls.kinds[cls.__name__] = cls

    def run(self, target: Target) -> Result:
        """Do it, in a greenlet that may wait; raise Refused if it cannot be done."""
        raise NotImplementedError

    @classmethod
    def decode(cls, request: Request) -> Self:
        """The call that a request carries; ValueError for a method that is none of this kind."""
        call = cls.kinds.get(request.method)
        if call is None:
            raise ValueError(f"there is no method {request.method}")
        types = _types(call)
        arguments = {name: _restored(types[name], each) for name, each in request.args.items()}
        return cast("Self", call(**arguments))

    def serve(self, target: Target) -> Answer:
        """Run for another process."""
        result: Any = self.run(target)
        return Answer(blob=result) if self.returns_bytes else Answer(result)

    def send(self, ask: Ask, worker: int | None) -> Result:
        """Have it run in another process; `ask` is `MasterLink.ask`. Raises what that raises."""
        arguments = {name: getattr(self, name) for name in _types(type(self))}
        try:
            answer = ask(worker, type(self).__name__, self.timeout, **arguments)
        except RemoteError as error:
            if str(error) in get_args(Refusal):
                raise Refused(cast("Refusal", str(error))) from None
            raise
        return cast("Result", answer.blob if self.returns_bytes else answer.value)


def _types(call: type[Any]) -> dict[str, Any]:
    """Of the fields, in their order."""
    hints = get_type_hints(call)
    return {each.name: hints[each.name] for each in fields(call)}


def _restored(kind: Any, value: Any) -> Any:
    """JSON makes a list of every tuple."""
    if not isinstance(value, list):
        return value
    for each in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if hasattr(each, "_fields"):
            types = get_type_hints(each).values()
            return each(*(_restored(*pair) for pair in zip(types, value, strict=True)))
        if (getattr(each, "__origin__", each)) is tuple:
            return tuple(value)
    return value
