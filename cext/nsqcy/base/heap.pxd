# An indexed min-heap by due time.
#
# A HeapNode is a member of the struct that waits for its due time. Each heap slot holds a pointer
# to a node and its due time, so sifting reads only the slots and writes to a node only to update
# its index.
from libc.stdint cimport int64_t, uint32_t

cdef enum:
    HEAP_NOWHERE = 0xFFFFFFFF   # the index of a node that is not in a heap

cdef struct HeapNode:
    uint32_t index    # its slot, or HEAP_NOWHERE; initialize it to that before the first push
    uint32_t tag      # for the user; the heap never reads it

cdef struct HeapSlot:
    int64_t due
    HeapNode *node

cdef struct Heap:
    HeapSlot *slots
    uint32_t size
    uint32_t capacity

cdef void heap_init(Heap *heap) noexcept nogil
# Frees the memory; nodes still in the heap are not changed.
cdef void heap_free(Heap *heap) noexcept nogil
# 0, or -1 if out of memory (the heap is then unchanged). The node must not be in a heap.
cdef int heap_push(Heap *heap, HeapNode *node, int64_t due) noexcept nogil
# A node that is not in a heap is left unchanged.
cdef void heap_remove(Heap *heap, HeapNode *node) noexcept nogil
# The node must be in this heap.
cdef void heap_update(Heap *heap, HeapNode *node, int64_t due) noexcept nogil
# The node that is due first, or NULL. The order of nodes with equal times depends only on the calls
# so far.
cdef HeapNode *heap_peek(Heap *heap) noexcept nogil


cdef inline int64_t heap_first_due(const Heap *heap) noexcept nogil:
    """Return when the first node is due; the maximum time if the heap is empty."""
    return heap.slots[0].due if heap.size else 0x7fffffffffffffff


cdef inline int64_t heap_due(const Heap *heap, const HeapNode *node) noexcept nogil:
    """Return when a node of this heap is due."""
    return heap.slots[node.index].due


cdef inline int heap_check(int status) except -1:
    """Raise MemoryError for a failed heap_push."""
    if status < 0:
        raise MemoryError()
    return 0
