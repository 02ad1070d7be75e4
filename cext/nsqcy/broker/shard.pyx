"""The topics of one worker: by name, with their policies and logs, from start to shutdown.

A shard is also the scheduler of its topics (nsqcy.broker.scheduler). A shard knows nothing about
workers or placement: the caller decides which topics belong here.
"""

import os

from libc.errno cimport ESTALE

from nsqcy.base.ids cimport IdSource
from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.channels.channel cimport Channel
from nsqcy.broker.recovery cimport restore
from nsqcy.broker.topic cimport Topic
from nsqcy.storage.io cimport FileCalls, IoThread
from nsqcy.storage.log cimport Log

from nsqcy.broker.topic_host import DRAINING as _DRAINING
from nsqcy.broker.topic_host import EXITING as _EXITING
from nsqcy.logging import events
from nsqcy.storage.log_recovery import Unreadable
from nsqcy.storage.read_failures import ReadFailures
from nsqcy.storage.write_failures import WriteFailures


cdef int64_t SECOND = 1000000000

_DAMAGED = "damaged"     # directory in the data path for files with damaged records


def boot_id():
    """Return 16 bytes that identify this boot of the machine; zeros if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


cdef class Shard(Scheduler):
    def __init__(self, *, SchedulerState scheduler not None, IdSource ids not None, IoThread io,
                 str data_path, log_options=None, policies=None, has_room=None, on_event=None,
                 log=None):
        """
        scheduler: the worker's scheduler; its pool is the shard's
        io, data_path: where topics keep their logs; None: memory only
        log_options: keyword arguments for each Log
        policies: topic(name) returns the policy of a topic; None: all topics use the default
        has_room: has_room() returns whether another topic may be created; None: always
        on_event: called as on_event(kind, topic, channel) when one is created or deleted
        log: object with info(), warn() and error() methods, for operators
        """
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.ids = ids
        self.io = io
        self.data_path = data_path
        self.log_options = log_options or {}
        self.sync_every = self.log_options.get("sync_every", 0)
        self.begin(self.log_options.get("sync_timeout", SECOND))
        self.policies = policies
        self.has_room = has_room
        self.on_event = on_event
        self.log = log
        self.failures = None if log is None else WriteFailures(log)
        self.read_failures = None if log is None else ReadFailures(log)
        self.boot = boot_id()
        self.log_hold_max_bytes = 10 << 30
        self.log_cursor_expiry = 7 * 24 * 3600 * SECOND

    # -- topics --

    cdef Topic find(self, bytes key):
        return <Topic>self.topics.get(key)

    cdef Topic find_or_create(self, bytes key):
        cdef Topic topic = <Topic>self.topics.get(key)
        if topic is None:
            if key in self.unloaded or self.has_room is not None and not self.has_room():
                return None
            topic = self.make_topic(key)
            if self.hold_new:
                topic.held_until = self.scheduler.now + self.hold_new
                topic.unannounced = self.announce_new
            self.event("topic_created", topic.name, None)
        return topic

    def topic(self, bytes key not None, *, create=False):
        """Return the topic `key`, creating it if `create` is true.

        Return None if it does not exist and is not created, for example because the maximum number
        of topics is reached.
        """
        return self.find_or_create(key) if create else self.find(key)

    cdef Topic make_topic(self, bytes key):
        cdef Topic topic = Topic(self, key)
        copied = None if self.copies is None else self.copies.files(topic.name)
        if copied is not None:
            topic.log = self.make_log(topic.name, copied[0], copied[1])
        elif self.io is not None and not topic.ephemeral:
            topic.log = self.make_log(topic.name, self.io, self.data_path)
        self.give_policy(topic)
        self.topics[key] = topic
        if copied is not None:
            self.copies.created(topic)
        return topic

    cdef Log make_log(self, str name, FileCalls files, str directory):
        aside = None if self.io.read_only else os.path.join(self.data_path, _DAMAGED)
        return Log(files, directory, name, aside=aside, on_damage=self.report_damage,
                   on_readable=self.logs_readable, on_failure=self.report_failed_write,
                   on_recovery=self.report_written_again, **self.log_options)

    def open_topic(self, bytes key not None, FileCalls files not None, str directory not None):
        """Open a topic whose files are elsewhere, and restore it from them. Raises Unreadable."""
        cdef Topic topic = Topic(self, key)
        topic.log = self.make_log(topic.name, files, directory)
        self.give_policy(topic)
        restore(topic, None)
        self.topics[key] = topic
        self.event("topic_created", topic.name, None)
        for name in topic.channels:
            self.event("channel_created", topic.name, name)
        return topic

    def lose_topic(self, bytes key not None):
        """Close a topic whose files belong to another process now. Publishers with pending
        publishes are disconnected."""
        cdef Topic topic = self.topics.pop(key)
        topic.lose()
        self.event("topic_deleted", topic.name, None)

    def load_topic(self, bytes key not None, bint paused, channels):
        """Load a topic at startup from its log and its metadata. Raises Unreadable."""
        cdef Topic topic = self.make_topic(key)
        topic.paused = paused
        if topic.log is not None:
            try:
                restore(topic, channels)
            except Unreadable:
                del self.topics[key]
                raise
        else:
            for name, channel_paused in channels.items():
                topic.channel(name).pause(channel_paused)
        return topic

    def open_closed(self, str group not None, bytes key not None, FileCalls files not None,
                    str directory not None):
        """Open a log whose messages are to be moved, because its group was taken over. The log
        accepts no publishes. Raises Unreadable."""
        cdef Topic topic = Topic(self, key)
        topic.moved_from = group
        topic.log = self.make_log(topic.name, files, directory)
        restore(topic, {})
        self.closed[group, key] = topic
        return topic

    def move_closed(self, str group not None, bytes key not None):
        """Move the messages of such a log to the open topic of the same name: each message to the
        channels that have not finished it. These channels must exist."""
        cdef Topic topic = self.closed[group, key]
        topic.move()

    def close_closed(self, str group not None, bytes key not None):
        """Close a drained log, and delete its files."""
        cdef Topic topic = self.closed.pop((group, key))
        topic.close(True)

    def lose_closed(self, str group not None, bytes key not None):
        """Close a log being drained whose files belong to another process now."""
        cdef Topic topic = self.closed.pop((group, key))
        topic.lose()

    def delete_topic(self, bytes key not None, done=None):
        """Delete a topic with its channels, messages and files. `done` is as for the changes of a
        topic."""
        cdef Topic topic = self.topics.pop(key, None)
        if topic is None:
            return False
        topic.close(True, done)
        if self.copies is not None:
            self.copies.deleted(key)
        self.event("topic_deleted", topic.name, None)
        return True

    def event(self, kind, topic, channel):
        if self.on_event is not None and not self.closing:
            self.on_event(kind, topic, channel)

    # -- policies --

    cdef int give_policy(self, Topic topic) except -1:
        if self.policies is not None:
            topic.set_policy(self.policies.topic(topic.name))
            topic.unusual = self.policies.unusual_of_topic(topic.name)
            topic.prunes = topic.prunes or topic.prune_after != 0
            topic.set_bounds()
        return 0

    cdef int give_channel_policy(self, object of, object given) except -1:
        cdef Topic topic = of
        cdef Channel channel = given
        if self.policies is not None:
            policy = self.policies.channel(topic.name, channel.name)
            if policy.dead_letter_topic == topic.name:
                # The message would return to this channel and to all other channels in the topic.
                policy = policy._replace(max_attempts=0, dead_letter_topic="")
            channel.set_policy(policy)
            channel.unusual = self.policies.unusual_of_channel(topic.name, channel.name)
            topic.prunes = topic.prunes or channel.prune_after != 0
        return 0

    def policies_note(self, str topic not None):
        return b"" if self.policies is None else self.policies.note(topic)

    def recall_policies(self, object topic, bytes note not None):
        cdef str name = (<Topic>topic).name
        if self.policies is None or not self.policies.recall(name, note):
            return
        self.give_policy(topic)
        if self.log is not None:
            events.policies_recalled(self.log, topic=name)
        self.event("policies_recalled", name, None)

    def policies_changed(self, str name not None):
        """Apply a changed policy for a topic or for `topic/channel`; neither needs to exist."""
        cdef Topic topic = self.find(name.partition("/")[0].encode())
        cdef Channel channel
        if topic is None:
            return
        topic.prunes = False
        self.give_policy(topic)
        for channel in topic.channels.values():
            self.give_channel_policy(topic, channel)
        topic.set_bounds()
        topic.journal_stale = True      # its note about the policies has changed

    # -- refusing publishes, and disk failures --

    def set_refusal(self, reason):
        """Refuse publishes that must be written, because the disk is nearly full; None accepts them
        again."""
        self.full = reason
        self.refused = self.hung or self.full

    @property
    def is_refusing(self):
        """Whether publishes that must be written are refused, because the disk is nearly full."""
        return self.full is not None

    def set_hung(self, reason):
        """Refuse publishes that must be written, because the disk hangs; None accepts them again.
        Those that wait are not answered: see Topic.leave_unanswered()."""
        self.hung = reason
        self.refused = self.hung or self.full

    def unsaved(self):
        """Return the number of messages of each topic that are not known to be on disk. It is 0 if
        only the topic's journal is not."""
        cdef Topic topic
        found = {}
        for topic in self.all_topics():
            count = topic.unsaved()
            if count or topic.has_lost_journal:
                found[topic.name] = found.get(topic.name, 0) + count
        return found

    def set_draining(self, bint draining):
        """Refuse all publishes, so that consumers can drain the topics; or accept them again."""
        if not self.closing:
            self.shut = _DRAINING if draining else None

    def report_failed_write(self, topic, verb, path, error):
        if error != ESTALE:     # otherwise, the files belong to another process now
            self.set_health(f"{verb} {path}: {os.strerror(error).lower()}")
        return self.failures is not None and self.failures.failed(
            self.scheduler.now, topic, verb, path, error)

    def report_written_again(self, topic):
        self.failures.recovered(topic)

    # -- the end --

    def save(self):
        """Save everything that is not ephemeral; block until it is on disk. Return what could not
        be saved, like unsaved().

        This includes queued, in-flight (to be redelivered) and deferred messages, and all
        positions.
        """
        cdef Topic topic
        self.closing = True
        self.shut = _EXITING
        while self.gathering:
            self.gather()
        while self.scheduler.discarded:
            self.free_discarded()
        if self.io is not None:
            self.io.drain()         # ends a running compaction
        for topic in self.all_topics():
            topic.save_records()
        if self.io is not None:
            self.io.drain()
        for topic in self.all_topics():
            topic.sync_found()
            topic.save_journal()
        if self.io is not None:
            self.io.drain()
        lost = self.unsaved()
        for topic in self.all_topics():
            topic.close(False)
        if self.io is not None:
            self.io.drain()
        return lost
