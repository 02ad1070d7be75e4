"""A copy that another worker feeds: applies the stream and confirms the stored changes."""

from nsqcy.copies.fetching import Done, Fetches, Part
from nsqcy.copies.messages import (
    Align,
    Alive,
    Confirm,
    Delete,
    Fetch,
    Fetched,
    Filled,
    FromOwner,
    Have,
    Received,
    Rename,
    Truncate,
    Write,
)
from nsqcy.copies.ports import Copy, Host


class Holder:
    """One stream from an owner, from the accepted offer until the stream ends."""

    def __init__(
        self, group_id: str, owner: str, epoch: int, copy: Copy, host: Host, now: float
    ) -> None:
        self.group_id = group_id
        self.owner = owner
        self.epoch = epoch
        self.copy = copy
        self.host = host
        self.heard = now
        self.has_ended = False
        self.is_live = False
        """Whether the copy has been filled, and receives each change as it is made."""
        self._owner_answers = False
        self._fetches = Fetches(lambda _, message: self._reply(message))
        copy.begin_filling()
        host.reply(owner, group_id, Have(copy.offered()))

    def received(self, message: FromOwner, now: float) -> None:
        self.heard = now
        match message:
            case Write(path, offset, data, position):
                self.copy.write(path, offset, data)
                if position < 0:
                    self.host.reply(self.owner, self.group_id, Received())
                else:
                    self._store(position)
            case Truncate(path, size, position):
                self.copy.truncate(path, size)
                self._store(position)
            case Rename(path, to, position):
                self.copy.rename(path, to)
                self._store(position)
            case Delete(path, position):
                self.copy.delete(path)
                self._store(position)
            case Align(path, size):
                self.copy.align(path, size)
            case Filled(paths, position):
                self.copy.fill(paths, self.epoch)
                self.is_live = True
                self._store(position)
            case Alive(fetches):
                self._owner_answers = fetches
            case Fetch():
                self.copy.answer(message, self._reply)
            case Fetched():
                self._fetches.received(self.owner, message, now)

    def fetch(self, part: Part, done: Done, now: float) -> None:
        """Fetch a part of a file from the owner. Calls done(outcome, data), at once or later."""
        nodes = [self.owner] if self._owner_answers else []
        self._fetches.fetch(part, nodes, done, now, has_everyone=False)

    def tick(self, now: float, timeout: float) -> None:
        self._fetches.tick(now, timeout)

    def end(self) -> None:
        """Stop confirming."""
        self.has_ended = True
        self._fetches.end()

    def _reply(self, message: Fetch | Fetched) -> bool:
        if not self.has_ended:
            self.host.reply(self.owner, self.group_id, message)
        return not self.has_ended

    def _store(self, position: int) -> None:
        self.copy.store(lambda: self.stored(position))

    def stored(self, position: int) -> None:
        """Confirm a change that the copy has stored, and all earlier ones."""
        if not self.has_ended:
            self.host.reply(self.owner, self.group_id, Confirm(position))
