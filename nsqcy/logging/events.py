"""Table of log events: the stable names that classify the lines of a JSON log.

docs/LOGS.md is generated from it. A call that logs an event goes through its function; a line
without an event is a `message`. Knows only the names of the daemons.
"""

from typing import Any

from nsqcy.logging.declaration import Event, error, fatal, info, warn

NSQD, NSQLOOKUPD, NSQADMIN = "nsqd", "nsqlookupd", "nsqadmin"
NSQD_AND_NSQLOOKUPD = "nsqd, nsqlookupd"
ALL = "all"

# A daemon's lifecycle


@info(ALL)
def started(text: str, /, *, version: str, commit: str) -> str:
    """The daemon is starting and does not serve clients yet."""
    return text


@warn(ALL)
def config_warning(text: str, /) -> str:
    """A setting has no effect, or is deprecated."""
    return text


@error(ALL)
def config_refused(*, error: str) -> str:
    """The reloaded configuration contains an error."""
    return f"SIGHUP: {error}; the configuration stays unchanged"


@info(NSQD)
def upgrade_tried(program: str, /) -> str:
    """An upgrade in place has begun: a child process of the next version reads a copy of the
    master's state."""
    return f"UPGRADE: trying the version of {program}"


@info(NSQD)
def upgrade_possible(*, version: str) -> str:
    """The trial of the next version succeeded. The master comes to rest and executes it."""
    return f"UPGRADE: the trial of version {version} succeeded"


@error(NSQD)
def upgrade_failed(*, error: str) -> str:
    """An upgrade in place failed, and nsqd continues as before."""
    return f"UPGRADE: failed, and nothing has changed: {error}"


@error(NSQD)
def upgrade_reverted(*, error: str) -> str:
    """The next version could not take over, and executed the previous version, which continues."""
    return f"UPGRADE: the next version could not take over: {error}; this version continues"


@error(NSQD)
def upgrade_incomplete(*, before: str, error: str) -> str:
    """The master runs the next version, but some workers still run the previous one, because they
    could not be replaced. They serve their clients. Another upgrade tries again."""
    return f"UPGRADE: some workers still run version {before}: {error}"


@info(NSQD)
def upgraded(milliseconds: int, /, *, version: str, before: str) -> str:
    """This version of the master has taken over from another one, in the same process. Next, it
    replaces the workers."""
    return f"UPGRADE: version {version} continues from version {before}, after {milliseconds} ms"


@warn(ALL)
def few_open_files(*, limit: int, hard_limit: int) -> str:
    """Connections are refused when no descriptors are left."""
    return (
        f"open files: the limit of {limit} is low, because each connection needs a file "
        f"descriptor; the hard limit is {hard_limit}; raise LimitNOFILE= in the service unit, or "
        "ulimit -Hn"
    )


@info(ALL)
def listening(*, listener: str, address: str) -> str:
    """The daemon accepts connections at this address."""
    return f"{listener}: listening on {address}"


@error(ALL)
def accept_paused(*, listener: str, error: str) -> str:
    """No descriptors are left: the daemon stops accepting connections for up to a second, and tries
    again. Logged at most once a minute."""
    return f"{listener}: accept: {error}; pausing"


@warn(NSQD)
def workers_full(*, full: int, workers: int, limit: int) -> str:
    """Some workers have no descriptors left for new connections; the other workers get these.
    Logged at most once a minute."""
    return (
        f"open files: {full} of {workers} workers have reached the limit of {limit}; other workers "
        "get new connections; raise LimitNOFILE= in the service unit, or --workers"
    )


@info(ALL)
def closing(*, listener: str, address: str) -> str:
    """The daemon is stopping."""
    return f"{listener}: closing {address}"


@fatal(ALL)
def failed(text: str, /) -> str:
    """The daemon cannot start, or can no longer listen."""
    return text


@warn(ALL)
def service_manager_lost(text: str, /) -> str:
    """The daemon no longer notifies systemd, and its watchdog is off."""
    return text


