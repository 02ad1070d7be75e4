"""Keys, priorities and deduplication ids: where they are in a message, and how they are taken.

A source is a header, or a place in a JSON body. Independent of topics and records: the caller
stores what was taken.
"""

# The sources of the three values, by index.
cdef enum:
    KEY = 0
    PRIORITY = 1
    DEDUP_ID = 2
    SOURCES = 3

cdef enum:
    MAX_TOKENS = 128            # deeper values are never found

cdef const char *DEFAULT_NAMES[SOURCES]
DEFAULT_NAMES[KEY] = b"\3key"
DEFAULT_NAMES[PRIORITY] = b"\10priority"
DEFAULT_NAMES[DEDUP_ID] = b"\10dedup-id"

DEFAULT_SOURCES = ("header:key", "header:priority", "header:dedup-id")


def parse_source(str text not None):
    """Return where a source takes its value from: a header's name, or the list of a JSON pointer's
    tokens. Raises ValueError."""
    cdef bytes name
    kind, colon, place = text.partition(":")
    if colon and kind == "header":
        name = place.encode()
        if not len(name) < 256 or not is_name(name, len(name)):
            raise ValueError(f'header name "{place}" ({ALLOWED_HEADER_NAMES})')
        return name
    if not colon or kind != "json":
        raise ValueError("neither header:NAME nor json:/pointer")
    if place and place[0] != "/":
        raise ValueError('a JSON pointer is empty or begins with "/"')
    tokens = place.split("/")[1:]
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"a JSON pointer of {len(tokens)} tokens (at most {MAX_TOKENS})")
    found = []
    for token in tokens:
        if "~" in token.replace("~0", "").replace("~1", ""):
            raise ValueError('"~" in a JSON pointer is followed by 0 or 1')
        found.append(token.replace("~1", "/").replace("~0", "~").encode())
    return found


cdef uint32_t index_of(bytes token) except? 0:
    """Return the array index that a token names, or JSON_NOT_AN_INDEX."""
    if not token.isdigit() or len(token) > 9 or token != b"%d" % int(token):
        return JSON_NOT_AN_INDEX
    return int(token)


cdef const uint8_t *json_key(const JsonValue *value, uint8_t *space,
                             uint16_t *length) noexcept nogil:
    """Return a JSON value as a key or an id: NULL with a length of 0 if it is not usable."""
    cdef int size
    length[0] = 0
    if value.kind == JSON_TEXT and 0 < value.length <= MAX_KEY:
        length[0] = <uint16_t>value.length
        return value.at
    if value.kind == JSON_ESCAPED:
        size = json_unescape(value.at, value.at + value.length, space, MAX_KEY)
        if size > 0:
            length[0] = <uint16_t>size
            return space
    return NULL


cdef inline bint same(const uint8_t *one, size_t one_length, const uint8_t *other,
                      size_t other_length) noexcept nogil:
    return one_length == other_length and (
        one_length == 0 or memcmp(one, other, one_length) == 0)


