"""What doctor knows when it judges: facts of a host, and of a cluster. Only data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.stats import TopicStats, sum_topics

# --- a host -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """Who listens on a port. What only its owner may see is 0."""

    pid: int
    command: str
    max_files: int = 0
    files: int = 0


@dataclass(frozen=True)
class Port:
    """An address that the daemon's options have, and what became of trying to bind it."""

    flag: str
    address: str
    error: str = ""  # why it cannot be bound; empty if it can, or if somebody listens there
    busy: bool = False
    process: Process | None = None  # who listens, if we may see that


@dataclass(frozen=True)
class Disk:
    """The data path and what it lies on. Times are seconds."""

    path: str
    error: str = ""  # why it cannot be used, and then all else is unknown
    kind: str = ""  # of file system
    mount_options: frozenset[str] = frozenset()
    bytes_free: int = 0
    bytes_all: int = 0
    files_free: int = 0
    files_all: int = 0  # 0 where a file system counts none
    write_error: str = ""
    syncs: Sequence[float] = ()  # how long each write and sync of a small file took


@dataclass(frozen=True)
class Clock:
    """This machine's clock. None is what could not be found out."""

    synchronised: bool | None = None
    stepped: float | None = None  # seconds it was set by since boot


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    available: int = 0
    overcommit: int = 0  # vm.overcommit_memory
    commit_limit: int = 0
    committed: int = 0


@dataclass(frozen=True)
class Package:
    """A package that nsqcy needs: what it must be, and what is installed."""

    name: str
    oldest: str
    found: str = ""


@dataclass(frozen=True)
class ConfigFile:
    """How the configuration file reads."""

    path: str
    daemon: str
    options_set: int = 0
    error: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Wanted:
    """What the options of the daemon ask of the host."""

    daemon: str
    workers: int = 1
    memory_bytes: int = 0  # for messages, of each worker; 0 is what is free
    min_free_disk: int = 0
    durable: bool = False  # some topic has a class that waits for the disk


@dataclass(frozen=True)
class Host:
    wanted: Wanted
    config: ConfigFile | None = None
    files_soft: int = 0
    files_hard: int = 0
    files_on_machine: tuple[int, int] | None = None  # open on the whole machine, and at most
    clock: Clock = Clock()
    disk: Disk | None = None
    memory: Memory = Memory()
    cpus: int = 1
    somaxconn: int | None = None
    missing_calls: Sequence[str] = ()  # kernel calls that nsqd's workers need and do not get
    ports: Sequence[Port] = ()
    python: tuple[int, int, int] = (3, 11, 0)
    packages: Sequence[Package] = ()
    broken_modules: Sequence[str] = ()  # compiled modules that cannot be imported, and why


# --- a cluster ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offset:
    """How far another clock is before ours, in seconds, give or take `within`."""

    seconds: float
    within: float


@dataclass(frozen=True)
class Lookupd:
    """An nsqlookupd. With an error nothing is known but that."""

    address: str
    error: str = ""
    version: str = ""
    offset: Offset | None = None
    topics: frozenset[str] = frozenset()
    producers: Sequence[Producer] = ()
    assumed: bool = False  # nobody named it: it is the usual address


@dataclass(frozen=True)
class Door:
    """The TCP port of an nsqd, as a client finds it."""

    address: str
    error: str = ""
    tls: bool = False
    tls_error: str = ""  # why its certificate could not be seen
    expires: float | None = None  # of its certificate, seconds since the epoch


@dataclass(frozen=True)
class Policy:
    """What operators ask of a topic or a channel, as far as it is looked at here."""

    max_depth: int = 0
    max_bytes: int = 0
    on_full: str = "reject"
    dead_letter_topic: str = ""


@dataclass(frozen=True)
class Nsqd:
    """An nsqd, where it was asked. With an error it did not answer there."""

    address: str
    node: Producer
    lookupds: Sequence[str] = ()  # who announce it; none if somebody named it
    error: str = ""
    offset: Offset | None = None
    health: str = "OK"
    draining: bool = False
    unready: str = ""  # what its /ready says
    expires: float | None = None  # of the certificate of an address with https
    topics: Sequence[TopicStats] = ()
    later: Sequence[TopicStats] | None = None  # the same a moment after, if it was asked again
    policies: Mapping[tuple[str, str], Policy] = field(default_factory=dict)  # by topic, channel
    door: Door | None = None
    assumed: bool = False

    @property
    def name(self) -> str:
        return self.node.http_address if self.node.http_port else self.address


@dataclass(frozen=True)
class Cluster:
    """`now` is our clock, seconds since the epoch; `watched` how long was between two looks."""

    now: float
    lookupds: Sequence[Lookupd] = ()
    nsqds: Sequence[Nsqd] = ()
    watched: float = 0.0

    @cached_property
    def topics(self) -> dict[str, TopicStats]:
        """Each topic, over all nsqds that answered."""
        return sum_topics(topic for nsqd in self.nsqds for topic in nsqd.topics)

    @cached_property
    def topics_later(self) -> dict[str, TopicStats]:
        """The same a moment after; an nsqd that was not asked again counts as it was."""
        rows = [nsqd.topics if nsqd.later is None else nsqd.later for nsqd in self.nsqds]
        return sum_topics(topic for topics in rows for topic in topics)

    @property
    def alive(self) -> list[Nsqd]:
        return [each for each in self.nsqds if not each.error]

    @property
    def answering(self) -> list[Lookupd]:
        return [each for each in self.lookupds if not each.error]
