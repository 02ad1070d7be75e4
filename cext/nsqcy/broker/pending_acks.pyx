"""Pending acknowledgements: publishes to answer when their records are in the log.

Owns the waiters and the record that each is waiting for. Knows nothing about topics or the log.
"""

cimport cython
from libc.stdlib cimport free, malloc

from nsqcy.channels.consumer cimport Waiter


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)


@cython.final
cdef class PendingAcks:
    def __dealloc__(self):
        free(self.ring)

    cdef int add(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1:
        """Answer `waiter` when everything up to `seq` is visible or has failed."""
        cdef PendingAck *grown
        cdef PendingAck *ack
        cdef uint32_t i
        if self.count == self.room:
            grown = <PendingAck *>malloc((2 * self.room + 16) * sizeof(PendingAck))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.count):
                grown[i] = self.ring[(self.first + i) % self.room]
            free(self.ring)
            self.ring = grown
            self.first = 0
            self.room = 2 * self.room + 16
        ack = &self.ring[(self.first + self.count) % self.room]
        ack.seq = seq
        ack.ticket = ticket
        ack.waiter = <void *>waiter
        Py_INCREF(waiter)
        self.count += 1
        return 0

    cdef int answer(self, uint64_t seq, str error) except -1:
        """Answer all waiters for records up to `seq`."""
        cdef PendingAck ack
        cdef Waiter waiter
        while self.count and self.ring[self.first].seq <= seq:
            ack = self.ring[self.first]
            self.first = (self.first + 1) % self.room
            self.count -= 1
            waiter = <Waiter>ack.waiter
            Py_DECREF(waiter)
            waiter.publish_done(ack.ticket, error)
        return 0

    cdef uint64_t oldest(self) noexcept:
        """Return the record that the first waiter waits for; 0 if there is none."""
        return self.ring[self.first].seq if self.count else 0

    cdef bint publish_goes_on(self, uint64_t seq) noexcept:
        """Return whether the publish that an invisible record belongs to has more records after
        that one."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.count
        cdef uint32_t middle
        while low < high:
            middle = (low + high) // 2
            if self.ring[(self.first + middle) % self.room].seq < seq:
                low = middle + 1
            else:
                high = middle
        return low < self.count and self.ring[(self.first + low) % self.room].seq != seq
