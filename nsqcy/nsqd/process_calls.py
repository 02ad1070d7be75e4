"""Typed calls between the processes of one nsqd: arguments, result, and the code that the other
process runs.

The fields of a call are the arguments, `run` executes in the other process, and its `Result` is
returned to the caller. The control channel carries the class name and the fields as JSON, so a call
needs no other declaration. The fields `blob` and `fds` travel alongside the JSON. `notify` sends a
call that has no result. This module owns the encoding; it does not depend on
topics, workers or the master.
"""

import os
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from nsqcy.process import ancillary
from nsqcy.process.control import Answer, Channel, RemoteError, Request

Target = TypeVar("Target", contravariant=True)
Result = TypeVar("Result")

Refusal = Literal[
    "TOPIC_NOT_FOUND",
    "CHANNEL_NOT_FOUND",
    "MESSAGE_NOT_FOUND",
    "CHANNEL_EXISTS",
    "TOO_MANY_TOPICS",
    "NOT_READ",
    "NOT_A_DEAD_LETTER",
    "FORBIDDEN",
    "REDRIVE_UNDER_WAY",
    "TOO_MANY_MESSAGES",
    "NO_KEY_RULES",
    "TOO_MANY_PAUSED_KEYS",
    "TOO_MANY_EMPTIED_KEYS",
]


class Refused(Exception):
    """The call changed nothing and returned nothing. `code` has the same meaning in all
    processes."""

    def __init__(self, code: Refusal) -> None:
        super().__init__(code)
        self.code = code


@dataclass_transform(frozen_default=True)
class Call(Generic[Target, Result]):
    """A call that runs at a `Target`, the other process's interface for this kind of call.

    Each direct subclass is a kind of call with its own registry; the calls are subclasses of a
    kind. They look like frozen dataclasses, but have no methods that `dataclasses` would have to
    compile: compiling them for all calls of nsqd would take a tenth of its startup time.
    """

    kinds: ClassVar[dict[str, type[Any]]]
    timeout: ClassVar[float | None]
    """Seconds that the caller waits; None: until the other process answers or exits."""
    returns: ClassVar[Literal["value", "blob", "answer"]] = "value"
    """Encoding of the result: as JSON, as bytes, or as an `Answer` with both."""

    def __init__(self, *args: Any, **named: Any) -> None:
        names = _types(type(self))
        values = dict(zip(names, args, strict=False)) | named
        for name in names:
            if name not in values and hasattr(self, name):
                values[name] = getattr(self, name)
        if values.keys() != names.keys() or len(args) + len(named) > len(values):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no arguments'}")
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({shown})"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Call in cls.__bases__:
            cls.kinds = {}
        else:
            cls.kinds[cls.__name__] = cls

    def run(self, target: Target) -> Result:
        """Execute the call in a greenlet that may block. Raises Refused if the call cannot be
        executed."""
        raise NotImplementedError

    @classmethod
    def decode(cls, request: Request) -> Self:
        """Return the call in a request. Raises ValueError if the method belongs to a different
        kind."""
        call = cls.kinds.get(request.method)
        if call is None:
            raise ValueError(f"unknown method {request.method}")
        types = _types(call)
        arguments = {name: _restored(types[name], each) for name, each in request.args.items()}
        beside = {"blob": request.blob, "fds": request.fds}
        arguments |= {name: each for name, each in beside.items() if name in types}
        return cast("Self", call(**arguments))

    def serve(self, target: Target) -> Answer:
        """Run the call on behalf of another process."""
        result: Any = self.run(target)
        if self.returns == "answer":
            return cast("Answer", result)
        return Answer(blob=result) if self.returns == "blob" else Answer(result)

    def send(self, channel: Channel, to: int | None = None) -> Result:
        """Run the call at the other end of the channel, or in worker `to`. Raises Refused and the
        exceptions of `Channel.call`."""
        try:
            answer = channel.call(type(self).__name__, self.timeout, to=to, **self._arguments())
        except RemoteError as error:
            if str(error) in get_args(Refusal):
                raise Refused(cast("Refusal", str(error))) from None
            raise
        if self.returns == "answer":
            return cast("Result", answer)
        return cast("Result", answer.blob if self.returns == "blob" else answer.value)

    def notify(self, channel: Channel) -> None:
        """Run the call at the other end of the channel, without a result."""
        channel.notify(type(self).__name__, **self._arguments())

    def duplicate(self) -> Self:
        """Return the same call with duplicated descriptors: each channel closes the descriptors it
        sends."""
        arguments = self._arguments()
        if "fds" not in arguments:
            return self
        return type(self)(**arguments | {"fds": tuple(map(os.dup, arguments["fds"]))})

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _types(type(self))}


def serve(request: Request, *offers: tuple[type[Call[Any, Any]], Any]) -> Answer:
    """Run a request as a call of the first matching kind, at that kind's target. Raises ValueError
    if no kind matches."""
    for kind, target in offers:
        if request.method in kind.kinds:
            return kind.decode(request).serve(target)
    ancillary.close_all(request.fds)
    raise ValueError(f"unknown method {request.method}")


def _types(call: type[Any]) -> dict[str, Any]:
    """Return the fields in order, each with its type. Evaluates the hints of a class once, because
    that takes longer than the rest of a call."""
    found = _TYPES.get(call)
    if found is None:
        hints = get_type_hints(call)
        found = _TYPES[call] = {
            name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar
        }
    return found


_TYPES: dict[type[Any], dict[str, Any]] = {}


def _restored(kind: Any, value: Any) -> Any:
    """Convert to JSON types: a tuple becomes a list, and every key a string."""
    if isinstance(value, dict) and get_args(kind)[:1] == (int,):
        return {int(key): each for key, each in value.items()}
    if not isinstance(value, list):
        return value
    for each in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if hasattr(each, "_fields"):
            types = get_type_hints(each).values()
            return each(*(_restored(*pair) for pair in zip(types, value, strict=True)))
        if (getattr(each, "__origin__", each)) is tuple:
            return tuple(value)
    return value
