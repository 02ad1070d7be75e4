"""Policies of topics and channels by name: keys, defaults, patterns and precedence.

Does not read files (config/configuration_file.py), serve requests (nsqd/http) or enforce anything:
topics and channels receive their policy when they are created, and again whenever it changes.
"""

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nsqcy.base.core import DEFAULT_SOURCES, parse_source
from nsqcy.config.durations import HOUR, MINUTE, SECOND
from nsqcy.config.options import BOOL, DURATION, FLOAT, INT, STRING
from nsqcy.names import EPHEMERAL, MAX_NAME_LENGTH, is_ephemeral, is_valid_name
from nsqcy.options.option import Option, Rule

DURABILITIES = ("memory", "os", "fsync")
MAX_COPIES = 7
ON_FULL = ("reject", "drop-oldest", "drop-newest")
ORDERS = ("", "key")
AUTOMATIC = ("auto", "yes", "no")

# Sources of a value.
DEFAULT, HTTP, TOPIC = "default", "http", "topic"

PATTERN_ALLOWED = "a topic name, in which * ? [abc] and [!abc] are wildcards"
CHANNEL_PATTERN_ALLOWED = "TOPIC/CHANNEL, names in which * ? [abc] and [!abc] are wildcards"

_ATOM = r"[.a-zA-Z0-9_?-]|\[!?[.a-zA-Z0-9_-]+\]"


# --- the keys ---------------------------------------------------------------------------------

POSITIVE = Rule("> 0", lambda value: value > 0)
NOT_NEGATIVE = Rule(">= 0", lambda value: value >= 0)

