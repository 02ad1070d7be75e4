# cython: linetrace=False
"""How a program's threads pass work to the loop of the blocking client, and wait for the
results.

Owns the steps that must not be interrupted. A signal handler, a time limit or another thread may
raise an exception between any two instructions of a caller's Python code, but not between two
instructions here: each function has done its work, or nothing, when the exception is raised. A
function that waits can be interrupted only while it waits; it then undoes the steps that it has
begun. No function holds a lock while Python code runs, so a signal handler may call all of them.

Works with threads and with greenlets: `make_gate` returns an acquired lock, or its counterpart.
"""

import threading
from collections import deque
from concurrent.futures import CancelledError, Future, _base
from time import monotonic

from cpython.exc cimport PyErr_CheckSignals as check_signals
from cpython.pythread cimport PyThread_get_thread_ident
from posix.unistd cimport write

_CANCELLATION = (_base.CANCELLED, _base.CANCELLED_AND_NOTIFIED)
_DONE = (*_CANCELLATION, _base.FINISHED)


cdef double SLICE = 0.5  # maximum seconds until a signal's handler runs


def thread_gate():
    """Return a gate for a thread: a lock that is held until the gate is opened."""
    gate = threading.Lock()
    gate.acquire()
    return gate


cdef bint pass_gate(gate, timeout) except -1:
    """Wait until a gate is opened; return False after the timeout.

    Only the main thread calls signal handlers. A signal ends the system call in which the main
    thread waits. However, a signal just before that call would be handled only when the gate is
    opened, which might never happen. Therefore, the main thread checks repeatedly.
    """
    check_signals()
    if PyThread_get_thread_ident() != threading.main_thread().ident:
        return gate.acquire() if timeout is None else gate.acquire(True, max(0, timeout))
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        left = SLICE if deadline is None else min(SLICE, max(0, deadline - monotonic()))
        if gate.acquire(True, left):
            return True
        check_signals()
        if left < SLICE:
            return False


cdef class Mailbox:
    """Requests to a loop, in order. Any thread may post; only the loop calls the other methods."""

    def __cinit__(self):
        self.requests = deque()
        self.dirty = []
        self.gates = []
        self.fd = -1

    def post(self, function, *arguments):
        """Make the loop call a function; return False if the loop has ended."""
        return self.put(function, arguments, 0)

    def post_sized(self, function, argument, Py_ssize_t size):
        """Like post(), but with a size that is counted until the loop takes the request."""
        return self.put(function, (argument,), size)

    def ask(self, function, publish, Py_ssize_t size, gate, withdraw):
        """Post a publish, and wait until its gate is opened; return False if the loop has ended.

        If an exception ends the wait, the publish is marked as abandoned, and the loop calls
        `withdraw` with the publish.
        """
        if not self.put(function, (publish,), size):
            return False
        try:
            pass_gate(gate, None)
        except BaseException:
            publish.is_abandoned = True
            self.put(withdraw, (publish,), 0)
            raise
        return True

    def do(self, gate, function, *arguments):
        """Make the loop call a function, and wait until it returns; return False if the loop has
        ended.

        Does not wait before the loop has started, or while the loop runs callbacks, which may wait
        for the caller.
        """
        if not self.put(self.do_and_open, (gate, function, arguments), 0):
            return False
        if self.fd >= 0 and not self.calls_back:
            self.gates.append(gate)
            try:
                pass_gate(gate, None)
            finally:
                if gate in self.gates:
                    self.gates.remove(gate)
        return True

    def do_and_open(self, gate, function, arguments):
        """Call a function, and open the gate if the caller is still waiting."""
        try:
            function(*arguments)
        finally:
            if gate in self.gates:
                self.gates.remove(gate)
                gate.release()

    cdef bint put(self, function, tuple arguments, Py_ssize_t size) except -1:
        if self.is_closed:
            return False
        self.requests.append((function, arguments, size))
        self.size += size
        self.rouse()
        return True

    cdef int rouse(self) except -1:
        if self.asleep:
            self.asleep = False
            write(self.fd, b"\0", 1)  # a full pipe also wakes the loop
        return 0

    # -- for the loop

    def open(self, int fd):
        """Wake the loop by writing a byte to this file descriptor. Return False if another loop has
        opened the mailbox."""
        if self.fd >= 0 or self.is_closed:
            return False
        self.fd = fd
        return True

    def sleep(self):
        """Announce that the loop is about to sleep; return False if there are requests and the loop
        must not sleep."""
        if self.requests or self.dirty:
            return False
        self.asleep = True
        return True

    def awake(self):
        """Announce that the loop no longer sleeps."""
        self.asleep = False

    def take(self):
        """Return the next request as (function, arguments), or None."""
        if not self.requests:
            return None
        function, arguments, size = self.requests.popleft()
        self.size -= size
        return function, arguments

    def take_dirty(self):
        """Remove and return the drivers that have output to send."""
        taken, self.dirty = self.dirty, []
        return taken

    def begin_callbacks(self):
        """Announce that the loop is running callbacks: in the meantime, no caller waits."""
        self.calls_back = True
        while self.gates:
            self.gates.pop().release()

    def end_callbacks(self):
        """Announce that the loop has stopped running callbacks."""
        self.calls_back = False

    def close(self):
        """Accept no more requests; accepted requests can still be taken."""
        self.is_closed = True
        self.asleep = False
        self.fd = -1

    def __len__(self):
        return len(self.requests)


