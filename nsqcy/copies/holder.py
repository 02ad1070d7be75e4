"""A copy that another worker feeds: applies the stream and confirms what has been stored."""

from nsqcy.copies.messages import (
    Align,
    Confirm,
    Delete,
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
        self._ended = False
        copy.begin_filling()
        files = {path: each for path, each in copy.files().items() if each.identity is not None}
        host.reply(owner, group_id, Have(files))

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
                self.copy.truncate(path, size)
            case Filled(paths, position):
                self.copy.fill(paths, self.epoch)
                self._store(position)

    def end(self) -> None:
        """Stop confirming."""
        self._ended = True

    def _store(self, position: int) -> None:
        self.copy.store(lambda: self._stored(position))

    def _stored(self, position: int) -> None:
        if not self._ended:
            self.host.reply(self.owner, self.group_id, Confirm(position))