DURABILITY = Option(
    "durability",
    STRING,
    "memory",
    "what a publish waits for: nothing (memory), a write to a file (os) or a sync to disk (fsync)",
    example="fsync",
    rule=Rule("memory, os or fsync", lambda value: value in DURABILITIES),
)
COPIES = Option(
    "copies",
    INT,
    1,
    "number of machines that keep each message, including this one; above 1, the durability is "
    "at least os",
    example=3,
    rule=Rule(f"[1,{MAX_COPIES}]", lambda value: 1 <= value <= MAX_COPIES),
)
MIN_COPIES = Option(
    "min-copies",
    INT,
    0,
    "minimum number of responding machines; with fewer, publishes are refused; 0 means more than "
    "half of the copies",
    example=2,
    rule=Rule(f"[0,{MAX_COPIES}]", lambda value: 0 <= value <= MAX_COPIES),
)
RETENTION_TIME = Option(
    "retention-time",
    DURATION,
    0,
    "how long to keep messages that no channel needs any more; 0 for no time limit",
    example=24 * HOUR,
    rule=NOT_NEGATIVE,
)
RETENTION_BYTES = Option(
    "retention-bytes",
    INT,
    0,
    "maximum size, in bytes, of retained messages that no channel needs any more; "
    "0 for no size limit",
    example=10 << 30,
    rule=NOT_NEGATIVE,
)
MEM_QUEUE_SIZE = Option(
    "mem-queue-size",
    INT,
    10_000,
    "maximum number of messages in memory per topic or channel; the rest counts as backend depth",
    example=100_000,
    rule=NOT_NEGATIVE,
)
MIN_MSG_SIZE = Option(
    "min-msg-size",
    INT,
    0,
    "minimum message size in bytes; empty messages are always refused",
    example=2,
    rule=NOT_NEGATIVE,
)
MAX_MSG_SIZE = Option(
    "max-msg-size", INT, 1 << 20, "maximum message size in bytes", example=65_536, rule=POSITIVE
)
MAX_DEFER_TIMEOUT = Option(
    "max-defer-timeout",
    DURATION,
    0,
    "maximum delay of a deferred publish; 0: max-req-timeout",
    example=7 * 24 * HOUR,
)
MSG_TIMEOUT = Option(
    "msg-timeout",
    DURATION,
    MINUTE,
    "time after which nsqd requeues an unfinished message",
    example=5 * MINUTE,
)
TTL = Option(
    "ttl",
    DURATION,
    0,
    "time to live of a message, counted from when it was published; 0 for no limit",
    example=HOUR,
    rule=NOT_NEGATIVE,
)
MAX_BYTES = Option(
    "max-bytes",
    INT,
    0,
    "maximum bytes of messages waiting in a topic and its channels; 0 for no limit",
    example=1 << 30,
    rule=NOT_NEGATIVE,
)
MAX_DEPTH = Option(
    "max-depth",
    INT,
    0,
    "maximum number of messages waiting in a topic or channel; 0 for no limit",
    example=1_000_000,
    rule=NOT_NEGATIVE,
)
FULL = Option(
    "on-full",
    STRING,
    "reject",
    "action if a publish would exceed max_bytes or max_depth: reject refuses it, drop-oldest "
    "drops the oldest messages, drop-newest drops the new one",
    example="drop-oldest",
    rule=Rule("reject, drop-oldest or drop-newest", lambda value: value in ON_FULL),
)
CHANNEL_FULL = Option(
    "on-full",
    STRING,
    "reject",
    "action if a publish would exceed the channel's max_depth or depth_per_key: reject makes the "
    "topic refuse it, drop-oldest drops the oldest messages of the channel or key",
    example="drop-oldest",
    rule=Rule("reject or drop-oldest", lambda value: value in ON_FULL[:2]),
)
MAX_ATTEMPTS = Option(
    "max-attempts",
    INT,
    0,
    "maximum number of deliveries of a message; 0 for no limit",
    example=5,
    rule=Rule("[0,65535]", lambda value: 0 <= value <= 65535),
)
DEAD_LETTER_TOPIC = Option(
    "dead-letter-topic",
    STRING,
    "",
    "topic that receives messages after max_attempts; if it is not set, the messages are dropped",
    example="dead",
    rule=Rule(
        "the name of a topic that is not ephemeral",
        lambda value: not value or (is_valid_name(value) and not is_ephemeral(value)),
    ),
)
RATE = Option(
    "rate",
    FLOAT,
    0.0,
    "maximum deliveries per second to all consumers of the channel; 0 for no limit",
    example=500.0,
    rule=Rule("0 or [0.001,1000000000]", lambda value: value == 0 or 0.001 <= value <= 1e9),
)
ORDER = Option(
    "order",
    STRING,
    "",
    "key: deliver one message of a key at a time, in publish order",
    example="key",
    rule=Rule("key, or an empty value", lambda value: value in ORDERS),
)
FAIR = Option(
    "fair",
    BOOL,
    False,
    "let the keys take turns, so that a key with many messages does not delay the others",
    example=True,
)
IN_FLIGHT_PER_KEY = Option(
    "in-flight-per-key",
    INT,
    0,
    "maximum number of messages of one key in flight; 0 for no limit",
    example=30,
    rule=Rule("[0,1000000]", lambda value: 0 <= value <= 1_000_000),
)
KEY_RATE = Option(
    "key-rate",
    FLOAT,
    0.0,
    "maximum deliveries per second of one key; 0 for no limit",
    example=10.0,
    rule=Rule("0 or [0.001,1000000000]", lambda value: value == 0 or 0.001 <= value <= 1e9),
)
DEPTH_PER_KEY = Option(
    "depth-per-key",
    INT,
    0,
    "maximum number of waiting messages of one key, to which on_full applies; 0 for no limit",
    example=100_000,
    rule=Rule("[0,1000000000]", lambda value: 0 <= value <= 1_000_000_000),
)
URGENT_FIRST = Option(
    "urgent-first",
    BOOL,
    False,
    "deliver messages with a higher priority first; without effect if the channel has an order",
    example=True,
)
UNORDERED = Rule("false, because order is set", lambda value: not value)
"""For urgent_first, if the same section or request sets an order."""
PRIORITY_SHARE = Option(
    "priority-share",
    FLOAT,
    0.05,
    "with urgent_first, the minimum share of deliveries of each lower priority while it waits",
    example=0.02,
    rule=Rule("[0,0.1]", lambda value: 0 <= value <= 0.1),
)
REQUEUE_ON_DISCONNECT = Option(
    "requeue-on-disconnect",
    STRING,
    "auto",
    "requeue the messages of a consumer when its connection ends, instead of after their timeout: "
    "yes, no, or auto (yes if the channel has an order)",
    example="yes",
    rule=Rule("yes, no or auto", lambda value: value in AUTOMATIC),
)
PRUNE_AFTER = Option(
    "prune-after",
    DURATION,
    0,
    "time after which an unused channel (no consumers) or topic (no channels, no publishes) is "
    "deleted; 0 to keep it",
    example=24 * HOUR,
    rule=Rule("0 or >= 1s", lambda value: value == 0 or value >= SECOND),
)
PRUNE_MESSAGES = Option(
    "prune-messages",
    BOOL,
    False,
    "delete an unused topic or channel even if it has messages",
    example=True,
)


