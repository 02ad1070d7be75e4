"""Dead-letter transfers: moving messages from a channel to another topic.

Each message is in exactly one topic, even after a crash. Manages the numbers, order and retries of
transfers. Reaches the journal only through `topic.journal_transfer`, and the owner of the target
topic only through `scheduler.publish_once`.
"""

# Dead-letter transfers: messages on their way from a channel to another topic.
#
#   channel ──take_over──► added ──journal──► written ──publish_once──► accepted ──► gone
#                           ▲                                  │
#                           └────────── after a second ────────┘ refused, or no answer
#
# Each transfer has a number. The journal records the number and the message before the message is
# published. After a crash, the message is published under the same number, and a topic accepts each
# number once.


cdef enum:
    SENT_AT_ONCE = 64           # maximum messages sent per turn
    GROUP = 128                 # maximum messages from a closed log that are sent together
    GROUP_BYTES = 524288        # a batch ends with the message that brings it to this size

cdef int64_t RETRY_PAUSE = 1000000000  # ns between attempts after a failure

cdef tuple REASONS = ("attempts", "expired", "", "rejected")        # by TransferReason


BACK = "-"                      # target: the topic that the message's headers name


cdef bytes own_headers(const Record *record):
    cdef uint16_t length
    cdef const uint8_t *headers = record_headers(record, &length)
    return headers[:length] if length else b""


cdef bytes carried(const Record *record, bytes headers):
    """Return the header that carries what was taken from a message to the topic that it moves to.

    `headers` are the message's headers there: values that they give need not be carried.
    """
    cdef const uint8_t *at = headers
    cdef size_t n = len(headers)
    cdef uint16_t size
    cdef uint16_t usual_size
    cdef const uint8_t *usual
    cdef int given = 0
    cdef int priority = record_priority(record)
    cdef const uint8_t *text = record_key(record, &size)
    cdef bytes key = text[:size]
    cdef bytes id
    text = record_dedup_id(record, &size)
    id = text[:size]
    usual = header_key(at, n, b"\3key", &usual_size)
    if usual[:usual_size] != key:
        given |= TAKEN_KEY
    usual = header_find(at, n, b"\10priority", &usual_size)
    if priority_of(usual, usual_size) != priority:
        given |= TAKEN_PRIORITY
    usual = header_key(at, n, b"\10dedup-id", &usual_size)
    if usual[:usual_size] != id:
        given |= TAKEN_ID
    if not given and not dead_letters.begins_with_taken(headers):
        return b""
    return dead_letters.taken(given, priority, key if given & TAKEN_KEY else b"",
                              id if given & TAKEN_ID else b"")


def producer_of(str topic not None, str channel not None):
    """Return the producer id for the transfers of a channel."""
    return blake2b(f"{topic}/{channel}".encode(), digest_size=16).hexdigest().encode()