@cython.final
cdef class KeySources:
    """Where a topic takes keys, priorities and deduplication ids from."""

    def __cinit__(self, str key not None=DEFAULT_SOURCES[0],
                  str priority not None=DEFAULT_SOURCES[1],
                  str dedup_id not None=DEFAULT_SOURCES[2]):
        self.keep = []
        for which, text in enumerate((key, priority, dedup_id)):
            self.add(which, text)

    def __dealloc__(self):
        cdef int i
        for i in range(SOURCES):
            free(self.tokens[i])

    cdef int add(self, int which, str text) except -1:
        cdef list tokens
        cdef uint32_t i
        cdef bytes token
        parsed = parse_source(text)
        if isinstance(parsed, bytes):
            name = bytes((len(parsed),)) + parsed
            self.keep.append(name)
            self.names[which] = name
            self.is_default[which] = text == DEFAULT_SOURCES[which]
            return 0
        tokens = parsed
        self.tokens[which] = <JsonToken *>malloc((len(tokens) + 1) * sizeof(JsonToken))
        if self.tokens[which] == NULL:
            raise MemoryError()
        for i, token in enumerate(tokens):
            self.keep.append(token)
            self.tokens[which][i].name = token
            self.tokens[which][i].length = <uint32_t>len(token)
            self.tokens[which][i].index = index_of(token)
        self.pointers[which].tokens = self.tokens[which]
        self.pointers[which].count = <uint32_t>len(tokens)
        return 0

    cdef bint differs(self, bint with_id) noexcept nogil:
        """Return whether a value may differ from that of its default header."""
        return not (self.is_default[KEY] and self.is_default[PRIORITY]
                    and (self.is_default[DEDUP_ID] or not with_id))

    cdef void find(self, const uint8_t *headers, uint16_t headers_length, const uint8_t *body,
                   size_t n, int sources, Taken *into, const uint8_t **text,
                   uint16_t *length) noexcept nogil:
        """Find the texts of the first `sources` values; an unusable text has the length 0."""
        cdef JsonPointer pointers[SOURCES]
        cdef JsonValue values[SOURCES]
        cdef int wanted[SOURCES]
        cdef int count = 0
        cdef int i
        for i in range(sources):
            text[i] = NULL
            length[i] = 0
            if self.tokens[i] != NULL:
                wanted[count] = i
                pointers[count] = self.pointers[i]
                count += 1
            else:
                text[i] = header_key(headers, headers_length, self.names[i], &length[i])
        if count and json_walk(body, n, pointers, count, values):
            for i in range(count):
                text[wanted[i]] = json_key(
                    &values[i], into.spaces[wanted[i]], &length[wanted[i]])

    cdef void take(self, const uint8_t *headers, uint16_t headers_length, const uint8_t *body,
                   size_t n, bint with_id, Taken *into) noexcept nogil:
        """Take the values of a message whose headers are valid; without `with_id`, not the id.

        `given` shows which values differ from their default headers, so that a record must store
        them. The texts point into the message or into `into`.
        """
        cdef const uint8_t *text[SOURCES]
        cdef uint16_t length[SOURCES]
        cdef const uint8_t *usual
        cdef uint16_t usual_length
        self.find(headers, headers_length, body, n, SOURCES if with_id else DEDUP_ID, into, text,
                  length)
        into.key = text[KEY]
        into.key_length = <uint8_t>length[KEY]
        into.priority = priority_of(text[PRIORITY], length[PRIORITY])
        into.id = NULL
        into.id_length = 0
        into.given = 0
        if not self.is_default[KEY]:
            usual = header_key(headers, headers_length, DEFAULT_NAMES[KEY], &usual_length)
            if not same(usual, usual_length, text[KEY], length[KEY]):
                into.given |= TAKEN_KEY
        if not self.is_default[PRIORITY]:
            usual = header_find(headers, headers_length, DEFAULT_NAMES[PRIORITY], &usual_length)
            if priority_of(usual, usual_length) != into.priority:
                into.given |= TAKEN_PRIORITY
        if with_id:
            into.id = text[DEDUP_ID]
            into.id_length = <uint8_t>length[DEDUP_ID]
            if not self.is_default[DEDUP_ID]:
                usual = header_key(headers, headers_length, DEFAULT_NAMES[DEDUP_ID], &usual_length)
                if not same(usual, usual_length, into.id, into.id_length):
                    into.given |= TAKEN_ID

    def taken(self, bytes headers not None, bytes body not None, bint with_id=True):
        """Return the key, the priority and the id of a message, and which of them a record must
        store."""
        cdef Taken taken
        fault = headers_fault(headers, len(headers))
        if fault is not None:
            raise ValueError(fault)
        self.take(headers, <uint16_t>len(headers), body, len(body), with_id, &taken)
        return (taken.key[:taken.key_length], taken.priority, taken.id[:taken.id_length],
                taken.given)


def siphash(bytes secret not None, bytes data not None):
    """Return the SipHash-2-4-128 of `data` with a secret of 16 bytes."""
    cdef uint64_t key[2]
    cdef uint64_t found[2]
    if len(secret) != 16:
        raise ValueError("a secret has 16 bytes")
    memcpy(key, <const char *>secret, 16)
    siphash128(key, data, len(data), found)
    return PyBytes_FromStringAndSize(<const char *>found, 16)
