"""One worker of test_mesh_processes: sends to all peers, receives from all, reports checksums.

Arguments: index, bytes per stream, streams per peer, memfd, eventfds. A poll that times out is a
lost wake-up and ends the process with an error.
"""

import json
import random
import select
import sys
import zlib

from nsqcy.ipc.core import BytesEnd, Mesh, Shared, Stream

STALLED_MS = 30_000
NOISE = random.Random(5).randbytes(1 << 20)


class End(BytesEnd):
    """Both directions of a stream: sent and received data."""

    def __init__(self, total: int, seed: str) -> None:
        self.left = total
        self.chance = random.Random(seed)
        self.sent = self.got = 0
        self.sent_sum = self.got_sum = 0
        self.stream: Stream
        self.is_closed = False

    def pump(self) -> None:
        while self.left:
            size = min(self.left, self.chance.choice((1, 240, 5_000, 100_000)))
            start = self.chance.randrange(len(NOISE) - size)
            taken = self.stream.write(NOISE[start : start + size])
            self.sent_sum = zlib.crc32(NOISE[start : start + taken], self.sent_sum)
            self.sent += taken
            self.left -= taken
            if taken < size:
                return

    def writable(self) -> None:
        self.pump()

    def data(self, data: bytes) -> None:
        self.got += len(data)
        self.got_sum = zlib.crc32(data, self.got_sum)
        self.stream.consumed(len(data))

    def closed(self, aborted: bool) -> None:
        assert not aborted
        self.is_closed = True


class Worker(Mesh):
    def __init__(self, shared: Shared, index: int, eventfds: list[int], total: int) -> None:
        super().__init__(shared, index, eventfds)
        self.total = total
        self.ends: dict[str, End] = {}

    def on_open(self, stream: Stream, hello: bytes) -> End:
        end = self.ends[hello.decode()] = End(self.total, f"answer {hello!r}")
        end.stream = stream
        end.pump()
        return end

    def on_broken(self, peer: int, reason: str) -> None:
        raise AssertionError(f"peer {peer}: {reason}")

    def on_error(self, stream: Stream | None, error: Exception) -> None:
        raise error

    def start(self, streams: int) -> None:
        for peer in range(self.shared.workers):
            if peer == self.index:
                continue
            assert self.peer_up(peer, 0)
            for number in range(streams):
                name = f"{self.index}-{peer}-{number}"
                end = self.ends[name] = End(self.total, name)
                end.stream = self.open(peer, name.encode(), end)
                end.pump()

    def close_streams(self) -> None:
        """Once all data is sent and received, close the streams that this worker opened."""
        for name, end in self.ends.items():
            if name.startswith(f"{self.index}-") and not end.left and end.got == self.total:
                end.stream.close()

    def finished(self, expected: int) -> bool:
        """Return whether every stream has been opened, and has ended."""
        return len(self.ends) == expected and all(
            end.stream.peer is None for end in self.ends.values()
        )


def main() -> None:
    index, total, streams, memfd, *eventfds = map(int, sys.argv[1:])
    worker = Worker(Shared(memfd, len(eventfds)), index, eventfds, total)
    poll = select.poll()
    poll.register(eventfds[index], select.POLLIN)
    worker.start(streams)
    expected = 2 * streams * (len(eventfds) - 1)
    while True:
        worker.drain(1 << 20)
        worker.close_streams()
        worker.flush()
        if worker.finished(expected):
            break
        if worker.prepare_sleep():
            if not poll.poll(STALLED_MS):
                sys.exit("stalled: a wake-up was lost")
            worker.woken()
    print(
        json.dumps(
            {
                name: [end.sent, end.sent_sum, end.got, end.got_sum]
                for name, end in worker.ends.items()
            }
        )
    )


if __name__ == "__main__":
    main()