def _is_source(text: str) -> bool:
    try:
        parse_source(text)
    except ValueError:
        return False
    return True


SOURCE = Rule("header:NAME or json:/pointer", _is_source)

KEY = Option(
    "key",
    STRING,
    DEFAULT_SOURCES[0],
    "where a message has its key: a header, or a JSON pointer into its body",
    example="json:/customer/id",
    rule=SOURCE,
)
PRIORITY = Option(
    "priority",
    STRING,
    DEFAULT_SOURCES[1],
    "where a message has its priority, 0 to 9: a header, or a JSON pointer into its body",
    example="json:/urgency",
    rule=SOURCE,
)
DEDUP_WINDOW = Option(
    "dedup-window",
    DURATION,
    0,
    "time during which a repeated publish of the same deduplication id is not kept; 0 to keep "
    "every publish",
    example=10 * MINUTE,
    rule=NOT_NEGATIVE,
)
DEDUP_ID = Option(
    "dedup-id",
    STRING,
    DEFAULT_SOURCES[2],
    "where a message has its deduplication id: header:NAME, or json:/pointer for a value of a JSON "
    "body",
    example="json:/event_id",
    rule=SOURCE,
)
DEDUP_IDS = Option(
    "dedup-ids",
    INT,
    10_000_000,
    "maximum number of deduplication ids that nsqd remembers; above it, nsqd forgets the oldest "
    "before the end of the window",
    example=1_000_000,
    rule=Rule("[1,1000000000]", lambda value: 1 <= value <= 1_000_000_000),
)


