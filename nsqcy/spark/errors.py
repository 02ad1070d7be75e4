"""A query's errors: each is one line that begins with `nsq: ` and contains no secrets."""


class NsqError(Exception):
    """Return the last line of the error text that Spark shows."""

    def __str__(self) -> str:
        return f"nsq: {self.args[0]}"


class OptionError(NsqError):
    """An option, a schema or a checkpoint is invalid."""


class Unreachable(NsqError):
    """An nsqd or nsqlookupd did not respond. It may do so later."""


class Silent(Unreachable):
    """An nsqd accepts connections but does not respond in time: it may have hung."""


class Refused(NsqError):
    """An nsqd rejected the request, and retrying would not help."""


class CopiedDisk(Refused):
    """Two nsqds have the same log: one of them runs on a copy of the other's data path."""


class DataLoss(NsqError):
    """Rows that must be read no longer exist."""


class CorruptBlock(NsqError):
    """An nsqd sent invalid bytes."""


class NoTopic(NsqError):
    """The nsqd does not have the topic, or has no log for it."""


class LogUnknown(NsqError):
    """The nsqd has no log with this log_id."""


class LogGone(NsqError):
    """Retention removed the requested record; `first_seq` is the first available one."""

    @property
    def first_seq(self) -> int:
        return int(self.args[1])


class LogRange(NsqError):
    """The log ends before the requested record; `next_seq` follows its last record."""

    @property
    def next_seq(self) -> int:
        return int(self.args[1])
