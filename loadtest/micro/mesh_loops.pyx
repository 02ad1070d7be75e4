"""The inner loops of bench_mesh.py: what a session does with a stream, without Python."""

from libc.stdlib cimport calloc, free
from nsqcy.ipc.mesh cimport Mesh, Stream, StreamEnd


cdef class CountingEnd(StreamEnd):
    cdef public Stream stream
    cdef public Py_ssize_t got

    cdef int on_data(self, const unsigned char *data, size_t n) except -1:
        self.got += n
        self.stream.consumed(n)
        return 0


def send(Stream stream, size_t size, Py_ssize_t times):
    """Send up to `times` pieces of `size` bytes; return how many were sent completely."""
    cdef:
        unsigned char *data = <unsigned char *> calloc(size, 1)
        Py_ssize_t done = 0
    try:
        while done < times and <size_t> stream._credit >= size:
            stream.send(data, size)
            done += 1
    finally:
        free(data)
    return done


def both_ways(Mesh a, Mesh b, Stream stream, size_t size, Py_ssize_t batch, Py_ssize_t total):
    """Run turns of two workers in one thread: `batch` pieces per turn, `total` pieces overall."""
    cdef Py_ssize_t done = 0
    while done < total:
        done += send(stream, size, min(batch, total - done))
        a.flush()
        b.drain(1 << 30)
        b.flush()
        a.drain(1 << 30)