cdef class Bell:
    """Notification to the loop that a driver has pending output. The driver resets `is_rung`."""

    cdef Mailbox mailbox
    cdef object driver
    cdef public bint is_rung

    def __cinit__(self, Mailbox mailbox not None, driver):
        self.mailbox = mailbox
        self.driver = driver

    def __call__(self):
        if not self.is_rung:
            self.is_rung = True
            self.mailbox.dirty.append(self.driver)
            self.mailbox.rouse()


def call_in(list callers, caller, function, *arguments):
    """Call a function; meanwhile, `callers` contains the caller."""
    callers.append(caller)
    try:
        return function(*arguments)
    finally:
        callers.remove(caller)


cdef class Waiters:
    """Threads or greenlets waiting for an event that wakes one or all of them."""

    cdef object make_gate
    cdef object gates               # deque, one per waiter

    def __cinit__(self, make_gate, *_):
        self.make_gate = make_gate
        self.gates = deque()

    def wait(self, is_there, timeout=None):
        """Wait until the event occurs, another waiter handles it, or the timeout expires."""
        self.wait_at(is_there, timeout)

    cdef int wait_at(self, is_there, timeout) except -1:
        cdef bint opened = False
        gate = self.make_gate()
        self.gates.append(gate)
        try:
            if not is_there():  # the event occurred before a gate existed
                opened = pass_gate(gate, timeout)
        finally:
            if not opened:
                try:
                    self.gates.remove(gate)
                except ValueError:  # opened in the meantime: pass the wake-up on to another waiter
                    self.wake()
        return 0

    def wake(self, Py_ssize_t count=1):
        """Wake up to `count` waiters."""
        while count > 0 and self.gates:
            self.gates.popleft().release()
            count -= 1

    def wake_all(self):
        """Wake all waiters."""
        self.wake(len(self.gates))

    def __len__(self):
        return len(self.gates)


cdef class Event(Waiters):
    """Like threading.Event, but a signal handler may interrupt or call any method."""

    cdef bint happened

    def is_set(self):
        return self.happened

    def set(self):
        self.happened = True
        self.wake_all()

    def wait(self, timeout=None):
        """Wait until set() is called; return False after the timeout."""
        if not self.happened:
            self.wait_at(self.is_set, timeout)
        return self.happened


