"""Speed of streams between workers.

    python loadtest/micro/bench_mesh.py

Prints nanoseconds per small piece sent and received in one thread (that is, CPU time with warm
caches), and GB/s of bulk data between two processes. Builds its inner loops, mesh_loops.pyx, in a
temporary directory; requires Cython and the extension modules built in place.
"""

import importlib.util
import mmap
import os
import select
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from nsqcy.ipc.mesh import Mesh, Stream, StreamEnd
from nsqcy.ipc.ring import Shared, format, map_size

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def build() -> ModuleType:
    """Compile mesh_loops.pyx and import it."""
    from Cython.Build import cythonize
    from setuptools import Extension
    from setuptools.dist import Distribution

    out = tempfile.mkdtemp()
    extension = Extension(
        "mesh_loops",
        [str(HERE / "mesh_loops.pyx")],
        include_dirs=[str(ROOT / "cext/include")],
        extra_compile_args=["-O2"],
    )
    modules = cythonize(
        [extension],
        include_path=[str(ROOT / "cext")],
        build_dir=out,
        quiet=True,
        compiler_directives={"language_level": 3},
    )
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib = command.build_temp = out
    command.ensure_finalized()
    command.run()
    path = next(Path(out).rglob("mesh_loops*.so"))
    spec = importlib.util.spec_from_file_location("mesh_loops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker(Mesh):
    """A mesh whose streams only count bytes."""

    ends: list[StreamEnd]
    loops: ModuleType

    def on_open(self, stream: Stream, hello: bytes) -> StreamEnd:
        end = self.loops.CountingEnd()
        end.stream = stream
        self.ends.append(end)
        return end


def make(shared: Shared, index: int, eventfds: list[int], loops: ModuleType) -> Worker:
    worker = Worker(shared, index, eventfds)
    worker.ends, worker.loops = [], loops
    worker.peer_up(1 - index, 0)
    return worker


def small(loops: ModuleType, size: int, batch: int, total: int = 2_000_000) -> float:
    """Return the nanoseconds per piece, sent and received."""
    memory = mmap.mmap(-1, map_size(2))
    format(memory, 2)
    shared = Shared(memory, 2)
    a, b = (make(shared, index, [-1, -1], loops) for index in range(2))
    end = loops.CountingEnd()
    end.stream = a.open(1, b"", end)
    loops.both_ways(a, b, end.stream, size, batch, 10_000)
    start = time.perf_counter()
    loops.both_ways(a, b, end.stream, size, batch, total)
    elapsed = time.perf_counter() - start
    assert b.ends[0].got == size * (total + 10_000)
    return elapsed / total * 1e9


def turns(worker: Worker, eventfd: int, step) -> None:
    """Run a worker's event loop until `step` has nothing more to do."""
    poll = select.poll()
    poll.register(eventfd, select.POLLIN)
    while step():
        worker.flush()
        if worker.prepare_sleep():
            poll.poll()
            worker.woken()
        worker.drain(1 << 20)
    worker.flush()


def bulk(loops: ModuleType, piece: int, total: int) -> float:
    """Return the throughput from one process to another, in bytes per nanosecond (GB/s)."""
    fd = os.memfd_create("rings")
    os.truncate(fd, map_size(2))
    format(mmap.mmap(fd, map_size(2)), 2)
    eventfds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    count = total // piece
    child = os.fork()
    if not child:
        reader = make(Shared(fd, 2), 1, eventfds, loops)
        turns(reader, eventfds[1], lambda: not reader.ends or not reader.ends[0].stream.closed)
        os._exit(0)
    writer = make(Shared(fd, 2), 0, eventfds, loops)
    end = loops.CountingEnd()
    end.stream = writer.open(1, b"", end)
    left = count

    def step() -> bool:
        nonlocal left
        left -= loops.send(end.stream, piece, left)
        if not left:
            end.stream.close()
        return end.stream.peer is not None

    start = time.perf_counter()
    turns(writer, eventfds[0], step)
    _, status = os.waitpid(child, 0)
    elapsed = time.perf_counter() - start
    for number in (fd, *eventfds):
        os.close(number)
    assert status == 0
    return count * piece / elapsed / 1e9


def main() -> None:
    loops = build()
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    for size, batch in ((240, 1), (240, 10), (240, 100), (240, 500), (16, 500), (1000, 100)):
        best = min(small(loops, size, batch) for _ in range(3))
        print(f"{size:6} bytes, {batch:4} a turn: {best:7.1f} ns sent and received")
    for piece in (240, 4096, 65536):
        rate = max(
            bulk(loops, piece, 4_000_000_000 if piece > 1000 else 1_000_000_000) for _ in range(2)
        )
        print(f"{piece:6} bytes a send, process to process: {rate:5.2f} GB/s")


if __name__ == "__main__":
    main()