def _by_name(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


TOPIC_KEYS = _by_name(
    DURABILITY,
    RETENTION_TIME,
    RETENTION_BYTES,
    MEM_QUEUE_SIZE,
    MIN_MSG_SIZE,
    MAX_MSG_SIZE,
    MAX_DEFER_TIMEOUT,
    MSG_TIMEOUT,
    TTL,
    MAX_BYTES,
    MAX_DEPTH,
    FULL,
    PRUNE_AFTER,
    PRUNE_MESSAGES,
    COPIES,
    MIN_COPIES,
    DEDUP_WINDOW,
    DEDUP_ID,
    DEDUP_IDS,
    KEY,
    PRIORITY,
)
CHANNEL_KEYS = _by_name(
    MEM_QUEUE_SIZE,
    MSG_TIMEOUT,
    MAX_ATTEMPTS,
    DEAD_LETTER_TOPIC,
    RATE,
    MAX_DEPTH,
    CHANNEL_FULL,
    ORDER,
    FAIR,
    IN_FLIGHT_PER_KEY,
    KEY_RATE,
    DEPTH_PER_KEY,
    URGENT_FIRST,
    PRIORITY_SHARE,
    REQUEUE_ON_DISCONNECT,
    PRUNE_AFTER,
    PRUNE_MESSAGES,
)


class TopicPolicy(NamedTuple):
    """One topic's value for each key of TOPIC_KEYS; None means the flag with that name."""

    durability: str = "memory"
    retention_time: int = 0
    retention_bytes: int = 0
    mem_queue_size: int | None = None
    min_msg_size: int = 0
    max_msg_size: int | None = None
    max_defer_timeout: int | None = None
    msg_timeout: int | None = None
    ttl: int = 0
    max_bytes: int = 0
    max_depth: int = 0
    on_full: str = "reject"
    prune_after: int = 0
    prune_messages: bool = False
    copies: int = 1
    min_copies: int = 0
    dedup_window: int = 0
    dedup_id: str = DEFAULT_SOURCES[2]
    dedup_ids: int = 10_000_000
    key: str = DEFAULT_SOURCES[0]
    priority: str = DEFAULT_SOURCES[1]


class ChannelPolicy(NamedTuple):
    """One channel's value for each key of CHANNEL_KEYS; None has the same meaning as in
    TopicPolicy."""

    mem_queue_size: int | None = None
    msg_timeout: int | None = None
    max_attempts: int = 0
    dead_letter_topic: str = ""
    rate: float = 0.0
    max_depth: int = 0
    on_full: str = "reject"
    order: str = ""
    fair: bool = False
    in_flight_per_key: int = 0
    key_rate: float = 0.0
    depth_per_key: int = 0
    urgent_first: bool = False
    priority_share: float = 0.05
    requeue_on_disconnect: str = "auto"
    prune_after: int = 0
    prune_messages: bool = False


# An ephemeral topic's values for keys that need a log.
WITHOUT_LOG: dict[str, Any] = {
    "durability": "memory",
    "copies": 1,
    "min_copies": 0,
    "retention_time": 0,
    "retention_bytes": 0,
}
# Keys that a channel inherits from its topic unless the channel has its own value.
INHERITED = ("mem_queue_size", "msg_timeout")


# --- which source applies ---------------------------------------------------------------------

Values = Mapping[str, Any]


class Version(NamedTuple):
    """The version of the values set over HTTP: the file that contains them, and the number of
    changes to the file. A missing file has revision 0; a file from an earlier nsqd has no name."""

    file: str = ""
    revision: int = 0

    def is_older_than(self, other: "Version") -> bool:
        """Return whether this is a missing file, or an older version of the same file."""
        return self.revision < other.revision and self.file in ("", other.file)


class Policies:
    """Policies of all topics and channels.

    For each key, the last of these sources that sets it wins: the default, the matching sections of
    the file in order, and the values set over HTTP for this name.
    """

    def __init__(
        self,
        default: TopicPolicy | None = None,
        sections: Iterable[tuple[str, Values]] = (),
        channel_sections: Iterable[tuple[str, Values]] = (),
    ) -> None:
        self.default = default or TopicPolicy()
        self._default_ephemeral = self.default._replace(**WITHOUT_LOG)
        self._default_channel = _inherited(self.default)
        self._sections = tuple((pattern, dict(values)) for pattern, values in sections)
        self._channel_sections = tuple(
            (pattern, dict(values)) for pattern, values in channel_sections
        )
        # For each topic: its values under the key "topic", and its channels' under "topic/channel".
        self._set: dict[str, dict[str, dict[str, Any]]] = {}
        self.longest_timeout = 0
        """The maximum msg_timeout that any channel has had, in ns; 0 if only nsqd's applies."""
        for values in (self.default._asdict(), *self._values_of_sections()):
            self._note_timeout(values)
        self.version = Version()
        self.recalled: dict[str, dict[str, Any]] = {}
        """Values that `recall` has changed, until the caller has saved them."""

    def set(self, name: str, values: Values) -> None:
        """Replace the values set over HTTP for a topic, or for `topic/channel`."""
        topic = name.partition("/")[0]
        found = self._set.setdefault(topic, {})
        self._note_timeout(values)
        if values:
            found[name] = dict(values)
        else:
            found.pop(name, None)
        if not found:
            del self._set[topic]

    def _values_of_sections(self) -> Iterator[Values]:
        for _, values in (*self._sections, *self._channel_sections):
            yield values

    def _note_timeout(self, values: Values) -> None:
        self.longest_timeout = max(self.longest_timeout, values.get("msg_timeout") or 0)

    def all_set(self) -> dict[str, dict[str, Any]]:
        """Return the values set over HTTP, by topic and by "topic/channel"."""
        return {name: values for each in self._set.values() for name, values in each.items()}

    def note(self, topic: str) -> bytes:
        """Return the values set over HTTP for a topic and its channels, for the topic's journal;
        empty if no values have ever been set."""
        if not self.version.revision:
            return b""
        noted = {"version": self.version, "set": self._set.get(topic, {})}
        return json.dumps(noted, separators=(",", ":")).encode()

    def recall(self, topic: str, note: bytes) -> bool:
        """Adopt the values in the journal's note if the saved policies are missing or older than
        the note; return whether any value changed."""
        try:
            noted = json.loads(note)
            file, revision = noted["version"]
            found = {name: _known(name, values) for name, values in noted["set"].items()}
        except (ValueError, TypeError, LookupError, AttributeError):
            return False  # written by a later version
        if not self.version.is_older_than(Version(file, revision)):
            return False
        before = dict(self._set.get(topic, {}))
        if found == before:
            return False
        for name in before.keys() | found.keys():
            self.set(name, found.get(name, {}))
            self.recalled[name] = found.get(name, {})
        return True

    def topic(self, name: str) -> TopicPolicy:
        """Return the policy of a topic: the default itself if the topic has no values of its own,
        because this runs for each topic at startup."""
        policy = self._usual(name)
        if self._sections or name in self._set:
            values = _merged(self._of_topic(name))
            policy = policy._replace(**values) if values else policy
        return _completed(policy)

    def channel(self, topic: str, name: str) -> ChannelPolicy:
        """Return the policy of a channel; see topic()."""
        of_topic = self.topic(topic)
        policy = self._default_channel if of_topic is self.default else _inherited(of_topic)
        if self._channel_sections or topic in self._set:
            values = _merged(self._of_channel(topic, name))
            policy = policy._replace(**values) if values else policy
        return policy._replace(urgent_first=False) if policy.order else policy

    def copied(self) -> Iterator[TopicPolicy]:
        """Yield a policy for each section, and for each topic with values set over HTTP, that
        requests copies. Other sections may change the other values of a topic."""
        for values in (*(values for _, values in self._sections), *self.all_set().values()):
            if values.get("copies", 1) > 1:
                yield _completed(self.default._replace(**values))

    def topic_sources(self, name: str) -> dict[str, str]:
        """Return the source of each key: a section of the file, "http" or "default"."""
        found = dict.fromkeys(TOPIC_KEYS, DEFAULT)
        return found | _sources(self._of_topic(name))

    def channel_sources(self, topic: str, name: str) -> dict[str, str]:
        """Like topic_sources(); "topic" means that the channel inherits from its topic."""
        of_topic = self.topic_sources(topic)
        found = dict.fromkeys(CHANNEL_KEYS, DEFAULT)
        found |= {key: TOPIC for key in INHERITED if of_topic[key] != DEFAULT}
        return found | _sources(self._of_channel(topic, name))

    def _of_topic(self, name: str) -> Iterator[tuple[str, Values]]:
        """Yield each source of values for a topic, with its values."""
        for source, values in self._said(name):
            if is_ephemeral(name):
                values = {key: values[key] for key in values.keys() - WITHOUT_LOG.keys()}
            yield source, values

    def _said(self, name: str) -> Iterator[tuple[str, Values]]:
        for pattern, values in self._sections:
            if fnmatch.fnmatchcase(name, pattern):
                yield f"[topic {pattern}]", values
        yield HTTP, self._set.get(name, {}).get(name, {})

    def _of_channel(self, topic: str, name: str) -> Iterator[tuple[str, Values]]:
        for pattern, values in self._channel_sections:
            of_topic, _, of_channel = pattern.partition("/")
            if fnmatch.fnmatchcase(topic, of_topic) and fnmatch.fnmatchcase(name, of_channel):
                yield f"[channel {pattern}]", values
        yield HTTP, self._set.get(topic, {}).get(f"{topic}/{name}", {})

    def unusual_of_topic(self, name: str) -> dict[str, Any]:
        """Return the formatted values of a topic's policy that differ from the default."""
        return _unusual(TOPIC_KEYS, self.topic(name), self._usual(name))

    def unusual_of_channel(self, topic: str, name: str) -> dict[str, Any]:
        return _unusual(CHANNEL_KEYS, self.channel(topic, name), self._default_channel)

    def _usual(self, name: str) -> TopicPolicy:
        """Return the policy of a topic without its own values."""
        return self._default_ephemeral if is_ephemeral(name) else self.default

    def to_json(self) -> dict[str, Any]:
        """Return data for json.dumps; from_json() reads it in another process."""
        return {
            "default": self.default._asdict(),
            "sections": self._sections,
            "channel_sections": self._channel_sections,
            "set": self.all_set(),
            "version": self.version,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Policies":
        found = cls(TopicPolicy(**data["default"]), data["sections"], data["channel_sections"])
        for name, values in data["set"].items():
            found.set(name, values)
        found.version = Version(*data["version"])
        return found


def _known(name: str, values: Values) -> dict[str, Any]:
    """Return the values whose keys this version knows."""
    keys = CHANNEL_KEYS if "/" in name else TOPIC_KEYS
    return {key: value for key, value in values.items() if key in keys}


def _completed(policy: TopicPolicy) -> TopicPolicy:
    """Return the policy, with the values that are derived from its other values."""
    if policy.copies == 1:
        return policy
    return policy._replace(
        durability="os" if policy.durability == "memory" else policy.durability,
        min_copies=min(policy.min_copies or policy.copies // 2 + 1, policy.copies),
    )


def _inherited(policy: TopicPolicy) -> ChannelPolicy:
    """Return the policy of a channel without values of its own."""
    return ChannelPolicy(**{key: getattr(policy, key) for key in INHERITED})


def _merged(said: Iterable[tuple[str, Values]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _, values in said:
        found |= values
    return found


def _sources(said: Iterable[tuple[str, Values]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source, values in said:
        found |= dict.fromkeys(values, source)
    return found


def _unusual(keys: Mapping[str, Option], policy: object, usual: object) -> dict[str, Any]:
    if policy is usual:
        return {}
    return {
        key: shown(option, getattr(policy, key))
        for key, option in keys.items()
        if getattr(policy, key) != getattr(usual, key)
    }


def shown(option: Option, value: Any) -> Any:
    """Return a value for JSON: durations with their unit, all others unchanged."""
    if option.kind is FLOAT and value == int(value):
        return int(value)
    return option.show(value) if option.kind is DURATION else value


def can_match(pattern: str) -> bool:
    """Return whether the pattern can match a valid topic or channel name."""
    plain = pattern.removesuffix(EPHEMERAL)
    if not re.fullmatch(rf"(?:{_ATOM}|\*)+", plain):
        return False
    shortest = len(re.findall(_ATOM, plain)) + len(pattern) - len(plain)
    impossible = "(?!)"  # regular expression for an empty range such as [z-a]
    return shortest <= MAX_NAME_LENGTH and impossible not in fnmatch.translate(plain)


def can_match_channels(pattern: str) -> bool:
    """Like can_match(), for TOPICPATTERN/CHANNELPATTERN."""
    topic, slash, channel = pattern.partition("/")
    return bool(slash) and can_match(topic) and can_match(channel)