@error(NSQD)
def stop_failed(stack: str, /) -> str:
    """Some messages were not saved."""
    return f"failed to stop cleanly - {stack}"


@error(NSQD)
def workers_killed(seconds: float, /) -> str:
    """Messages that these workers had not saved are lost."""
    return f"workers have not stopped within {seconds:g} s; killing them"


@info(NSQD)
def stopped() -> str:
    """nsqd has stopped, and all messages are saved, unless `not_saved` follows."""
    return "NSQ: bye"


@fatal(NSQD)
def not_saved(*, error: str) -> str:
    """The last line that nsqd logs before it exits with status 1. It gives the number of messages
    of each topic that are not on disk, and the workers that did not exit on their own."""
    return f"NSQ: not everything is saved: {error}"


# Workers


@warn(NSQD)
def worker_died(how: str, /, *, worker: int, code: int) -> str:
    """A worker exited; `code` is its exit code."""
    return f"worker {worker}: {how}"


@info(NSQD)
def worker_restarting(*, worker: int, delay: float) -> str:
    """The worker restarts after `delay` seconds."""
    return f"worker {worker}: restarting in {delay:g} s"


@error(NSQD)
def worker_not_started(*, worker: int, error: str) -> str:
    """The system refused to create a process; nsqd retries."""
    return f"worker {worker}: cannot start: {error}"


@error(NSQD)
def worker_boot_failed(worker: int, reason: str, /) -> str:
    """This is a bug; `msg` contains the stack trace."""
    return f"worker {worker}: cannot boot: {reason}"


@error(NSQD)
def worker_load_failed(worker: int, stack: str, /) -> str:
    """The worker could not load its topics; `msg` contains the stack trace."""
    return f"worker {worker}: cannot load: {stack}"


@error(NSQD)
def topics_not_loaded(error: str, /, *, worker: int) -> str:
    """A worker could not load its topics. The master logs this, and restarts the worker."""
    return f"failed to load topics - {error}"


@warn(NSQD)
def memory_not_shared(*, error: str) -> str:
    """Messages in memory do not outlive their worker, because nsqd cannot create memfds for them.
    Logged once."""
    return f"messages in memory are lost if their worker dies: {error}"


@error(NSQD)
def memory_left_out(part: str, /, *, worker: int, topic: str) -> str:
    """A worker died while it was reading the memory of its predecessor. The messages in this part
    are lost, unless they are on disk. See [the
    runbook](runbooks/worker-restarted.md#act-messages-left-out-of-a-restore)."""
    return (
        f"TOPIC({topic}): worker {worker} died while it restored {part} from memory; the next one "
        "leaves it out"
    )


@warn(NSQD)
def memory_kept(*, worker: int, path: str) -> str:
    """After `memory_left_out` for a topic: the memory of the dead worker is in this directory."""
    return f"worker {worker}: the memory that it left is kept in {path}"


@error(NSQD)
def memory_not_kept(*, worker: int, error: str) -> str:
    """After `memory_left_out` for a topic: the memory of the dead worker is not kept on disk."""
    return f"worker {worker}: cannot keep the memory that it left: {error}"


@error(NSQD)
def memory_damaged(*, parts: int) -> str:
    """Parts of a dead worker's memory were damaged. Their messages are lost, unless they are on
    disk."""
    return f"{parts} damaged parts of the memory of the dead worker were left out"


@error(NSQD)
def memory_refused(*, reason: str) -> str:
    """Nothing was restored from the memory of a dead worker. Its messages that are not on disk are
    lost."""
    return f"nothing is restored from the memory of the dead worker: {reason}"


@info(NSQD)
def worker_up(*, worker: int) -> str:
    """The worker serves clients again."""
    return f"worker {worker}: up again"


@info(NSQD)
def worker_replaced(*, worker: int) -> str:
    """A new process has taken over the worker's topics and connections."""
    return f"worker {worker}: replaced"


