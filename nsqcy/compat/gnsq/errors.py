"""gnsq's exceptions."""

from nsqcy import client

__all__ = [
    "ERROR_CODES",
    "NSQAuthDisabled",
    "NSQAuthFailed",
    "NSQBadBody",
    "NSQBadChannel",
    "NSQBadMessage",
    "NSQBadTopic",
    "NSQErrorCode",
    "NSQException",
    "NSQFinishFailed",
    "NSQFrameError",
    "NSQHttpError",
    "NSQInvalid",
    "NSQMPubFailed",
    "NSQNoConnections",
    "NSQPubFailed",
    "NSQPutFailed",
    "NSQRequeueFailed",
    "NSQRequeueMessage",
    "NSQSocketError",
    "NSQTouchFailed",
    "NSQUnauthorized",
    "make_error",
]


class NSQException(Exception):
    """Base class of all errors."""


class NSQRequeueMessage(NSQException):
    """Raised by a handler to requeue its message, with or without backoff."""

    def __init__(self, backoff: bool | None = None) -> None:
        super().__init__()
        self.backoff = backoff


class NSQNoConnections(NSQException):
    """No nsqd is available for publishing."""


class NSQHttpError(NSQException):
    """An HTTP request has failed."""


class NSQSocketError(OSError, NSQException):
    """A connection was lost, or could not be established."""


class NSQFrameError(NSQException):
    """The received bytes are not a frame of NSQ's protocol."""


class NSQErrorCode(NSQException):
    """nsqd returned an error; after a `fatal` error it closes the connection."""

    fatal = True


class NSQInvalid(NSQErrorCode): ...


class NSQBadBody(NSQErrorCode): ...


class NSQBadTopic(NSQErrorCode): ...


class NSQBadChannel(NSQErrorCode): ...


class NSQBadMessage(NSQErrorCode): ...


class NSQPutFailed(NSQErrorCode): ...


class NSQPubFailed(NSQErrorCode): ...


class NSQMPubFailed(NSQErrorCode): ...


class NSQAuthDisabled(NSQErrorCode): ...


class NSQAuthFailed(NSQErrorCode): ...


class NSQUnauthorized(NSQErrorCode): ...


class NSQFinishFailed(NSQErrorCode):
    fatal = False


class NSQRequeueFailed(NSQErrorCode):
    fatal = False


class NSQTouchFailed(NSQErrorCode):
    fatal = False


ERROR_CODES: dict[bytes, type[NSQErrorCode]] = {
    b"E_INVALID": NSQInvalid,
    b"E_BAD_BODY": NSQBadBody,
    b"E_BAD_TOPIC": NSQBadTopic,
    b"E_BAD_CHANNEL": NSQBadChannel,
    b"E_BAD_MESSAGE": NSQBadMessage,
    b"E_PUT_FAILED": NSQPutFailed,
    b"E_PUB_FAILED": NSQPubFailed,
    b"E_MPUB_FAILED": NSQMPubFailed,
    b"E_FINISH_FAILED": NSQFinishFailed,
    b"E_AUTH_DISABLED": NSQAuthDisabled,
    b"E_AUTH_FAILED": NSQAuthFailed,
    b"E_UNAUTHORIZED": NSQUnauthorized,
    b"E_FIN_FAILED": NSQFinishFailed,
    b"E_REQUEUE_FAILED": NSQRequeueFailed,
    b"E_REQ_FAILED": NSQRequeueFailed,
    b"E_TOUCH_FAILED": NSQTouchFailed,
}


def make_error(error_code: bytes) -> NSQErrorCode:
    """Create an exception from the data of an error frame."""
    code, _, description = error_code.partition(b" ")
    return ERROR_CODES.get(code, NSQErrorCode)(description or code)


def error_of(error: BaseException) -> BaseException:
    """Return the exception that gnsq raises for an nsqcy.client error."""
    if isinstance(error, client.NsqdError):
        return make_error(str(error).encode())
    if isinstance(error, client.NoConnection):
        return NSQNoConnections(str(error))
    if isinstance(error, client.ConnectionFailed | client.PublishTimeout):
        return NSQSocketError(str(error))
    if isinstance(error, client.ProtocolError):
        return NSQFrameError(str(error))
    if isinstance(error, client.Error):
        return NSQException(str(error))
    return error
