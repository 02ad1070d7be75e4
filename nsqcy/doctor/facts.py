"""Facts about a host and a cluster, the input of doctor's checks. Contains only data."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nsqcy.cluster import problems
from nsqcy.cluster.copies import Report
from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.problems import Problem
from nsqcy.cluster.stats import TopicStats, sum_topics
from nsqcy.cluster.summaries import Origins, Summary, sum_origins
from nsqcy.cluster.two_samples import with_rates

# --- a host -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A process that is listening on a port. Values that only the owner of the process may see are
    0."""

    pid: int
    command: str
    max_files: int = 0
    files: int = 0


@dataclass(frozen=True)
class Port:
    """An address in the daemon's options, and the result of trying to bind it."""

    flag: str
    address: str
    error: str = ""  # why it cannot be bound; empty if it can, or if a process is listening there
    busy: bool = False
    process: Process | None = None  # the listening process, if this user may see it


@dataclass(frozen=True)
class Disk:
    """The data path and its disk. Times are in seconds."""

    path: str
    error: str = ""  # why the data path cannot be used; the other fields are then unknown
    kind: str = ""  # file system type
    mount_options: frozenset[str] = frozenset()
    bytes_free: int = 0
    bytes_all: int = 0
    files_free: int = 0
    files_all: int = 0  # 0 if the file system does not count inodes
    write_error: str = ""
    syncs: Sequence[float] = ()  # duration of each write and sync of a small file


@dataclass(frozen=True)
class Clock:
    """This machine's clock. None means unknown."""

    synchronised: bool | None = None
    stepped: float | None = None  # seconds by which it has been stepped since boot


@dataclass(frozen=True)
class Memory:
    """The host's memory, in bytes."""

    available: int = 0
    overcommit: int = 0  # vm.overcommit_memory
    commit_limit: int = 0
    committed: int = 0
    kills_groups: bool = False  # without memory, the kernel kills all processes of a cgroup
    collapses: bool = True  # whether the kernel knows MADV_COLLAPSE


@dataclass(frozen=True)
class Package:
    """A package that nsqcy needs: the required and the installed version."""

    name: str
    oldest: str
    found: str = ""


@dataclass(frozen=True)
class ConfigFile:
    """The result of reading the configuration file."""

    path: str
    daemon: str
    options_set: int = 0
    error: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class CopiesOptions:
    """Options for topics with copies on other machines."""

    etcd_hosts: Sequence[str]  # the host of each endpoint
    advertised: str  # host at which other nsqds reach this one
    protected: bool  # whether a secret or TLS is configured


@dataclass(frozen=True)
class Wanted:
    """The daemon options' requirements for the host."""

    daemon: str
    workers: int = 1
    memory_bytes: int = 0  # limit per worker, for messages; 0: a share of the free memory
    min_free_disk: int = 0
    copies: CopiesOptions | None = None  # None if etcd is not configured
    durable: bool = False  # whether some topic's durability class waits for the disk


@dataclass(frozen=True)
class Host:
    wanted: Wanted
    config: ConfigFile | None = None
    files_soft: int = 0
    files_hard: int = 0
    files_on_machine: tuple[int, int] | None = None  # open files on the machine, and the maximum
    clock: Clock = Clock()
    disk: Disk | None = None
    memory: Memory = Memory()
    cpus: int = 1
    somaxconn: int | None = None
    missing_calls: Sequence[str] = ()  # unavailable system calls that nsqd's workers need
    ports: Sequence[Port] = ()
    python: tuple[int, int, int] = (3, 11, 0)
    packages: Sequence[Package] = ()
    broken_modules: Sequence[str] = ()  # compiled modules that fail to import, with the error


# --- a cluster ----------------------------------------------------------------------------------


MAX_TOPICS = 5000  # maximum topics of each nsqd to examine: the busiest
MAX_LOGS = 10  # maximum topics whose logs are compared between nsqds


@dataclass(frozen=True)
class Offset:
    """Seconds by which another clock is ahead of ours, plus or minus `within`."""

    seconds: float
    within: float