cdef class Deliveries:
    """Messages that nsqd has delivered and the program has not taken.

    A thread that is interrupted while it is waiting leaves messages and wake-ups to other threads,
    so no message is lost.
    """

    cdef Waiters waiters
    cdef object current             # identity of the caller's thread or greenlet
    cdef object check_end           # raises the error that ended the consumer
    cdef object messages            # deque
    cdef readonly bint is_closed
    cdef readonly list callers      # threads or greenlets that iterate or wait

    def __cinit__(self, Waiters waiters not None, current, check_end):
        """check_end: raises the error that ended the consumer, unless close() did."""
        self.waiters = waiters
        self.current = current
        self.check_end = check_end
        self.messages = deque()
        self.callers = []

    def has_news(self):
        """Return whether there is a message, or the consumer has ended."""
        return self.is_closed or len(self.messages) > 0

    def put(self, list messages):
        """Add messages, and wake waiting threads."""
        self.messages.extend(messages)
        if self.waiters.gates:
            self.waiters.wake(len(messages))

    def get(self, timeout=None):
        """Return the next message, or None after the timeout or after the end."""
        return self.next(timeout)

    cdef object next(self, timeout):
        if self.messages and not self.is_closed:
            return self.messages.popleft()
        deadline = None if timeout is None else monotonic() + timeout
        caller = self.current()
        self.callers.append(caller)
        try:
            while not self.is_closed:
                if self.messages:
                    return self.messages.popleft()
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    break
                self.wait(left)
        finally:
            self.callers.remove(caller)
        if self.is_closed:
            self.check_end()
        return None

    def batch(self, Py_ssize_t maximum, double within, timeout, flow):
        """Return up to `maximum` messages that arrive `within` seconds after the first; return
        earlier if `flow` is starved. Returns an empty list after the timeout or after the end."""
        cdef list batch = []
        first = self.next(timeout)
        if first is None:
            return batch
        batch.append(first)
        try:
            deadline = monotonic() + within
            while len(batch) < maximum and not self.is_closed:
                if self.messages:
                    batch.append(self.messages.popleft())
                    continue
                left = deadline - monotonic()
                if left <= 0 or flow.is_starved:
                    break
                self.wait(left)
        except BaseException:
            self.put_back(batch)
            raise
        return batch

    cdef int wait(self, left) except -1:
        self.waiters.wait_at(self.has_news, left)
        # A signal may have arrived while this thread waited for the GIL. Python code must handle
        # the signal now, before taking a message.
        try:
            self.current()
        except BaseException:
            if self.messages:
                self.waiters.wake()  # another thread
            raise
        return 0

    cdef int put_back(self, list messages) except -1:
        """Return messages that an interrupted caller has not received."""
        if self.is_closed:
            for message in messages:
                message.requeue(0, backoff=False)
            return 0
        self.messages.extendleft(reversed(messages))
        self.waiters.wake(len(messages))
        return 0

    def close(self):
        """Wake all threads, which receive no more messages."""
        self.is_closed = True
        self.waiters.wake_all()

    def take_all(self):
        """Remove and return the messages."""
        messages = list(self.messages)
        self.messages.clear()
        return messages

    def __len__(self):
        return len(self.messages)


cdef class Iteration:
    """Iterator of a `for` over a consumer; exists while the statement runs."""

    cdef Deliveries deliveries
    cdef object caller

    def __cinit__(self, Deliveries deliveries not None, *_):
        self.deliveries = deliveries

    def __iter__(self):
        return self

    def __next__(self):
        self.begin()
        message = self.deliveries.next(None)
        if message is None:
            self.end()
            raise StopIteration
        return message

    cdef int begin(self) except -1:
        """Record the thread that iterates."""
        if self.caller is None:
            self.caller = self.deliveries.current()
            self.deliveries.callers.append(self.caller)
        return 0

    cdef int end(self) except -1:
        if self.caller is not None:
            caller, self.caller = self.caller, None
            self.deliveries.callers.remove(caller)
        return 0

    def __del__(self):
        self.end()


cdef class Batches(Iteration):
    """Iterator of a `for` over batches of a consumer's messages."""

    cdef Py_ssize_t maximum
    cdef double within
    cdef object timeout
    cdef object flow

    def __cinit__(self, deliveries, maximum, within, timeout, flow):
        self.maximum = maximum
        self.within = within
        self.timeout = timeout
        self.flow = flow

    def __next__(self):
        self.begin()
        batch = self.deliveries.batch(self.maximum, self.within, self.timeout, self.flow)
        if not batch and self.deliveries.is_closed:
            self.end()
            raise StopIteration
        return batch


cdef class Condition(Waiters):
    """The subset of threading.Condition that concurrent.futures uses."""

    cdef object lock                # reentrant

    def __cinit__(self, make_gate):
        self.lock = threading.RLock()

    def acquire(self):
        return self.lock.acquire()

    def release(self):
        self.lock.release()

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()

    def notify_all(self):
        self.wake_all()


class PublishFuture(Future):
    """A future for the result of a publish. An interrupted caller never holds its lock."""

    def __init__(self):
        self._condition = Condition(thread_gate)
        self._state = _base.PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks = []

    def result(self, timeout=None):
        """Wait for the publish, and return its result. Raises the publish's error, CancelledError
        or TimeoutError."""
        error = _awaited(self, timeout)
        if error is not None:
            raise error
        return self._result

    def exception(self, timeout=None):
        """Wait for the publish, and return its error, if any. Raises CancelledError or
        TimeoutError."""
        return _awaited(self, timeout)

    def done(self):
        """Return whether the publish has been answered or cancelled."""
        return self._state in _DONE

    def cancelled(self):
        """Return whether the future was cancelled."""
        return self._state in _CANCELLATION


def _awaited(future, timeout):
    """Wait for a future, and return its exception."""
    cdef Condition condition = future._condition
    if future._state not in _DONE:
        condition.wait(future.done, timeout)
    if future._state not in _DONE:
        raise TimeoutError
    if future._state in _CANCELLATION:
        raise CancelledError
    return future._exception