cdef class DeadLetterTransfer(Transfer):
    cdef RecordWindow window
    cdef object topic                   # `window` again, for the topic's methods
    cdef Channel source
    cdef bytes producer                 # producer id for the chunks of the channel's transfers
    cdef readonly list runs             # ranges of numbers (journal.TransferRun), ascending
    cdef bint begun                     # the last run belongs to this process
    cdef uint64_t next_number
    cdef dict clients                   # number -> the client that had the message last
    cdef dict texts                     # number -> the client's reason for rejecting the message
    cdef set unjournaled                # numbers to be written to the journal
    cdef set journaling                 # numbers being written to the journal
    cdef uint64_t batch_end             # number of the last transfer in the batch being sent
    cdef bint sending                   # the first transfer in the list is being published
    cdef int64_t rests_until            # time of the next attempt after a failure

    def __init__(self, RecordWindow window not None, Channel source not None):
        self.window = window
        self.topic = window
        self.source = source
        self.runs = []
        self.clients = {}
        self.texts = {}
        self.unjournaled = set()
        self.journaling = set()
        self.next_number = 1
        self.client_id = ""
        self.producer = producer_of(
            self.topic.name if self.topic.moved_from is None
            else f"{self.topic.moved_from}/{self.topic.name}", source.name)

    # -- incoming messages --

    cdef int take_over(self, Entry *entry, TransferReason reason, str client, str text) except -1:
        if text:
            self.texts[self.next_number] = text
        return self.begin(entry, reason, client, self.source.dead_letter_topic)

    cdef str send_back(self, Entry *entry, const Record *record, tuple targets):
        origin = self.origin_of(own_headers(record))
        if origin is None:
            return "NOT_A_DEAD_LETTER"
        # Any publisher can write these headers, so they grant no permissions.
        if targets is not None and not any(fnmatchcase(origin.topic, each) for each in targets):
            return "FORBIDDEN"
        self.begin(entry, REDRIVEN, "", BACK)
        return None

    cdef int begin(self, Entry *entry, TransferReason reason, str client, str target) except -1:
        cdef uint64_t number = self.next_number
        cdef Block *block = entry.block
        if not self.begun or self.runs[len(self.runs) - 1].target != target:
            # A crash may have lost the latest numbers; a new epoch keeps them unambiguous.
            self.begun = True
            epoch = int.from_bytes(os.urandom(8), "little")
            self.runs.append(TransferRun(number, epoch, target))
            self.source.note_due = True
        self.next_number += 1
        self.source.add_transfer(entry, reason, number)
        if client:
            self.clients[number] = client
        self.unjournaled.add(number)
        if block.data != NULL and not block.flags & LOADING:
            self.journal_entry(entry)
        return 0

    cdef int restore_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1:
        self.next_number = max(self.next_number, number + 1)
        return self.source.add_transfer(entry, reason, number)

    def restore_runs(self, runs):
        """Restore the runs that recovery found; new transfers get greater numbers."""
        self.runs = list(runs)
        self.next_number = max(run.first for run in runs) + 1

    cdef object run_of(self, uint64_t number):
        """Return the run (nsqcy.storage.journal.TransferRun) that a transfer belongs to."""
        for run in reversed(self.runs):
            if run.first <= number:
                return run

    # -- the journal --

    cdef int journal_entry(self, Entry *entry) except -1:
        """Write a transfer to the journal if a restart would recover the message."""
        cdef uint64_t number = transfer_number(entry)
        cdef Packing packing = Packing()
        packing.add(<const Deferred *>entry, 0)
        packed, _ = packing.take()
        self.unjournaled.discard(number)
        if not packed:
            return 0
        self.journaling.add(number)
        if not self.topic.journal_transfer(
                self.source.name, entry.seq, packed, self.run_of(number),
                self.is_delayed(entry), lambda error: self.journaled(number, error)):
            self.journaling.discard(number)
        return 0

    cdef bint is_delayed(self, const Entry *entry) noexcept:
        return (<Record *>(entry.block.data + entry.offset)).attributes & RECORD_DELAYED

    def journaled(self, uint64_t number, error):
        self.journaling.discard(number)
        if error is not None:
            self.unjournaled.add(number)
            self.rests_until = self.source.scheduler.now + RETRY_PAUSE
        self.source.touch_dirty()

    # -- outgoing messages --

    cdef int go_on(self) except -1:
        cdef Entry *entry
        cdef Block *block
        cdef Record *record
        cdef uint64_t number
        cdef int budget = SENT_AT_ONCE
        if self.topic.moved_from is not None:
            while budget > 0 and self.move_batch():
                budget -= GROUP
            if budget <= 0:
                self.source.touch_dirty()
            return 0
        while not self.sending and self.in_flight_list.first != NULL \
                and self.source.scheduler.now >= self.rests_until:
            if budget == 0:
                self.source.touch_dirty()
                break
            budget -= 1
            entry = self.in_flight_list.first
            number = transfer_number(entry)
            block = entry.block
            if number in self.journaling:
                break
            if block.data == NULL or block.flags & LOADING:
                self.window.load(block)
                break
            record = <Record *>(block.data + entry.offset)
            if is_spoiled(record, entry.seq):
                self.source.drop_transfer(entry)
                continue
            if number in self.unjournaled:
                self.journal_entry(entry)
            if number not in self.journaling:
                self.send(entry, record)
        return 0

    cdef int send(self, Entry *entry, const Record *record) except -1:
        cdef uint64_t number = transfer_number(entry)
        cdef bytes own = own_headers(record)
        while len(self.runs) > 1 and self.runs[1].first <= number:
            self.runs.pop(0)
        run = self.runs[0]
        target = run.target
        if entry.node.tag == REDRIVEN:
            origin = self.origin_of(own)
            target = origin.topic
            headers = carried(record, origin.headers) + dead_letters.addressed(origin)
        else:
            headers = self.headers_of(entry, record, own)
            headers = carried(record, headers) + headers
        self.sending = True
        self.source.scheduler.publish_once(
            target.encode(), (self.producer, run.epoch, number),
            [(headers, record_body(record)[:record.body_length])], self.topic.durability,
            lambda error: self.sent(number, error))
        return 0

    cdef object origin_of(self, bytes own):
        """Return a message's origin, or None if the message is not a dead letter. Every message in
        a closed log has an origin: the same topic and channel."""
        if self.topic.moved_from is not None:
            return dead_letters.Origin(self.topic.name, self.source.name, own)
        return dead_letters.origin_of(own)

    cdef bytes headers_of(self, const Entry *entry, const Record *record, bytes own):
        return dead_letters.headers_of(
            own, topic=self.topic.name, channel=self.source.name,
            id=record.id, attempts=entry.attempts, first_time=record.timestamp,
            client=self.clients.get(transfer_number(entry), ""), reason=REASONS[entry.node.tag],
            text=self.texts.get(transfer_number(entry), ""))

    def sent(self, uint64_t number, error):
        """Handle the result of a transfer: accepted (error is None), refused, or no response."""
        cdef Entry *entry = NULL if self.source.gone else self.in_flight_list.first
        self.sending = False
        if self.source.gone:
            return
        self.source.touch_dirty()
        if error == dead_letters.NO_CHANNEL and entry != NULL and entry.node.tag == REDRIVEN:
            self.source.return_transfer(entry)
            return
        if error is not None:
            self.rests_until = self.source.scheduler.now + RETRY_PAUSE
            return
        client = self.clients.pop(number, "")
        self.texts.pop(number, None)
        if entry != NULL and transfer_number(entry) == number:
            self.topic.journal_transferred(self.source.name, entry.seq)
            self.source.transferred(entry, client)

    # -- messages in a closed log --

    cdef bint move_batch(self) except -1:
        """Send the next messages in a closed log to the open topic; return whether they have
        already arrived.

        Groups of numbers are fixed, so a resent batch has the same messages. The chunk's number is
        that of its last message.
        """
        cdef list messages
        if self.sending or self.in_flight_list.first == NULL \
                or self.source.scheduler.now < self.rests_until:
            return False
        messages = self.next_batch()
        if not messages:
            return False
        self.sending = True
        last = self.batch_end
        run = self.run_of(last)
        self.source.scheduler.publish_once(
            self.topic.name.encode(), (self.producer, run.epoch, last), messages,
            self.topic.durability, lambda error: self.batch_sent(last, error))
        return not self.sending

    cdef list next_batch(self):
        """Return the next batch of messages with their headers. Return no messages if some of them
        are not yet in memory and in the journal."""
        cdef Entry *entry = self.in_flight_list.first
        cdef Entry *following
        cdef Block *block
        cdef Record *record
        cdef uint64_t number = transfer_number(entry)
        cdef uint64_t group
        cdef uint64_t size = 0
        run = self.run_of(number)
        group = (number - <uint64_t>run.first) // GROUP
        # Messages that no channel had received have no channel in their address.
        address = b"" if self.source.name == dead_letters.BACKLOG else dead_letters.addressed(
            dead_letters.Origin(self.topic.name, self.source.name, b""))
        messages = []
        while entry != NULL and size < GROUP_BYTES:
            following = entry.next
            number = transfer_number(entry)
            if self.run_of(number) is not run or (number - <uint64_t>run.first) // GROUP != group:
                break
            block = entry.block
            if block.data == NULL or block.flags & LOADING:
                self.window.load(block)
                return []
            record = <Record *>(block.data + entry.offset)
            if is_spoiled(record, entry.seq):
                self.source.drop_transfer(entry)
                entry = following
                continue
            if number in self.unjournaled:
                self.journal_entry(entry)
            self.batch_end = number
            own = own_headers(record)
            messages.append((
                carried(record, own) + address + own, record_body(record)[:record.body_length]))
            size += record.body_length
            entry = following
        self.end_group(run, group)
        return [] if self.journaling else messages

    cdef int end_group(self, object run, uint64_t group) except -1:
        """Skip the remaining numbers of a group that is about to be sent."""
        cdef uint64_t end = <uint64_t>run.first + (group + 1) * GROUP
        if self.begun and run is self.runs[len(self.runs) - 1]:
            self.next_number = max(self.next_number, end)
        return 0

    def batch_sent(self, uint64_t last, error):
        """Handle the result of a batch: accepted (error is None), refused, or no response."""
        cdef Entry *entry
        self.sending = False
        if self.source.gone:
            return
        self.source.touch_dirty()
        if error is not None and error != dead_letters.NO_CHANNEL:
            self.rests_until = self.source.scheduler.now + RETRY_PAUSE
            return
        while self.in_flight_list.first != NULL:
            entry = self.in_flight_list.first
            if transfer_number(entry) > last:
                break
            if error is None:
                self.topic.journal_transferred(self.source.name, entry.seq)
                self.source.transferred(entry, "")
            else:
                # The channel existed when the transfers began, so it has been deleted since.
                self.source.drop_transfer(entry)
