"""The table of events: what a line of a JSON log is about, by a name that does not change.

docs/LOGS.md is made of it, and a test compares it with every call that has an `event`. A line that
has none is a `message`. Imports nothing; whoever logs knows only names.
"""

from typing import NamedTuple

NSQD, NSQLOOKUPD, NSQADMIN = "nsqd", "nsqlookupd", "nsqadmin"
ALL = "all"


class Event(NamedTuple):
    """`text` is the line's, with … for what differs; `of` is who says it."""

    name: str
    level: str
    of: str
    text: str
    fields: tuple[str, ...]
    told: str


EVENTS = (
    # A daemon's life
    Event("started", "info", ALL, "…", ("version",), "It starts; nothing is served yet."),
    Event("config_warning", "warn", ALL, "…", (), "Something in the configuration has no effect."),
    Event(
        "config_refused",
        "error",
        ALL,
        "SIGHUP: …; everything stays as it was",
        ("error",),
        "The configuration was read again and is wrong.",
    ),
    Event(
        "few_open_files",
        "warn",
        ALL,
        "open files: … are few, and each connection is one; the hard limit is …: raise"
        " LimitNOFILE= of the service, or ulimit -Hn",
        ("limit", "hard_limit"),
        "Connections will be refused for want of descriptors.",
    ),
    Event(
        "listening", "info", ALL, "…: listening on …", ("listener", "address"), "It serves there."
    ),
    Event(
        "accept_paused",
        "error",
        ALL,
        "…: accept: …; pausing",
        ("listener", "error"),
        "No descriptors are left: nobody is accepted for a moment.",
    ),
    Event("closing", "info", ALL, "…: closing …", ("listener", "address"), "It ends."),
    Event("failed", "fatal", ALL, "…", (), "It cannot start, or cannot listen any more."),
    Event(
        "service_manager_lost",
        "warn",
        ALL,
        "…",
        (),
        "systemd is told nothing any more, and its watchdog is off.",
    ),
    Event("stop_failed", "error", NSQD, "failed to stop cleanly - …", (), "Not all is saved."),
    Event(
        "workers_killed",
        "error",
        NSQD,
        "workers have not stopped within … s, killing them",
        (),
        "What they still had to save is lost.",
    ),
    Event("stopped", "info", NSQD, "NSQ: bye", (), "Everything that could be saved is."),
    # Workers
    Event("worker_died", "warn", NSQD, "worker …: …", ("worker", "code"), "How it ended."),
    Event(
        "worker_restarting",
        "info",
        NSQD,
        "worker …: starting again in … s",
        ("worker", "delay"),
        "It is started again, after so many seconds.",
    ),
    Event(
        "worker_not_started",
        "error",
        NSQD,
        "worker …: cannot start: …",
        ("worker", "error"),
        "The system refuses another process. It is tried again.",
    ),
    Event(
        "worker_boot_failed", "error", NSQD, "worker …: cannot boot: …", (), "With where, in msg."
    ),
    Event(
        "worker_load_failed",
        "error",
        NSQD,
        "worker …: cannot load: …",
        (),
        "It could not take up its topics; with where, in msg.",
    ),
    Event(
        "topics_not_loaded",
        "error",
        NSQD,
        "failed to load topics - …",
        ("worker",),
        "The same, as the master sees it. The worker is started again.",
    ),
    Event("worker_up", "info", NSQD, "worker …: up again", ("worker",), "It serves again."),
    Event(
        "worker_silent",
        "error",
        NSQD,
        "worker …: silent for … s, …",
        ("worker", "seconds", "signal"),
        "It hangs, and is ended by that signal. Its stacks are in the log.",
    ),
    Event(
        "worker_stop_failed", "error", NSQD, "worker …: cannot stop: …", (), "It did not save all."
    ),
    Event(
        "ring_broken",
        "error",
        NSQD,
        "ring of worker … is broken: …",
        ("peer", "error"),
        "Two workers do not reach each other any more: a bug, to be reported.",
    ),
    Event(
        "internal_error",
        "error",
        NSQD,
        "… - …: …",
        ("subject", "error"),
        "A bug, met at a topic or channel; the others go on. To be reported.",
    ),
    # Topics, channels and their files
    Event("topic_created", "info", NSQD, "TOPIC(…): created", ("topic",), ""),
    Event("topic_deleted", "info", NSQD, "TOPIC(…): deleting", ("topic",), ""),
    Event("channel_created", "info", NSQD, "TOPIC(…): new channel(…)", ("topic", "channel"), ""),
    Event(
        "channel_deleted", "info", NSQD, "TOPIC(…): deleting channel …", ("topic", "channel"), ""
    ),
    Event("pruned", "info", NSQD, "…", (), "Nobody used a topic or channel: prune_after."),
    Event(
        "topic_adopted",
        "warn",
        NSQD,
        "adopting topic …: it has a directory but is not in …",
        ("topic",),
        "As after a crash right behind its creation.",
    ),
    Event(
        "record_damaged",
        "error",
        NSQD,
        "… at …: …",
        ("path", "offset", "error"),
        "What lies there is lost; the rest is read.",
    ),
    Event(
        "write_failed",
        "error",
        NSQD,
        "TOPIC(…): cannot … …: …: …",
        ("topic", "path", "error"),
        "A write, sync or rename of a topic's file failed; the line says what to do. What must be"
        " written is refused until a write succeeds. A topic has at most one line a minute, a"
        " worker ten.",
    ),
    Event(
        "write_recovered",
        "info",
        NSQD,
        "TOPIC(…): writes succeed again",
        ("topic",),
        "The end of a logged `write_failed`.",
    ),
    Event(
        "records_missing",
        "warn",
        NSQD,
        "TOPIC(…): … are in no file: finished since the journal was written, in memory only,"
        " or lost",
        ("topic", "records"),
        "After a kill, as a rule none of it is lost. Of the same records it is told once.",
    ),
    Event(
        "cursors_overrun",
        "warn",
        NSQD,
        "TOPIC(…): named cursors are overrun, as more than … bytes were held: …",
        ("topic", "cursors"),
        "Readers of the log were too far behind, and will miss something.",
    ),
    Event(
        "metadata_persisting",
        "info",
        NSQD,
        "NSQ: persisting topic/channel metadata to …",
        ("path",),
        "",
    ),
    Event(
        "metadata_failed",
        "error",
        NSQD,
        "failed to persist metadata - …: …",
        ("path", "error"),
        "The list of topics and channels on disk is old.",
    ),
    Event(
        "policies_failed",
        "error",
        NSQD,
        "failed to persist policies - …",
        ("error",),
        "What was to be set was refused, and does not hold.",
    ),
    Event(
        "policies_damaged",
        "error",
        NSQD,
        "… is damaged, nothing that was set over HTTP holds: …",
        ("path", "error"),
        "The file is set aside.",
    ),
    Event(
        "policy_ignored",
        "error",
        NSQD,
        "…: …: …; it stays there and does not hold",
        ("name", "error"),
        "A policy is not allowed any more.",
    ),
    # Publishing
    Event(
        "publishes_refused",
        "error",
        NSQD,
        "what would have to be written is refused: …",
        ("reason",),
        "There is less room on disk than --min-free-disk.",
    ),
    Event(
        "publishes_accepted",
        "info",
        NSQD,
        "what is published is written again: there is room on disk",
        (),
        "The end of it.",
    ),
    Event("events_failed", "error", NSQD, "events: …: …", ("error",), "Some of --events are lost."),
    # Draining
    Event("drain_begins", "info", NSQD, "DRAIN: begins; lookupds are told", (), ""),
    Event("drain_refuses_publishes", "info", NSQD, "DRAIN: publishes are refused", (), ""),
    Event("drain_left", "info", NSQD, "DRAIN: …", ("messages",), "So many are left."),
    Event("drain_done", "info", NSQD, "DRAIN: nothing is left", (), "It exits with 0."),
    Event(
        "drain_over",
        "error",
        NSQD,
        "DRAIN: its time is over; on disk stay …",
        ("messages",),
        "It exits with 3.",
    ),
    Event(
        "drain_cancelled",
        "info",
        NSQD,
        "DRAIN: ended by request; publishes are accepted",
        (),
        "",
    ),
    # Clients
    Event("client_connected", "info", "nsqd, nsqlookupd", "TCP: new client(…)", ("client",), ""),
    Event(
        "client_error",
        "error",
        "nsqd, nsqlookupd",
        "[…] - …",
        ("client", "error"),
        "What a client was told before it was cut off: its error begins with E_.",
    ),
    Event(
        "bad_magic",
        "error",
        NSQD,
        "client(…) bad protocol magic '…'",
        ("client",),
        "It speaks another protocol, such as HTTP.",
    ),
    Event(
        "session_failed",
        "error",
        NSQD,
        "client(…) - …: …",
        ("client", "error"),
        "A bug that costs a connection. To be reported.",
    ),
    Event(
        "auth_refused",
        "warn",
        NSQD,
        "PROTOCOL(V2): […] AUTH failed …",
        ("client", "error"),
        "By the auth servers, or because none can be asked; or no user of --auth-file has it.",
    ),
    Event(
        "http_unauthorized",
        "warn",
        ALL,
        "http: no user has what … has shown",
        ("peer",),
        "A token that is none. Many from one address are not told.",
    ),
    Event(
        "http_forbidden",
        "warn",
        ALL,
        "http: … may not … … (…)",
        ("user", "method", "path", "peer"),
        "A user of --auth-file who wants more than it says.",
    ),
    Event(
        "quota_reached",
        "warn",
        NSQD,
        "AUTH: user … publishes more than its quota",
        ("user", "client"),
        "It waits, or over HTTP is refused. At each worker once a minute.",
    ),
    Event(
        "auth_file_reloaded",
        "info",
        ALL,
        "AUTH: the file of users was read again",
        (),
        "By SIGHUP, nsqd's and nsqlookupd's.",
    ),
    Event(
        "secret_too_long",
        "warn",
        NSQD,
        "PROTOCOL(V2): […] AUTH failed a secret of … bytes (at most …)",
        ("client",),
        "",
    ),
    Event(
        "tls_reloaded",
        "info",
        NSQD,
        "TLS: the certificate files were read again",
        (),
        "By SIGHUP. Who is connected keeps the old ones.",
    ),
    Event(
        "https_handshake_failed",
        "warn",
        NSQD,
        "http: TLS handshake error from …: …",
        ("peer", "error"),
        "",
    ),
    Event(
        "http_request",
        "info",
        ALL,
        "… … … (…) …",
        ("status", "method", "target", "peer", "elapsed"),
        "An answer; not of /pub, /mpub, /metrics and probes.",
    ),
    Event(
        "http_handler_failed",
        "error",
        ALL,
        "panic in HTTP handler - …",
        (),
        "A bug that costs an answer: 500. To be reported, with where, in msg.",
    ),
    # nsqd and its nsqlookupds
    Event("lookupd_added", "info", NSQD, "LOOKUP(…): adding peer", ("lookupd",), ""),
    Event("lookupd_removed", "info", NSQD, "LOOKUP(…): removing peer", ("lookupd",), ""),
    Event("lookupd_connecting", "info", NSQD, "LOOKUP connecting to …", ("lookupd",), ""),
    Event("lookupd_connected", "info", NSQD, "LOOKUPD(…): peer info …", ("lookupd",), ""),
    Event(
        "lookupd_told",
        "info",
        NSQD,
        "LOOKUPD(…): … …",
        ("lookupd", "command"),
        "REGISTER or UNREGISTER.",
    ),
    Event(
        "lookupd_lost",
        "error",
        NSQD,
        "LOOKUPD(…): … - …",
        ("lookupd", "doing", "error"),
        "It is tried again, ever more slowly.",
    ),
    Event(
        "lookupd_unresolved",
        "error",
        NSQD,
        "LOOKUPD(…): lookup - …",
        ("lookupd", "error"),
        "Its name has no address. It is looked up again.",
    ),
    Event(
        "channels_unknown",
        "error",
        NSQD,
        "no available nsqlookupd to query for channels to pre-create for topic …",
        ("topic",),
        "A new topic begins without the channels that it has elsewhere.",
    ),
    Event(
        "statsd_failed",
        "error",
        NSQD,
        "failed to create UDP socket to statsd(…)",
        ("address",),
        "",
    ),
    # nsqlookupd
    Event(
        "nsqd_identified",
        "info",
        NSQLOOKUPD,
        "CLIENT(…): IDENTIFY Address:… TCP:… HTTP:… Version:…",
        ("client", "broadcast_address"),
        "An nsqd is there.",
    ),
    Event(
        "nsqd_left",
        "info",
        NSQLOOKUPD,
        "PROTOCOL(V1): […] exiting ioloop",
        ("client",),
        "Nothing of it is announced any more.",
    ),
    Event(
        "tombstone_set",
        "info",
        NSQLOOKUPD,
        "DB: setting tombstone for producer@… of topic(…)",
        ("node", "topic"),
        "",
    ),
    # nsqadmin
    Event(
        "login", "info", NSQADMIN, "log-in: … (…) from …", ("user", "role", "peer"), "A browser's."
    ),
    Event(
        "login_failed",
        "warn",
        NSQADMIN,
        "log-in … failed, from …",
        ("peer",),
        "Many from one address are slowed down.",
    ),
    Event("users_reloaded", "info", NSQADMIN, "SIGHUP: … users", ("users",), "--auth-file."),
    Event(
        "users_refused",
        "error",
        ALL,
        "SIGHUP: …; users stay as they were",
        ("error",),
        "--auth-file was read again and is wrong.",
    ),
    Event("upstream_failed", "warn", NSQADMIN, "…", (), "A node did not answer; others did."),
    Event("request_failed", "error", NSQADMIN, "…", (), "No node answered, or one refused."),
    Event(
        "notification_failed",
        "error",
        NSQADMIN,
        "failed to send notification - …",
        ("error",),
        "--notification-http-endpoint did not take an action.",
    ),
    Event(
        "notification_lost",
        "error",
        NSQADMIN,
        "notification of … dropped: … are already queued",
        ("action",),
        "It answers too slowly.",
    ),
)