@error(NSQD)
def worker_not_replaced(*, worker: int, reason: str) -> str:
    """A new process should take over from a worker, but did not. If the worker has not exited, it
    serves on."""
    return f"worker {worker}: not replaced: {reason}"


@error(NSQD)
def worker_went_back(*, worker: int, python: str) -> str:
    """After an upgrade in place, the new version twice failed to come up as this worker. The
    previous version, which is still installed, is started instead."""
    return f"worker {worker}: starting the previous version again, with {python}"


@error(NSQD)
def worker_hand_over_failed(worker: int, stack: str, /) -> str:
    """This is a bug; `msg` contains the stack trace. The worker serves on."""
    return f"worker {worker}: cannot hand over: {stack}"


@warn(NSQD)
def clients_not_handed_over(*, clients: int) -> str:
    """The TLS handshakes of these clients did not end in time. Their connections end when the
    worker is replaced."""
    return f"{clients} connections are not handed over, because their TLS handshake is unfinished"


@info(NSQD)
def pump_begun(*, connections: int) -> str:
    """The worker has been replaced. Its process stays for connections with TLS or deflate, which
    it encrypts and compresses for its successor."""
    return f"PUMP: {connections} connections with TLS or deflate"


@info(NSQD)
def pump_ended() -> str:
    """The last of its connections has ended, and the process exits."""
    return "PUMP: all connections have ended"


@info(NSQD)
def pumped_clients_closed(*, clients: int) -> str:
    """nsqd has closed connections with TLS or deflate some time after an upgrade, so that the
    process before the upgrade can exit (`--upgrade-drain`)."""
    return f"UPGRADE: closed {clients} connections that an earlier process encrypts or compresses"


@error(NSQD)
def pump_failed(stack: str, /) -> str:
    """This is a bug; `msg` contains the stack trace. The connections of this pump end."""
    return f"PUMP: {stack}"


@info(NSQD)
def copies_owned(*, group: str, epoch: int, closed: bool) -> str:
    """This worker owns a group of copied topics. `closed` is true if the group was taken over from
    another node."""
    return f"COPIES: owning group {group}, epoch {epoch}"


@warn(NSQD)
def copies_lost(*, group: str) -> str:
    """Another node has taken over the group, or all its messages have been moved."""
    return f"COPIES: no longer owning group {group}"


@info(NSQD)
def copies_draining(*, topic: str, group: str) -> str:
    """Messages are moved to the topic from a log that was taken over or, after the topic's number
    of copies has changed, from the topic's earlier log."""
    return f"COPIES: moving the messages of topic {topic} from its earlier log"


@info(NSQD)
def copies_drained(*, topic: str, group: str) -> str:
    """The earlier log is deleted."""
    return f"COPIES: all messages of topic {topic} have been moved"


@warn(NSQD)
def copies_not_opened() -> str:
    """Too few members are responding, or etcd is unreachable. The groups' messages become available
    when the groups open."""
    return "COPIES: not all groups of this node could be opened; copied topics start empty"


@warn(NSQD)
def copies_not_caught_up(seconds: float, workers: str, /) -> str:
    """During an upgrade in place, copies of these workers' groups, here or on other machines, have
    not caught up in time. The upgrade continues. `nsqcy copies status` shows what is missing."""
    return f"COPIES: copies have not caught up within {seconds:g} s; workers: {workers}"


@warn(NSQD)
def copies_cut_off() -> str:
    """Deliveries resume when etcd or another node responds."""
    return (
        "COPIES: neither etcd nor any other node responds: deliveries from copied topics stop, "
        "because other nodes may have taken over"
    )


@error(NSQD)
def copies_write_failed(role: str, /, *, group: str, error: str) -> str:
    """The disk has failed. An owned group is handed over to another node; a copy is replaced."""
    return f"COPIES: {role} group {group} cannot be written: {error}"