@dataclass(frozen=True)
class Lookupd:
    """An nsqlookupd. With an error, the other fields are unknown."""

    address: str
    error: str = ""
    version: str = ""
    offset: Offset | None = None
    topics: frozenset[str] = frozenset()
    producers: Sequence[Producer] = ()
    # nsqds that had topics and are no longer registered, with the seconds since then
    lost: Sequence[tuple[Producer, float]] = ()
    assumed: bool = False  # not configured: the default address


@dataclass(frozen=True)
class Door:
    """The TCP port of an nsqd, from a client's perspective."""

    address: str
    error: str = ""
    tls: bool = False
    tls_error: str = ""  # why the port's certificate could not be read
    expires: float | None = None  # expiry of the port's certificate, in seconds since the epoch
    instance: str = ""  # identifies one run of nsqcy's nsqd


@dataclass(frozen=True)
class Policy:
    """The policy of a topic or channel, as far as doctor checks it."""

    max_depth: int = 0
    max_bytes: int = 0
    on_full: str = "reject"
    dead_letter_topic: str = ""


@dataclass(frozen=True)
class Attempted:
    """A message in a channel, and the number of attempts to deliver it."""

    topic: str
    channel: str
    id: str
    attempts: int


@dataclass(frozen=True)
class Nsqd:
    """An nsqd and its responses. With an error, it did not answer at this address."""

    address: str
    node: Producer
    lookupds: Sequence[str] = ()  # nsqlookupds that announce it; empty if its address was given
    left: str = ""  # nsqlookupd with which it was recently registered, and until when
    error: str = ""
    hangs: str = ""  # why it does not answer although it accepts connections
    offset: Offset | None = None
    health: str = "OK"
    disk_free: float | None = None  # share of the data path's disk, if nsqd reports it
    unregistered: Sequence[str] = ()  # TCP addresses of nsqlookupds that it cannot register with
    draining: bool = False
    unready: str = ""  # text of /ready if not ready
    expires: float | None = None  # expiry of the certificate of an https address
    topics: Sequence[TopicStats] = ()  # the busiest
    summary: Summary | None = None
    later: Sequence[TopicStats] | None = None  # the topics a moment later, if queried again
    policies: Mapping[tuple[str, str], Policy] = field(default_factory=dict)  # by topic, channel
    attempted: Sequence[Attempted] = ()  # each channel's message with the most attempts
    copies: Sequence[Report] = ()  # reports of its workers; none without etcd
    logs: Mapping[str, str] = field(default_factory=dict)  # ids of logs, by topic
    door: Door | None = None
    assumed: bool = False

    @property
    def name(self) -> str:
        return self.node.http_address if self.node.http_port else self.address

    @property
    def names(self) -> Collection[str]:
        """The names of all its topics."""
        if self.summary is not None and self.summary.names is not None:
            return self.summary.names
        return [topic.name for topic in self.topics]


@dataclass(frozen=True)
class Cluster:
    """A cluster.

    now: this host's clock, in seconds since the epoch. watched: seconds between two queries.
    """

    now: float
    lookupds: Sequence[Lookupd] = ()
    nsqds: Sequence[Nsqd] = ()
    watched: float = 0.0

    @cached_property
    def topics(self) -> dict[str, TopicStats]:
        """The busiest topics by name, summed across all nsqds that answered."""
        return sum_topics(topic for nsqd in self.nsqds for topic in nsqd.topics)

    @cached_property
    def rated_topics(self) -> dict[str, TopicStats]:
        """The latest topics with their rates, as reported by the nsqd or computed from its two
        responses. If an nsqd did not answer the second time, its first response is used."""
        rows = [
            nsqd.topics if nsqd.later is None else with_rates(nsqd.topics, nsqd.later, self.watched)
            for nsqd in self.nsqds
        ]
        return sum_topics(topic for topics in rows for topic in topics)

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of topics and channels."""
        return problems.find(self.rated_topics, origins=self.origins)

    @cached_property
    def origins(self) -> Origins:
        """The dead-letter topics, each with the channels that use it."""
        found = [
            problems.dead_letter_topics(nsqd.topics)
            if nsqd.summary is None
            else nsqd.summary.origins
            for nsqd in self.nsqds
        ]
        return sum_origins(found)

    @property
    def alive(self) -> list[Nsqd]:
        return [each for each in self.nsqds if not each.error]

    @property
    def answering(self) -> list[Lookupd]:
        return [each for each in self.lookupds if not each.error]
