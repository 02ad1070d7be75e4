"""The ready ring of a channel: round-robin over the consumers that can receive a message, nearest
first. Independent of messages, and of what makes a consumer ready.
"""


cdef inline void init_place(RingPlace *place, void *consumer) noexcept nogil:
    """Initialize a member that is not in a ring."""
    place.prev = place.next = place
    place.consumer = consumer


cdef inline void init_ring(ReadyRing *ring) noexcept nogil:
    cdef int i
    for i in range(LOCALITIES):
        init_place(&ring.heads[i], NULL)


cdef inline void enter_ring(ReadyRing *ring, int locality, RingPlace *place) noexcept nogil:
    """Add a member to the end of a locality's ring."""
    cdef RingPlace *head = &ring.heads[locality]
    place.prev = head.prev
    place.next = head
    head.prev.next = place
    head.prev = place


cdef inline void leave_ring(RingPlace *place) noexcept nogil:
    place.prev.next = place.next
    place.next.prev = place.prev
    place.prev = place.next = NULL


cdef inline void pass_turn(ReadyRing *ring, int locality, RingPlace *place) noexcept nogil:
    """Move a member to the end of its ring: consumers take turns."""
    if place.next != place.prev:
        leave_ring(place)
        enter_ring(ring, locality, place)


cdef inline RingPlace *next_in_turn(ReadyRing *ring) noexcept nogil:
    """Return the next consumer that can receive a message; NULL if there is none."""
    cdef int i
    for i in range(LOCALITIES):
        if ring.heads[i].next != &ring.heads[i]:
            return ring.heads[i].next
    return NULL