@error(NSQD)
def copies_read_failed(role: str, /, *, group: str, error: str) -> str:
    """The disk cannot be read now. nsqd tries again; if this lasts for --copies-timeout, an owned
    group is handed over to another node."""
    return f"COPIES: {role} group {group} cannot be read: {error}"


@warn(NSQD)
def copies_mended(*, group: str, file: str, parts: int) -> str:
    """The file failed its checksums or could not be read. Nothing is lost, but check the disk."""
    return f"COPIES: {file} in group {group} was damaged; repaired parts: {parts}"


@error(NSQD)
def copies_damaged(*, group: str, file: str, parts: int) -> str:
    """No other responding member has an intact version of this part of the file. The owner resends
    a damaged journal."""
    return f"COPIES: {file} in group {group} is damaged; damaged parts: {parts}"


@error(NSQD)
def copies_file_missing(*, group: str, file: str) -> str:
    """The file was removed or truncated while nsqd was stopped. The copy counts as incomplete until
    another member has filled it. If no other member has a complete copy, the most complete one is
    used."""
    return f"COPIES: {file} in group {group} is missing or too short; the copy must be filled"


@error(NSQD)
def copies_node_not_saved(*, path: str, error: str) -> str:
    """The disk has failed. The worker follows etcd, but forgets newer values of its groups if it is
    restarted before the file has been written."""
    return f"COPIES: {path} cannot be written: {error}"


@error(NSQD)
def etcd_away(*, error: str) -> str:
    """Copied topics are served as before, but no node can take over or be replaced."""
    return f"COPIES: etcd does not respond: {error}"


@info(NSQD)
def etcd_responds() -> str:
    """Logged at startup, and after an outage."""
    return "COPIES: etcd responds"


@error(NSQD)
def etcd_registry_broken(reason: str, /, *, standing: str) -> str:
    """etcd has lost its data (`lost`), has been restored from a backup (`older`), or contains
    another registry (`foreign`). nsqd refuses publishes to copied topics until their groups are
    registered again."""
    return f"COPIES: the registry in etcd cannot be used: {reason}"


@warn(NSQD)
def etcd_registry_replaced(*, registry: str, generation: int) -> str:
    """etcd's data was lost, and the groups are being restored in etcd. Also logged when an nsqd
    joins such a cluster."""
    return f"COPIES: the registry in etcd was replaced: using generation {generation}, {registry}"


@info(NSQD)
def copies_restoring(*, group: str, epoch: int) -> str:
    """The registry has lost the group; this node restores it from its own state, or from the
    state of all members."""
    return f"COPIES: restoring group {group} in the registry, epoch {epoch}"


@warn(NSQD)
def copies_disk_is_older() -> str:
    """The disk was restored from a backup. Its copies do not count until they have been filled
    again."""
    return "COPIES: the data on this disk is older than the registry, so its copies are incomplete"


@error(NSQD)
def worker_silent(*, worker: int, seconds: int, signal: str) -> str:
    """The worker is not responding, so the master sends it the signal. The worker's stack
    traces are in the log."""
    return f"worker {worker}: no heartbeat for {seconds} s, sending {signal}"


@error(NSQD)
def worker_stop_failed(worker: int, stack: str, /) -> str:
    """The worker exited before saving everything."""
    return f"worker {worker}: cannot stop: {stack}"


@error(NSQD)
def ring_broken(*, peer: int, error: str) -> str:
    """Two workers cannot reach each other. This is a bug; please report it."""
    return f"ring of worker {peer} is broken: {error}"


@error(NSQD)
def internal_error(kind: str, /, *, subject: str, error: str) -> str:
    """A bug affected one topic or channel; all others continue. Please report it."""
    return f"{subject} - {kind}: {error}"


# Topics, channels and their files


@info(NSQD)
def topic_created(*, topic: str) -> str:
    return f"TOPIC({topic}): created"


@info(NSQD)
def topic_deleted(*, topic: str) -> str:
    return f"TOPIC({topic}): deleting"


@info(NSQD)
def channel_created(*, topic: str, channel: str) -> str:
    return f"TOPIC({topic}): new channel({channel})"


