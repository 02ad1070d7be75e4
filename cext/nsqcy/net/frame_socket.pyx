"""A plain socket that carries frames between nsqds: a length, a type, and a payload.

Owns the buffers, the watchers and the socket calls, but not the descriptor. Independent of what the
frames mean. The data of a bulk frame is received where it stays: in its own buffer, which is as
large as the data and aligned for records. Nothing here blocks or switches.
"""

cdef extern from "sys/socket.h" nogil:
    ctypedef struct msghdr "struct msghdr":
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int shutdown(int fd, int how)
    const int MSG_NOSIGNAL
    const int MSG_DONTWAIT
    const int SHUT_RDWR

cdef extern from "sys/uio.h" nogil:
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len

cdef enum:
    READ = 1                    # libev's flags
    WRITE = 2
    FRAME_HEAD = 5              # bytes of the length and the type
    NAME_SIZE = 2               # bytes of the length of a bulk frame's name
    SCRATCH = 16384             # bytes; a bulk frame copies at most as many
    MAX_INPUT = 1048576         # maximum bytes to receive per event, so that other work also runs
    FRAME_PIECES = 64           # maximum pieces per send
    MIN_CHUNK = 16384           # minimum bytes of data for which memory comes in chunks ...
    CHUNK = 262144              # ... of this size
    SPARE_CHUNKS = 8            # maximum unused chunks that are kept

# The C library would return the memory of each frame to the kernel, which clears it for the next.
cdef uint8_t *spare_chunks[SPARE_CHUNKS]
cdef int spare_count = 0


@cython.final
cdef class FrameData:
    """The data of a bulk frame: a writable buffer."""

    cdef uint8_t *memory
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        global spare_count
        self.size = size
        if MIN_CHUNK <= size <= CHUNK and spare_count:
            spare_count -= 1
            self.memory = spare_chunks[spare_count]
        else:
            self.memory = <uint8_t *>malloc(CHUNK if MIN_CHUNK <= size <= CHUNK else max(size, 1))
            if self.memory is NULL:
                raise MemoryError

    def __dealloc__(self):
        global spare_count
        if MIN_CHUNK <= self.size <= CHUNK and spare_count < SPARE_CHUNKS:
            spare_chunks[spare_count] = self.memory
            spare_count += 1
        else:
            free(self.memory)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, 0, flags)


