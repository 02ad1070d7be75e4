"""A copy that another worker feeds: applies the stream, and confirms what is stored."""

from nsqcy.copies.messages import (
    Align,
    Change,
    Confirm,
    Create,
    Delete,
    Filled,
    FromOwner,
    Have,
    Received,
    Records,
)
from nsqcy.copies.ports import Copy, Host


class Holder:
    """One stream of an owner, from the accepted offer to its end."""

    def __init__(
        self, group_id: str, owner: str, epoch: int, copy: Copy, host: Host, now: float
    ) -> None:
        self.group_id = group_id
        self.owner = owner
        self.epoch = epoch
        self.copy = copy
        self.host = host
        self.heard = now
        self._ended = False
        host.reply(owner, group_id, Have(copy.logs()))

    def received(self, message: FromOwner, now: float) -> None:
        self.heard = now
        match message:
            case Records(log, epoch, first, records, position):
                self.copy.append(log, epoch, first, records)
                if position < 0:
                    self.host.reply(self.owner, self.group_id, Received())
                else:
                    self._store(position)
            case Change(log, change, position):
                self.copy.change(log, change)
                self._store(position)
            case Create(log, state, position):
                self.copy.create(log, state)
                self._store(position)
            case Delete(log, position):
                self.copy.delete(log)
                self._store(position)
            case Align(log, first, end):
                self.copy.align(log, first, end)
            case Filled(states, position):
                self.copy.fill(states)
                self._store(position)

    def end(self) -> None:
        """Confirm nothing more."""
        self._ended = True

    def _store(self, position: int) -> None:
        self.copy.store(lambda: self._stored(position))

    def _stored(self, position: int) -> None:
        if not self._ended:
            self.host.reply(self.owner, self.group_id, Confirm(position))