@info(NSQD)
def channel_deleted(*, topic: str, channel: str) -> str:
    return f"TOPIC({topic}): deleting channel {channel}"


@info(NSQD)
def pruned(text: str, /) -> str:
    """nsqd deletes a topic or channel that has been unused for prune_after."""
    return text


@warn(NSQD)
def topic_adopted(file: str, /, *, topic: str) -> str:
    """This happens if nsqd crashed right after the topic was created."""
    return f"adopting topic {topic}: it has a directory but is not in {file}"


@error(NSQD)
def record_damaged(*, path: str, offset: int, error: str) -> str:
    """The record is lost, because its checksum failed twice; the rest of the file is read. The file
    is kept in the directory `damaged` of the data path."""
    return f"{path} at {offset}: {error}"


@error(NSQD)
def read_failed(verb: str, remedy: str, /, *, topic: str, path: str, error: str) -> str:
    """A topic's file cannot be read; the line includes a remedy. nsqd tries again after 0.1 s, then
    after longer pauses of up to 5 s. Logged once per topic, then every hour until the file can be
    read; at most ten lines per worker per minute."""
    return (
        f"TOPIC({topic}): cannot {verb} {path}: {error}: {remedy}; {topic} is not delivered until "
        "a read succeeds; nothing is lost"
    )


@info(NSQD)
def read_recovered(*, topic: str) -> str:
    """After `read_failed`, the file is readable again."""
    return f"TOPIC({topic}): reads succeed again; {topic} is delivered"


@error(NSQD)
def write_failed(verb: str, remedy: str, /, *, topic: str, path: str, error: str) -> str:
    """A write, sync or rename of a topic's file failed; the line includes a remedy. Logged once per
    topic, then every hour until its writes succeed; at most ten lines per worker per minute."""
    return (
        f"TOPIC({topic}): cannot {verb} {path}: {error}: {remedy}; publishes to {topic} that must "
        "be written are refused until a write succeeds"
    )


@info(NSQD)
def write_recovered(*, topic: str) -> str:
    """Writes succeed again after `write_failed`."""
    return f"TOPIC({topic}): writes succeed again; publishes to {topic} are accepted"


@error(NSQD)
def disk_hung(reason: str, /, *, operation: str, path: str, seconds: int) -> str:
    """A disk operation has been in progress for 5 s or more. Repeated every minute. See [the
    runbook](runbooks/slow-syncs.md)."""
    return (
        f"{reason}; publishes that must be written are refused until the operation returns; check "
        "the disk and the kernel log"
    )


@info(NSQD)
def disk_responds(*, operation: str, path: str, seconds: int) -> str:
    """The operation has returned after `disk_hung`."""
    return f"disk responds again: {operation} {path} took {seconds} s; publishes are accepted"


@warn(NSQD)
def publishers_disconnected(*, topic: str) -> str:
    """Publishes have waited for a hung disk for longer than `--hung-disk-timeout`."""
    return (
        f"TOPIC({topic}): disconnecting publishers that are waiting for the disk: their messages "
        "may or may not be stored"
    )


@warn(NSQD)
def exit_waits(worker: int, /, *, operation: str, path: str, seconds: int) -> str:
    """An exiting worker is waiting for the disk. Repeated every 5 s."""
    return f"worker {worker}: exiting: waiting for {operation} {path}, {seconds} s so far"


@fatal(NSQD)
def exit_gives_up(worker: int, /, *, operation: str, path: str, seconds: int) -> str:
    """An exiting worker has waited on one disk operation for twice `--hung-disk-timeout`."""
    return (
        f"worker {worker}: exiting because the disk does not respond: {operation} {path} has not "
        f"returned for {seconds} s"
    )


@fatal(NSQD)
def exit_unsaved(worker: int, what: str, /, *, messages: int, topics: str) -> str:
    """An exiting worker could not save everything. nsqd exits with status 1."""
    return f"worker {worker}: {what}"


