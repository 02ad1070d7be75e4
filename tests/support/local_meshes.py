"""Several meshes in one process, which sleep and wake as workers do."""

import json
import mmap

from nsqcy.ipc.core import BytesEnd, Mesh, Shared, Stream, format_shared, map_size

WINDOW = 262144


class End(BytesEnd):
    """Handler that records all events. By default, it consumes immediately."""

    def __init__(self, lazy: bool = False) -> None:
        self.stream: Stream | None = None
        self.worker: Worker | None = None
        self.lazy = lazy
        self.sent = bytearray()
        self.got = bytearray()
        self.consumed = 0
        self.writables = 0
        self.closes: list[bool] = []
        self.asked_to_close = False

    def write(self, data: bytes) -> int:
        self.worker.stir()
        taken = self.stream.write(data)
        self.sent += data[:taken]
        return taken

    def consume(self, n: int) -> None:
        n = min(n, len(self.got) - self.consumed)
        self.consumed += n
        self.worker.stir()
        self.stream.consumed(n)

    def data(self, data: bytes) -> None:
        assert not self.closes and not self.asked_to_close
        self.got += data
        assert len(self.got) - self.consumed <= WINDOW
        if not self.lazy:
            self.consume(len(data))

    def writable(self) -> None:
        assert self.stream.room > 0
        self.writables += 1

    def closed(self, aborted: bool) -> None:
        assert self.stream.closed
        self.closes.append(aborted)

    def close(self) -> None:
        self.asked_to_close = True
        self.worker.stir()
        self.stream.close()

    def abort(self) -> None:
        self.asked_to_close = True
        self.worker.stir()
        self.stream.abort()


class Gone:
    """A stream that was already closed at this end when its process handed over."""

    peer = None
    closed = True
    room = 0

    def write(self, data: bytes) -> int:
        return 0

    def consumed(self, n: int) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close


class Worker(Mesh):
    def __init__(self, shared: Shared, index: int, cluster: "Cluster") -> None:
        super().__init__(shared, index, [-1] * shared.workers)
        self.cluster = cluster
        self.asleep = False
        self.rung = False
        self.errors: list[Exception] = []
        self.broken: list[tuple[int, str]] = []
        self.make_end = End
        self.ends: list[End] = []

    def on_open(self, stream: Stream, hello: bytes) -> End | None:
        if hello.startswith(b"no"):
            return None
        end = self.make_end()
        end.stream, end.worker = stream, self
        self.ends.append(end)
        self.cluster.accepted[hello] = end
        return end

    def on_error(self, stream: Stream | None, error: Exception) -> None:
        self.errors.append(error)

    def on_broken(self, peer: int, reason: str) -> None:
        self.broken.append((peer, reason))

    def wake(self, peer: int) -> int:
        assert not self.cluster.workers[peer].rung
        self.cluster.workers[peer].rung = True
        return 0

    def turn(self, budget: int = 1 << 30) -> None:
        self.rung = False
        self.asleep = False
        self.awake()
        self.drain(budget)
        self.flush()
        self.asleep = self.prepare_sleep()

    def stir(self) -> None:
        """End the poll, as an event from a source other than a peer would."""
        self.asleep = False
        self.awake()


class Cluster:
    def __init__(self, workers: int) -> None:
        self.map = mmap.mmap(-1, map_size(workers))
        format_shared(self.map, workers)
        self.shared = Shared(self.map, workers)
        self.accepted: dict[bytes, End] = {}
        self.workers = [Worker(self.shared, index, self) for index in range(workers)]
        for worker in self.workers:
            for peer in range(workers):
                if peer != worker.index:
                    assert worker.peer_up(peer, 0)

    def open(self, home: int, owner: int, hello: bytes, end: End | None = None) -> End:
        end = End() if end is None else end
        end.worker = self.workers[home]
        end.worker.stir()
        end.stream = end.worker.open(owner, hello, end)
        end.worker.ends.append(end)
        return end

    def pair(self, home: int, owner: int, hello: bytes = b"hello") -> tuple[End, End]:
        end = self.open(home, owner, hello)
        self.settle()
        return end, self.accepted[hello]

    def hand_over(self, index: int, generations: list[int]) -> None:
        """Another process continues the streams of a worker."""
        old = self.workers[index]
        old.stir()
        packed = json.loads(json.dumps(old.pack()))
        following = Worker(self.shared, index, self)
        self.workers[index] = following
        following.unpack(packed)
        for end in old.ends:
            end.worker = following
            if end.stream.closed:
                end.stream = Gone()
                continue
            end.stream = following.claim(end.stream.peer, end.stream.number, end)
            assert end.stream is not None
            following.ends.append(end)
        following.close_unclaimed()
        for peer in self.workers:
            if peer is not following:
                assert following.peer_up(peer.index, generations[peer.index])

    def settle(self, budget: int = 1 << 30) -> None:
        """Run turns until all workers sleep; a sleeping worker runs only after it has been
        woken."""
        for _ in range(100_000):
            active = [worker for worker in self.workers if worker.rung or not worker.asleep]
            if not active:
                return
            for worker in active:
                worker.turn(budget)
        raise AssertionError("the workers never become idle")
