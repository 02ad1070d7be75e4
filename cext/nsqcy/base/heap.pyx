"""An indexed min-heap, by due time, of nodes embedded in other structs.

Owns the order and the slots, but not the nodes. Independent of the nodes' meaning and of the clock.
"""

# An indexed min-heap by due time.
#
# A HeapNode is a member of the struct that waits for its due time. Each heap slot holds a pointer
# to a node and its due time, so sifting reads only the slots and writes to a node only to update
# its index.

cdef enum:
    ARITY = 4             # the children of a slot fill one cache line
    CAPACITY_MIN = 16


cdef void heap_init(Heap *heap) noexcept nogil:
    heap.slots = NULL
    heap.size = 0
    heap.capacity = 0


cdef void heap_free(Heap *heap) noexcept nogil:
    free(heap.slots)
    heap_init(heap)


cdef int heap_push(Heap *heap, HeapNode *node, int64_t due) noexcept nogil:
    if heap.size == heap.capacity:
        if heap.capacity >= HEAP_NOWHERE // 2:
            return -1
        if _resize(heap, max(heap.capacity * 2, <uint32_t> CAPACITY_MIN)) < 0:
            return -1
    heap.size += 1
    _sift_up(heap, heap.size - 1, node, due)
    return 0


cdef void heap_remove(Heap *heap, HeapNode *node) noexcept nogil:
    cdef:
        uint32_t hole = node.index
        HeapSlot last
    if hole == HEAP_NOWHERE:
        return
    node.index = HEAP_NOWHERE
    heap.size -= 1
    if hole != heap.size:
        last = heap.slots[heap.size]
        _place(heap, hole, last.node, last.due)
    # At one eighth, the halved heap is still mostly empty, so it does not alternate between growing
    # and shrinking.
    if heap.size < heap.capacity // 8 and heap.capacity > CAPACITY_MIN:
        _resize(heap, heap.capacity // 2)   # on failure, the heap keeps its size


cdef void heap_update(Heap *heap, HeapNode *node, int64_t due) noexcept nogil:
    _place(heap, node.index, node, due)


cdef HeapNode *heap_peek(Heap *heap) noexcept nogil:
    return heap.slots[0].node if heap.size else NULL


cdef int _resize(Heap *heap, uint32_t capacity) noexcept nogil:
    cdef HeapSlot *slots = <HeapSlot *> realloc(heap.slots, capacity * sizeof(HeapSlot))
    if slots is NULL:
        return -1
    heap.slots = slots
    heap.capacity = capacity
    return 0


cdef inline void _put(Heap *heap, uint32_t index, HeapNode *node, int64_t due) noexcept nogil:
    heap.slots[index].due = due
    heap.slots[index].node = node
    node.index = index


cdef inline void _place(Heap *heap, uint32_t hole, HeapNode *node, int64_t due) noexcept nogil:
    """Put `node` into a freed slot."""
    if due < heap.slots[hole].due:
        _sift_up(heap, hole, node, due)
    else:
        _sift_down(heap, hole, node, due)


cdef void _sift_up(Heap *heap, uint32_t hole, HeapNode *node, int64_t due) noexcept nogil:
    cdef uint32_t parent
    while hole:
        parent = (hole - 1) // ARITY
        if heap.slots[parent].due <= due:
            break
        heap.slots[hole] = heap.slots[parent]
        heap.slots[hole].node.index = hole
        hole = parent
    _put(heap, hole, node, due)


cdef inline const HeapSlot *_sooner(const HeapSlot *one, const HeapSlot *other) noexcept nogil:
    return other if other.due < one.due else one


cdef void _sift_down(Heap *heap, uint32_t hole, HeapNode *node, int64_t due) noexcept nogil:
    cdef:
        const HeapSlot *end = heap.slots + heap.size
        const HeapSlot *child
        const HeapSlot *minimum
    while True:
        minimum = child = heap.slots + <size_t>hole * ARITY + 1
        if child >= end:
            break
        if child + ARITY <= end:
            minimum = _sooner(_sooner(child, child + 1), _sooner(child + 2, child + 3))
        else:
            while child != end:
                minimum = _sooner(minimum, child)
                child += 1
        if minimum.due >= due:
            break
        _put(heap, hole, minimum.node, minimum.due)
        hole = <uint32_t>(minimum - heap.slots)
    _put(heap, hole, node, due)