@warn(NSQD)
def records_missing(*, topic: str, records: str) -> str:
    """After a kill, usually none of these records is lost. They are logged only once."""
    return (
        f"TOPIC({topic}): {records} are not on disk: finished since the last checkpoint, never "
        "written, or lost"
    )


@warn(NSQD)
def dedup_ids_lost(*, topic: str, path: str) -> str:
    """At startup, a file of deduplication ids is missing or damaged. nsqd reads the ids of messages
    that are in the log, but a repeated publish of a finished message may be kept."""
    return f"TOPIC({topic}): the deduplication ids in {path} are missing or damaged"


@warn(NSQD)
def messages_without_key(*, topic: str, messages: int, source: str) -> str:
    """The policy's `key` names a header or a value that these messages did not have, or that is
    empty or longer than 255 bytes. Logged at most once a minute."""
    return f"TOPIC({topic}): {messages} messages were published without a key at {source}"


@warn(NSQD)
def cursors_overrun(limit: int, names: str, /, *, topic: str, cursors: list[str]) -> str:
    """Readers of the log were too far behind and miss records."""
    return (
        f"TOPIC({topic}): named cursors are overrun, because more than {limit} bytes were held: "
        f"{names}"
    )


@info(NSQD)
def metadata_persisting(*, path: str) -> str:
    return f"NSQ: persisting topic/channel metadata to {path}"


@error(NSQD)
def metadata_failed(*, path: str, error: str) -> str:
    """The list of topics and channels on disk is out of date."""
    return f"failed to persist metadata - {path}: {error}"


@error(NSQD)
def policies_failed(*, error: str) -> str:
    """A policy could not be saved; the request was refused."""
    return f"failed to persist policies - {error}"


@error(NSQD)
def state_file_damaged(text: str, use: str, /, *, path: str, error: str, used: str) -> str:
    """A small file is damaged, missing or unreadable; `used` is empty if no version is intact."""
    return f"{text}; {use}"


@warn(NSQD)
def metadata_foreign(*, path: str) -> str:
    """NSQ's nsqd or a user has changed the list of topics and channels."""
    return f"{path} was written by another program, or edited: using it unchanged"


@error(NSQD)
def policies_recalled(*, topic: str) -> str:
    """nsqd applies the policies from the journal and saves them."""
    return (
        f"TOPIC({topic}): policies.json lacks the topic's policies set over HTTP, or has "
        "outdated ones; using those in the topic's journal"
    )


@error(NSQD)
def policy_ignored(file: str, /, *, name: str, error: str) -> str:
    """The saved value of a policy is no longer valid."""
    return f"{file}: {name}: {error}; the policy stays in the file but is not in effect"


@error(NSQD)
def disk_unwritable(remedy: str, /, *, path: str, error: str) -> str:
    """The data path cannot be written. nsqd retries once a second."""
    return (
        f"cannot write {path}: {error}: {remedy}; consumers continue, and publishes that must be "
        "written are refused until a write succeeds"
    )


@info(NSQD)
def disk_writable(*, path: str) -> str:
    """Publishes are accepted again."""
    return f"{path}: writes succeed again"


# Publishing


@error(NSQD)
def publishes_refused(*, reason: str) -> str:
    """The disk has less free space than --min-free-disk."""
    return f"publishes that must be written to disk are refused: {reason}"


@info(NSQD)
def publishes_accepted() -> str:
    """Publishes are accepted again after `publishes_refused`."""
    return "publishes are accepted again: the disk has enough free space"


@error(NSQD)
def events_failed(kind: str, /, *, error: str) -> str:
    """Some of the events enabled by --events are lost."""
    return f"events: {kind}: {error}"


# Draining


@info(NSQD)
def drain_begins() -> str:
    return "DRAIN: started; unregistering from nsqlookupds"


@info(NSQD)
def drain_refuses_publishes() -> str:
    return "DRAIN: publishes are refused"