@cython.final
cdef class FrameSocket:
    """A connected, non-blocking stream socket that carries frames.

    A bulk frame's payload begins with a head of fixed size and a name, whose length is in the
    head's first two bytes; the data follows.
    """

    cdef int fd
    cdef object ev                  # the hub's loop
    cdef object reader              # io watchers
    cdef object writer
    cdef object received
    cdef object ended
    cdef object later
    cdef uint8_t bulk
    cdef size_t bulk_head
    cdef size_t maximum
    cdef bint is_due                # whether a flush will be called
    cdef list parts                 # unsent bytes
    cdef size_t sent                # bytes of the first part that were sent
    cdef readonly size_t queued
    cdef str error                  # why sending failed
    cdef uint8_t scratch[SCRATCH]   # the beginning of the next frame
    cdef size_t held
    cdef size_t used                # bytes of `held` that are no longer needed
    cdef uint8_t kind               # type of the frame that is being received into `data`
    cdef bytes head
    cdef FrameData data
    cdef size_t filled

    def __init__(self, int fd, ev, received, ended, later, size_t maximum, uint8_t bulk,
                 size_t bulk_head):
        """
        ev: the hub's loop
        received: called with the type of a frame, its payload up to the data of a bulk frame, and
            this data; None for any other frame
        ended: called with the reason when the connection has ended; call close()
        later: receives the function that sends the output; calls it before the hub polls again
        maximum: limit on a payload, in bytes
        bulk: type of the bulk frames
        bulk_head: size of a bulk frame's head
        """
        self.fd = fd
        self.ev = ev
        self.received = received
        self.ended = ended
        self.later = later
        self.maximum = maximum
        self.bulk = bulk
        self.bulk_head = bulk_head
        self.parts = []
        self.reader = ev.io(fd, READ)

    def start(self):
        """Start receiving."""
        self.reader.start(self.on_readable)

    def close(self):
        """Stop using the descriptor. Further calls do nothing."""
        if self.fd < 0:
            return
        self.fd = -1
        self.reader.stop()
        self.reader.close()
        self.watch_output(False)
        self.parts.clear()
        self.data = None
        self.queued = 0

    # -- output

    def send(self, tuple parts not None):
        """Queue buffers. Their memory may move until they are sent."""
        if self.fd < 0:
            return
        for part in parts:
            if part:
                self.parts.append(part)
                self.queued += len(part)
        if not self.is_due and self.writer is None:
            self.is_due = True
            self.later(self.flush)

    def flush(self):
        """Send as much of the output as the socket accepts."""
        cdef iovec vector[FRAME_PIECES]
        cdef msghdr message
        cdef size_t total
        cdef ssize_t n
        cdef int count
        self.is_due = False
        while self.fd >= 0 and self.parts:
            count = self.pieces(vector, &total)
            memset(&message, 0, sizeof(msghdr))
            message.msg_iov = vector
            message.msg_iovlen = count
            n = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if n < 0:
                if errno != EAGAIN and errno != EINTR:
                    self.fail(errno)
                    return
                n = 0
            self.remove(n)
            if <size_t>n < total:
                self.watch_output(True)
                return
        self.watch_output(False)

    cdef int fail(self, int error) except -1:
        """End the connection: the next event reports it."""
        self.error = os.strerror(error)
        self.parts.clear()
        self.watch_output(False)
        shutdown(self.fd, SHUT_RDWR)
        return 0

    cdef int pieces(self, iovec *vector, size_t *total) except -1:
        """List unsent bytes; return the number of pieces."""
        cdef size_t skipped = self.sent
        cdef Py_buffer view
        cdef int count = 0
        total[0] = 0
        for part in self.parts:
            if count == FRAME_PIECES:
                break
            PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
            vector[count].iov_base = <uint8_t *>view.buf + skipped
            vector[count].iov_len = view.len - skipped
            PyBuffer_Release(&view)     # the list keeps the part, and nothing runs before the send
            total[0] += vector[count].iov_len
            skipped = 0
            count += 1
        return count

    cdef int remove(self, size_t n) except -1:
        """Remove bytes that were sent."""
        cdef Py_ssize_t whole = 0
        cdef size_t size
        self.queued -= n
        self.sent += n
        for part in self.parts:
            size = len(part)
            if self.sent < size:
                break
            self.sent -= size
            whole += 1
        del self.parts[:whole]
        return 0

    cdef int watch_output(self, bint on) except -1:
        if on and self.writer is None:
            self.writer = self.ev.io(self.fd, WRITE)
            self.writer.start(self.flush)
        elif not on and self.writer is not None:
            self.writer.stop()
            self.writer.close()
            self.writer = None
        return 0

    # -- input

    def on_readable(self):
        """Receive what has arrived, up to a limit; the next poll reports the rest."""
        cdef size_t left = MAX_INPUT
        cdef size_t room
        cdef ssize_t n
        while self.fd >= 0:
            n = self.receive(&room)
            if n > 0:
                try:
                    self.accept(n)
                except BaseException as error:
                    # Later frames may depend on this one.
                    self.ended(type(error).__name__)
                    raise
            elif n == 0:
                self.ended(self.error or "connection closed")
            elif errno != EAGAIN and errno != EINTR:
                self.ended(os.strerror(errno))
            if n < <ssize_t>room or <size_t>n >= left:
                return
            left -= n

    cdef ssize_t receive(self, size_t *room) noexcept:
        """Receive into the data of the current frame, and then into the scratch buffer."""
        cdef iovec vector[2]
        cdef msghdr message
        cdef int count = 0
        room[0] = 0
        if self.data is not None:
            vector[0].iov_base = self.data.memory + self.filled
            vector[0].iov_len = <size_t>self.data.size - self.filled
            room[0] = vector[0].iov_len
            count = 1
        vector[count].iov_base = self.scratch + self.held
        vector[count].iov_len = SCRATCH - self.held
        room[0] += vector[count].iov_len
        memset(&message, 0, sizeof(msghdr))
        message.msg_iov = vector
        message.msg_iovlen = count + 1
        return recvmsg(self.fd, &message, MSG_DONTWAIT)

    cdef int accept(self, size_t n) except -1:
        cdef size_t step
        if self.data is not None:
            step = min(n, <size_t>self.data.size - self.filled)
            self.filled += step
            n -= step
            self.held = n
            self.deliver_data()
        else:
            self.held += n
        return self.split()

    cdef int split(self) except -1:
        """Deliver the frames in the scratch buffer, and keep the beginning of the next one."""
        try:
            while self.fd >= 0 and self.take_frame():
                pass
        finally:
            self.held -= self.used
            memmove(self.scratch, self.scratch + self.used, self.held)
            self.used = 0

    cdef bint take_frame(self) except -1:
        """Deliver the first frame, or begin to receive it into its own buffer. Return False if
        nothing is left, or if more bytes are needed to decide."""
        cdef const uint8_t *data = self.scratch + self.used
        cdef size_t n = self.held - self.used
        cdef size_t length, step
        cdef size_t head = 0
        if n < FRAME_HEAD:
            return False
        length = load_be32(data)
        self.kind = data[4]
        data += FRAME_HEAD
        n -= FRAME_HEAD
        if length > self.maximum:
            self.ended(f"frame of {length} bytes: at most {self.maximum} are allowed")
            return False
        if self.kind == self.bulk and length >= self.bulk_head:
            if n < NAME_SIZE:
                return False
            head = min(length, self.bulk_head + load_be16(data))
            if head > SCRATCH - FRAME_HEAD:
                self.ended("malformed frame")
                return False
            if n < head:
                return False
        step = min(n, length)
        self.used += FRAME_HEAD + step
        self.head = PyBytes_FromStringAndSize(<const char *>data, head)
        self.data = FrameData(length - head)
        self.filled = step - head
        memcpy(self.data.memory, data + head, self.filled)
        self.deliver_data()
        return True

    cdef int deliver_data(self) except -1:
        """Deliver the frame if it is complete."""
        cdef FrameData data = self.data
        cdef bytes head = self.head
        if self.filled < <size_t>data.size:
            return 0
        self.data = None
        self.head = None
        if head:
            self.received(self.kind, head, data)
        else:
            self.received(
                self.kind, PyBytes_FromStringAndSize(<const char *>data.memory, data.size), None)
        return 0
