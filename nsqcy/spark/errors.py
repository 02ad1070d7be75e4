"""What goes wrong, in one line that begins with `nsq: ` and holds no secret."""


class NsqError(Exception):
    """The last line of what Spark shows."""

    def __str__(self) -> str:
        return f"nsq: {self.args[0]}"


class OptionError(NsqError):
    """An option, a schema or a checkpoint that cannot be."""


class Unreachable(NsqError):
    """An nsqd or lookupd did not answer. It may do so later."""


class Silent(Unreachable):
    """An nsqd takes connections, and answers nothing within the time it has: it may hang."""


class Refused(NsqError):
    """An nsqd answered that it will not, and asking again does not help."""


class DataLoss(NsqError):
    """Rows that were to be read are gone."""


class CorruptBlock(NsqError):
    """What came is not what an nsqd sends."""


class NoTopic(NsqError):
    """That nsqd has no such topic, or no log of it."""


class LogUnknown(NsqError):
    """That nsqd has no log of that log_id."""


class LogGone(NsqError):
    """Retention has let go of the record that was asked for; `first_seq` is the first there is."""

    @property
    def first_seq(self) -> int:
        return int(self.args[1])


class LogRange(NsqError):
    """The log ends before the record that was asked for; `next_seq` is behind its last."""

    @property
    def next_seq(self) -> int:
        return int(self.args[1])