@info(NSQD)
def drain_left(left: object, /, *, messages: int) -> str:
    """The number of messages left."""
    return f"DRAIN: {left}"


@info(NSQD)
def drain_handed_over() -> str:
    """Other nodes now own the topics, and nsqd exits."""
    return "DRAIN: all copied topics have been handed over"


@info(NSQD)
def drain_done() -> str:
    """nsqd exits with code 0."""
    return "DRAIN: nothing is left"


@error(NSQD)
def drain_over(left: object, /, *, messages: int | None) -> str:
    """nsqd exits with code 3."""
    return f"DRAIN: timed out; left on disk: {left}"


@info(NSQD)
def drain_cancelled() -> str:
    return "DRAIN: ended on request; publishes are accepted again"


# Clients


@info(NSQD_AND_NSQLOOKUPD)
def client_connected(*, client: str) -> str:
    return f"TCP: new client({client})"


@error(NSQD_AND_NSQLOOKUPD)
def client_error(*, client: str, error: str) -> str:
    """nsqd sent this error to the client and closed the connection."""
    return f"[{client}] - {error}"


@error(NSQD)
def bad_magic(magic: str, /, *, client: str) -> str:
    """The client speaks a different protocol, such as HTTP."""
    return f"client({client}) bad protocol magic '{magic}'"


@error(NSQD)
def session_failed(kind: str, /, *, client: str, error: str) -> str:
    """A bug ended a connection. Please report it."""
    return f"client({client}) - {kind}: {error}"


@warn(NSQD)
def auth_refused(*, client: str, error: str) -> str:
    """The auth servers denied access or did not answer, or no user in --auth-file matches."""
    return f"PROTOCOL(V2): [{client}] AUTH failed {error}"


@warn(ALL)
def http_unauthorized(*, peer: str) -> str:
    """The token is unknown. Repeated attempts from one address are not logged."""
    return f"http: invalid credentials from {peer}"


@warn(ALL)
def http_forbidden(*, user: str, method: str, path: str, peer: str) -> str:
    """The user's permissions do not allow the request."""
    return f"http: {user} may not {method} {path} ({peer})"


@warn(NSQD)
def quota_reached(*, user: str, client: str) -> str:
    """Publishes wait, or are refused over HTTP. Each worker logs this once per minute."""
    return f"AUTH: user {user} is exceeding its publish quota"


@info(ALL)
def auth_file_reloaded() -> str:
    """Logged by nsqd and nsqlookupd after SIGHUP."""
    return "AUTH: reloaded the users file"


@info(NSQD)
def tls_reloaded() -> str:
    """Logged after SIGHUP. Open connections keep the old certificates."""
    return "TLS: reloaded the certificate files"


@warn(NSQD)
def https_handshake_failed(*, peer: str, error: str) -> str:
    return f"http: TLS handshake error from {peer}: {error}"


@info(ALL)
def http_request(*, status: int, method: str, target: str, peer: str, elapsed: str) -> str:
    """A request was answered. Not logged for /pub, /mpub, /metrics, /ready and /live. A GET that
    a host repeats with the same result is logged at debug level, and once per hour at info
    level."""
    return f"{status} {method} {target} ({peer}) {elapsed}"


@error(ALL)
def http_handler_failed(stack: str, /) -> str:
    """This is a bug; the response is 500, and `msg` contains the stack trace. Please report it."""
    return f"panic in HTTP handler - {stack}"


# nsqd and its nsqlookupds


@info(NSQD)
def lookupd_added(*, lookupd: str) -> str:
    return f"LOOKUP({lookupd}): adding peer"


@info(NSQD)
def lookupd_removed(*, lookupd: str) -> str:
    return f"LOOKUP({lookupd}): removing peer"


@info(NSQD)
def lookupd_connecting(*, lookupd: str) -> str:
    return f"LOOKUP connecting to {lookupd}"


@info(NSQD)
def lookupd_connected(info: object, /, *, lookupd: str) -> str:
    return f"LOOKUPD({lookupd}): peer info {info}"


