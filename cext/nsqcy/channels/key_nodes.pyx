"""A hash table of what an index knows about keys: nodes of one size, each with the hash of its key.

Owns the memory of the nodes, their numbers and the buckets. Independent of what else is in a node.
"""

# A node has a number, which stays as long as the node is in the table. Nodes are in pages, mapped
# one by one: a page without nodes returns its memory to the system, but stays mapped, so a node
# that is not in use can be read, and is zero or as it was when it was removed.
#
# The table uses linear hashing with chains: it grows by one bucket at a time, so no operation takes
# long.

cdef enum:
    MIN_BUCKETS = 64


cdef void nodes_init(KeyNodes *nodes, uint32_t size) noexcept nogil:
    """size: bytes of a node, which begins with a KeyNode."""
    memset(nodes, 0, sizeof(KeyNodes))
    nodes.size = size


cdef void nodes_free(KeyNodes *nodes) noexcept nogil:
    """Remove all nodes, and free the memory."""
    cdef uint32_t i
    for i in range(nodes.page_count):
        munmap(nodes.pages[i], NODES_A_PAGE * nodes.size)
    free(nodes.pages)
    free(nodes.page_states)
    free(nodes.buckets)
    nodes_init(nodes, nodes.size)


cdef KeyNode *nodes_add(KeyNodes *nodes, uint64_t high, uint64_t low,
                        uint32_t *number) noexcept nogil:
    """Add a node, zeroed except for its hash; output its number. Return NULL if out of memory."""
    cdef NodePage *page
    cdef KeyNode *node
    cdef uint32_t *bucket
    if nodes.count >= nodes.bucket_count and not add_bucket(nodes):
        return NULL
    if nodes.partial == 0 and not add_page(nodes):
        return NULL
    page = &nodes.page_states[nodes.partial - 1]
    number[0] = (nodes.partial - 1) * NODES_A_PAGE
    if page.free:
        number[0] += page.free - 1
        page.free = <uint16_t>node_at(nodes, number[0]).heap.tag
    else:
        number[0] += page.end
        page.end += 1
    node = node_at(nodes, number[0])
    page.used += 1
    if page.used == NODES_A_PAGE:
        nodes.partial = page.following
    memset(node, 0, nodes.size)
    node.heap.index = HEAP_NOWHERE
    node.high = high
    node.low = low
    bucket = bucket_of(nodes, low)
    node.heap.tag = bucket[0]
    bucket[0] = number[0]
    nodes.count += 1
    return node


cdef void nodes_remove(KeyNodes *nodes, KeyNode *node) noexcept nogil:
    cdef uint32_t *link = bucket_of(nodes, node.low)
    cdef uint32_t number
    cdef NodePage *page
    while node_at(nodes, link[0]) != node:
        link = &node_at(nodes, link[0]).heap.tag
    number = link[0]
    link[0] = node.heap.tag
    nodes.count -= 1
    page = &nodes.page_states[number // NODES_A_PAGE]
    if page.used == NODES_A_PAGE:
        page.following = nodes.partial
        nodes.partial = number // NODES_A_PAGE + 1
    page.used -= 1
    if page.used == 0 and page.end > NODES_A_PAGE // 2:
        madvise(nodes.pages[number // NODES_A_PAGE], NODES_A_PAGE * nodes.size, MADV_DONTNEED)
        page.end = page.free = 0
        return
    node.heap.tag = page.free
    page.free = <uint16_t>(number % NODES_A_PAGE + 1)


cdef bint add_page(KeyNodes *nodes) noexcept nogil:
    cdef uint32_t room = max(4, 2 * nodes.page_room)
    cdef uint8_t **pages
    cdef NodePage *page
    cdef void *memory
    if nodes.page_count == nodes.page_room:
        pages = <uint8_t **>realloc(nodes.pages, room * sizeof(uint8_t *))
        if pages == NULL:
            return False
        nodes.pages = pages
        page = <NodePage *>realloc(nodes.page_states, room * sizeof(NodePage))
        if page == NULL:
            return False
        nodes.page_states = page
        nodes.page_room = room
    memory = map_memory(NODES_A_PAGE * nodes.size)
    if memory == NULL:
        return False
    page = &nodes.page_states[nodes.page_count]
    nodes.pages[nodes.page_count] = <uint8_t *>memory
    page.following = page.free = 0
    # No node has the number 0.
    page.used = page.end = nodes.page_count == 0
    nodes.page_count += 1
    nodes.partial = nodes.page_count
    return True


cdef bint add_bucket(KeyNodes *nodes) noexcept nogil:
    """Add a bucket, with the nodes of another one that belong to it now."""
    cdef uint32_t room = max(MIN_BUCKETS, 2 * nodes.bucket_room)
    cdef uint32_t *bucket
    cdef uint32_t *link
    cdef uint32_t number
    if nodes.bucket_count == nodes.bucket_room:
        bucket = <uint32_t *>realloc(nodes.buckets, room * sizeof(uint32_t))
        if bucket == NULL:
            return False
        nodes.buckets = bucket
        nodes.bucket_room = room
    if nodes.bucket_count == 0:
        memset(nodes.buckets, 0, MIN_BUCKETS * sizeof(uint32_t))
        nodes.bucket_count = MIN_BUCKETS
        nodes.bucket_mask = MIN_BUCKETS - 1
        return True
    if nodes.bucket_count > nodes.bucket_mask:
        nodes.bucket_mask = 2 * nodes.bucket_mask + 1
    bucket = &nodes.buckets[nodes.bucket_count]
    bucket[0] = 0
    link = &nodes.buckets[nodes.bucket_count & nodes.bucket_mask >> 1]
    nodes.bucket_count += 1
    while link[0]:
        number = link[0]
        if bucket_of(nodes, node_at(nodes, number).low) != bucket:
            link = &node_at(nodes, number).heap.tag
            continue
        link[0] = node_at(nodes, number).heap.tag
        node_at(nodes, number).heap.tag = bucket[0]
        bucket[0] = number
    return True
