"""TLS for one connection, through the functions of cryptography's OpenSSL.

Owns the bytes of an established connection: none of them pass through Python. pyOpenSSL owns
contexts, handshakes and certificates (nsqcy.nsqd.tls). Independent of sockets.

cryptography links OpenSSL statically and calls it through cffi, which provides the address of each
function. Calling these functions adds no second OpenSSL to a process or a wheel. A pyOpenSSL
connection keeps its `SSL *` and its two BIOs under private names: `attach` checks that they exist.
"""

from cryptography.hazmat.bindings._rust import _openssl

from libc.stdint cimport uint8_t, uintptr_t

from nsqcy.net.core cimport PIECE_SIZE, ByteLayer, ByteQueue

from nsqcy.errors import LayerEnd, LayerError

cdef enum:
    RECORD = 16384              # maximum plaintext bytes per record
    PASSED = 4096               # maximum bytes to pass to OpenSSL at once, unless set otherwise
    ERROR_SSL = 1               # return values of SSL_get_error
    ERROR_WANT_READ = 2
    ERROR_ZERO_RETURN = 6
    RECEIVED_SHUTDOWN = 2

ctypedef int (*SslRead)(void *ssl, void *into, int n) noexcept
ctypedef int (*SslWrite)(void *ssl, const void *data, int n) noexcept
ctypedef int (*SslGetError)(void *ssl, int result) noexcept
ctypedef int (*SslShutdown)(void *ssl) noexcept
ctypedef int (*BioRead)(void *bio, void *into, int n) noexcept
ctypedef int (*BioWrite)(void *bio, const void *data, int n) noexcept
ctypedef long (*BioGetMemData)(void *bio, char **data) noexcept
ctypedef unsigned long (*ErrGetError)() noexcept
ctypedef void (*ErrClearError)() noexcept
ctypedef const char *(*ErrReason)(unsigned long error) noexcept


cdef uintptr_t address_of(str name) except 0:
    return int(_openssl.ffi.cast("uintptr_t", _openssl.ffi.addressof(_openssl.lib, name)))


cdef uintptr_t pointer(data) except 0:
    return int(_openssl.ffi.cast("uintptr_t", data))


cdef SslRead ssl_read = <SslRead>address_of("SSL_read")
cdef SslWrite ssl_write = <SslWrite>address_of("SSL_write")
cdef SslGetError ssl_get_error = <SslGetError>address_of("SSL_get_error")
cdef SslShutdown ssl_shutdown = <SslShutdown>address_of("SSL_shutdown")
cdef BioRead bio_read = <BioRead>address_of("BIO_read")
cdef BioWrite bio_write = <BioWrite>address_of("BIO_write")
cdef BioGetMemData bio_get_mem_data = <BioGetMemData>address_of("BIO_get_mem_data")
cdef ErrGetError err_get_error = <ErrGetError>address_of("ERR_get_error")
cdef ErrClearError err_clear_error = <ErrClearError>address_of("ERR_clear_error")
cdef ErrReason err_reason = <ErrReason>address_of("ERR_reason_error_string")

# Shared by all connections: a piece is read before the next one is decoded.
cdef uint8_t decoded[PIECE_SIZE]