@info(NSQD)
def lookupd_told(branch: str, /, *, lookupd: str, command: str) -> str:
    """nsqd has sent REGISTER or UNREGISTER."""
    return f"LOOKUPD({lookupd}): {branch} {command}"


@error(NSQD)
def lookupd_lost(*, lookupd: str, doing: str, error: str) -> str:
    """nsqd reconnects with increasing delays."""
    return f"LOOKUPD({lookupd}): {doing} - {error}"


@error(NSQD)
def lookupd_unresolved(*, lookupd: str, error: str) -> str:
    """The host name has no address; nsqd retries the lookup."""
    return f"LOOKUPD({lookupd}): lookup - {error}"


@error(NSQD)
def channels_unknown(*, topic: str) -> str:
    """A new topic starts without the channels that it has on other nsqds."""
    return f"no available nsqlookupd to query for channels to pre-create for topic {topic}"


@error(NSQD)
def statsd_failed(*, address: str) -> str:
    return f"failed to create UDP socket to statsd({address})"


# nsqlookupd


@info(NSQLOOKUPD)
def nsqd_identified(
    tcp_port: int, http_port: int, version: str, /, *, client: str, broadcast_address: str
) -> str:
    """An nsqd has connected."""
    return (
        f"CLIENT({client}): IDENTIFY Address:{broadcast_address} TCP:{tcp_port} HTTP:{http_port} "
        f"Version:{version}"
    )


@info(NSQLOOKUPD)
def nsqd_authenticated(*, client: str, user: str) -> str:
    """An nsqd has authenticated as a user who may register."""
    return f"CLIENT({client}): AUTH as {user}"


@info(NSQLOOKUPD)
def nsqd_left(*, client: str) -> str:
    """The nsqd has disconnected; its topics are no longer announced."""
    return f"PROTOCOL(V1): [{client}] exiting ioloop"


@info(NSQLOOKUPD)
def tombstone_set(*, node: str, topic: str) -> str:
    return f"DB: setting tombstone for producer@{node} of topic({topic})"


# nsqadmin


@info(NSQADMIN)
def login(*, user: str, role: str, peer: str) -> str:
    """A user has logged in."""
    return f"log-in: {user} ({role}) from {peer}"


@warn(NSQADMIN)
def login_failed(whose: str, /, *, peer: str) -> str:
    """Repeated failures from one address are delayed."""
    return f"log-in {whose} failed, from {peer}"


@info(NSQADMIN)
def action(
    target: str,
    by: str,
    /,
    *,
    action: str,
    topic: str,
    channel: str,
    node: str,
    user: str,
    peer: str,
    result: str,
) -> str:
    """A user has changed something; the result is done, a warning or the error."""
    return f"action: {action} {target} by {by} from {peer}: {result}"


@info(NSQADMIN)
def users_reloaded(*, users: int) -> str:
    """--auth-file was reloaded."""
    return f"SIGHUP: {users} users"


@error(ALL)
def users_refused(*, error: str) -> str:
    """The reloaded --auth-file contains an error."""
    return f"SIGHUP: {error}; the users stay unchanged"


@warn(NSQADMIN)
def upstream_failed(text: str, /) -> str:
    """Some nodes did not answer. Logged once per outage."""
    return text


@info(NSQADMIN)
def upstream_recovered(*, upstream: str) -> str:
    return f"{upstream} answers again"


@error(NSQADMIN)
def request_failed(text: str, /) -> str:
    """No node answered (logged once per outage), or a node refused the request."""
    return text


@error(NSQADMIN)
def notification_failed(*, error: str) -> str:
    """The notification endpoint did not accept a notification."""
    return f"failed to send notification - {error}"


@error(NSQADMIN)
def notification_lost(waiting: int, /, *, action: str) -> str:
    """The endpoint responds too slowly."""
    return f"notification of {action} dropped: {waiting} are already queued"


EVENTS: tuple[Event[Any, ...], ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Event)
)