cdef class TlsStream(ByteLayer):
    """One end of a TLS connection."""

    cdef object connection      # pyOpenSSL's object, which owns the pointers
    cdef void *ssl
    cdef void *incoming         # memory BIOs
    cdef void *outgoing
    cdef ByteQueue input        # input not yet passed to OpenSSL
    cdef public size_t passed   # maximum bytes to pass to OpenSSL at once; OpenSSL's buffer size
    cdef public size_t enough   # decode() starts no further record once it has this number of bytes
    cdef bint dry               # OpenSSL needs input to continue
    cdef object failure         # error that every later call to decode raises again

    def __cinit__(self, *args, **named):
        self.input = ByteQueue()
        self.dry = True
        self.passed = PASSED
        self.enough = PIECE_SIZE

    def attach(self, connection not None):
        """Use this pyOpenSSL connection, which must have been created without a socket.

        Raises RuntimeError if pyOpenSSL does not keep its pointers under the expected names.
        """
        try:
            self.ssl = <void *>pointer(connection._ssl)
            self.incoming = <void *>pointer(connection._into_ssl)
            self.outgoing = <void *>pointer(connection._from_ssl)
        except (AttributeError, TypeError) as error:
            raise RuntimeError(
                f"this version of pyOpenSSL is not supported ({error}): "
                f"install a version that nsqcy supports") from error
        self.connection = connection

    def release(self):
        """Free OpenSSL's state: the connection has ended, and only `take` and `close` may
        follow."""
        self.ssl = self.incoming = self.outgoing = NULL
        self.connection = None
        self.failure = LayerEnd("tls: closed")
        self.input.take()

    def pass_input(self):
        """Pass the next input to OpenSSL; return its size."""
        return self.pass_on()

    cdef int receive(self, const uint8_t *data, size_t n) except -1:
        return self.input.put(data, n)

    cdef int pass_on(self) except -1:
        """Pass some input to OpenSSL: a small piece, because its buffers never shrink."""
        cdef size_t n = min(self.input.pending(), self.passed)
        if n == 0:
            return 0
        if bio_write(self.incoming, self.input.first(), <int>n) != <int>n:
            raise MemoryError
        self.input.remove(n)
        self.dry = False
        return <int>n

    cdef ssize_t decode(self, const uint8_t **piece) except -1:
        cdef size_t total = 0
        cdef int n
        piece[0] = decoded
        if self.failure is not None:
            raise self.failure
        err_clear_error()
        while total < self.enough and total + RECORD <= PIECE_SIZE:
            if self.dry and not self.pass_on():
                break
            n = ssl_read(self.ssl, decoded + total, PIECE_SIZE - total)
            if n > 0:
                total += n
            elif self.read_failed(n):
                break
        if total == 0 and self.failure is not None:
            raise self.failure
        return total

    cdef int read_failed(self, int result) except -1:
        """Return whether no more data can be read; `failure` contains the reason, unless more input
        is needed."""
        cdef int error = ssl_get_error(self.ssl, result)
        if error == ERROR_WANT_READ:
            self.dry = True
            return False
        if error == ERROR_ZERO_RETURN:
            self.failure = LayerEnd("tls: closed by the peer")
        else:
            self.failure = LayerError(f"tls: {reasons()}")
        return True

    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1:
        cdef int step
        while n:
            step = min(n, <size_t>RECORD)
            err_clear_error()
            step = ssl_write(self.ssl, data, step)
            if step <= 0:
                raise LayerError(f"tls: {reasons()}")
            data += step
            n -= step
            self.collect(into)
        return 0

    cdef int collect(self, ByteQueue into) except -1:
        """Move OpenSSL's output into the queue."""
        cdef char *unused
        cdef long n = bio_get_mem_data(self.outgoing, &unused)
        if n > 0:
            bio_read(self.outgoing, into.room(n), <int>n)
        return 0

    cdef int say_end(self, ByteQueue into) except -1:
        """Notify the peer that no more data follows."""
        if self.ssl == NULL:
            return 0
        # The call fails during a handshake and after an error; in these cases, there is nothing to
        # send.
        ssl_shutdown(self.ssl)
        err_clear_error()
        return self.collect(into)

    def take(self):
        """Return the encoded bytes that are ready for the peer, including handshake bytes."""
        if self.ssl != NULL:
            self.collect(self.output)
        return self.output.take()

    def close(self):
        """Notify the peer that no more data follows; take() returns the bytes."""
        self.say_end(self.output)


cdef str reasons():
    """Return and clear the reasons in OpenSSL's error queue."""
    cdef list found = []
    cdef unsigned long error = err_get_error()
    cdef const char *reason
    while error:
        reason = err_reason(error)
        if reason != NULL:
            found.append(reason.decode())
        error = err_get_error()
    return "; ".join(found) or "unknown error"
