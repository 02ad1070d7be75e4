"""nsqadmin's options: the table, their types and their rules.

Owns every flag and its default. nsqcy.config parses flags and files; nsqcy.nsqadmin.preflight opens
files and sockets.
"""

import ipaddress
from posixpath import normpath

from nsqcy.config.daemon_options import (
    CONFIG,
    HTTP_IDLE_TIMEOUT,
    LOG_FORMAT,
    LOG_LEVEL,
    VERBOSE,
    VERSION,
    check_auth_file,
    log_prefix,
    obey_rules,
    refuse,
)
from nsqcy.config.durations import HOUR, MILLISECOND, MINUTE, SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, DURATION, INT, STRING, WORDS, Options, Section
from nsqcy.options.option import Option, Rule
from nsqcy.users import token_file

MIN_INPUT_BYTES = 4 << 20

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AdminOptions(Options, program="nsqadmin"):
    """The option values of one nsqadmin. Durations are int nanoseconds."""

    _basic = Section("Basic")
    version = VERSION
    config = CONFIG
    log_level = LOG_LEVEL
    log_prefix = log_prefix("nsqadmin")
    log_format = LOG_FORMAT
    verbose = VERBOSE

    _server = Section("Server")
    http_address = Option(
        "http-address", STRING, "0.0.0.0:4171", "host:port for browsers and scripts"
    )
    base_path = Option("base-path", STRING, "/", "path prefix of all pages, as seen by browsers")
    dev_static_dir = Option(
        "dev-static-dir",
        STRING,
        "",
        "directory to serve /static and /fonts from, instead of the built-in files",
    )
    max_input_bytes = Option(
        "max-input-bytes",
        INT,
        64 << 20,
        "maximum bytes of partially received requests, across all connections",
        rule=Rule(f">= {MIN_INPUT_BYTES}", lambda value: value >= MIN_INPUT_BYTES),
    )
    http_idle_timeout = HTTP_IDLE_TIMEOUT

    _cluster = Section("Cluster")
    lookupd_http_address = Option(
        "lookupd-http-address",
        WORDS,
        (),
        "host:port of an nsqlookupd to query",
        toml_key="nsqlookupd_http_addresses",
        runtime=True,
    )
    nsqd_http_address = Option(
        "nsqd-http-address",
        WORDS,
        (),
        "host:port of an nsqd to query, for a cluster without nsqlookupd",
        toml_key="nsqd_http_addresses",
    )
    http_client_connect_timeout = Option(
        "http-client-connect-timeout", DURATION, 2 * SECOND, "timeout for an HTTP connection"
    )
    http_client_request_timeout = Option(
        "http-client-request-timeout", DURATION, 5 * SECOND, "total timeout for an HTTP request"
    )
    http_client_tls_insecure_skip_verify = Option(
        "http-client-tls-insecure-skip-verify",
        BOOL,
        False,
        "accept any certificate from nsqds and nsqlookupds",
        guard=True,
    )
    http_client_tls_root_ca_file = Option(
        "http-client-tls-root-ca-file",
        STRING,
        "",
        "PEM file with the CA certificates that nsqds and nsqlookupds are verified against, "
        "instead of the system's",
        guard=True,
    )
    http_client_tls_cert = Option(
        "http-client-tls-cert", STRING, "", "PEM file with the client certificate"
    )
    http_client_tls_key = Option(
        "http-client-tls-key", STRING, "", "PEM file with the client certificate's key"
    )
    auth_token_file = token_file.OPTION
    trust_lookupd = token_file.TRUST

    _access = Section("Access")
    allow_config_from_cidr = Option(
        "allow-config-from-cidr",
        STRING,
        "127.0.0.1/8",
        "addresses that may query /config; if empty, all may",
        guard=True,
    )
    acl_http_header = Option(
        "acl-http-header",
        STRING,
        "X-Forwarded-User",
        "header, set by a reverse proxy, that contains the user's name",
        guard=True,
    )
    admin_user = Option(
        "admin-user",
        WORDS,
        (),
        "user who may act on topics, channels and nodes; if none is set, all users may",
        toml_key="admin_users",
        rule=Rule("a non-empty name", all),
        guard=True,
    )
    auth_file = Option(
        "auth-file",
        STRING,
        "",
        "INI or TOML users file; enables log-in and replaces --admin-user",
        guard=True,
    )
    auth_session_time = Option(
        "auth-session-time",
        DURATION,
        12 * HOUR,
        "idle time after which a log-in session expires",
        rule=Rule(">= 1m", lambda value: value >= MINUTE),
    )
    auth_secure_cookie = Option(
        "auth-secure-cookie",
        BOOL,
        False,
        "restrict session cookies to HTTPS even without the header X-Forwarded-Proto: https",
        guard=True,
    )
    oidc_issuer = Option(
        "oidc-issuer",
        STRING,
        "",
        "URL of an OpenID Connect provider for log-ins, in addition to --auth-file",
        guard=True,
    )
    oidc_client_id = Option("oidc-client-id", STRING, "", "client id of nsqadmin at the provider")
    oidc_client_secret_file = Option(
        "oidc-client-secret-file",
        STRING,
        "",
        "file with the client secret; leave empty for a client without a secret",
    )
    oidc_redirect_url = Option(
        "oidc-redirect-url",
        STRING,
        "",
        "URL of nsqadmin's /login/callback, as registered with the provider",
    )
    oidc_name_claim = Option(
        "oidc-name-claim", STRING, "email", "ID token claim that contains the user's name"
    )
    oidc_role_claim = Option(
        "oidc-role-claim", STRING, "roles", "claim of the ID token that determines the role"
    )
    oidc_operate_value = Option(
        "oidc-operate-value",
        WORDS,
        (),
        "value of the role claim that grants the operate role",
        guard=True,
    )
    oidc_view_value = Option(
        "oidc-view-value",
        WORDS,
        (),
        "value of the role claim that grants the view role",
        guard=True,
    )
    notification_http_endpoint = Option(
        "notification-http-endpoint",
        STRING,
        "",
        "URL that receives a POST for each action",
    )

    _history = Section("History")
    history_interval = Option(
        "history-interval",
        DURATION,
        10 * SECOND,
        "time between two samples of all nsqds for plots; 0 disables sampling",
        rule=Rule("0 or >= 100ms", lambda value: value == 0 or value >= 100 * MILLISECOND),
    )
    history_length = Option(
        "history-length",
        DURATION,
        12 * HOUR,
        "how long samples are kept in memory",
        rule=Rule("from 1m to 48h", lambda value: MINUTE <= value <= 48 * HOUR),
    )

    _graphs = Section("Graphs")
    graphite_url = Option("graphite-url", STRING, "", "Graphite URL, for charts")
    proxy_graphite = Option("proxy-graphite", BOOL, False, "query Graphite on behalf of browsers")
    statsd_prefix = Option(
        "statsd-prefix", STRING, "nsq.%s", "the nsqds' --statsd-prefix; %s is the host"
    )
    statsd_counter_format = Option(
        "statsd-counter-format",
        STRING,
        "stats.counters.%s.count",
        "how statsd names counters for Graphite; %s is the key",
    )
    statsd_gauge_format = Option(
        "statsd-gauge-format",
        STRING,
        "stats.gauges.%s",
        "how statsd names gauges for Graphite; %s is the key",
    )
    statsd_interval = Option("statsd-interval", DURATION, MINUTE, "the nsqds' --statsd-interval")

    debug_remote = False  # nsqadmin has no debug endpoints

    @property
    def base(self) -> str:
        """The prefix of every path: empty, or a path without a trailing slash."""
        return "" if self.base_path == "/" else self.base_path

    @property
    def config_network(self) -> Network | None:
        """The network that may use /config; None means all."""
        return network(self.allow_config_from_cidr) if self.allow_config_from_cidr else None


NSQADMIN = AdminOptions.table


def normal(base_path: str) -> str:
    """Normalize a base path: one leading slash, no trailing slash."""
    return normpath(f"/{base_path.lstrip('/')}")


def network(text: str) -> Network:
    """Return the network of a CIDR block. Raises ValueError if it is invalid."""
    if "/" not in text:
        raise ValueError(f"invalid CIDR address: {text}")
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"invalid CIDR address: {text}") from None


def resolve(settings: Settings) -> AdminOptions:
    """Return the validated options. Raises StartError."""
    obey_rules(settings, settings.values)
    check_auth_file(settings)
    options = AdminOptions(settings.values)
    options = options.replace(base_path=normal(options.base_path))
    if options.lookupd_http_address and options.nsqd_http_address:
        raise refuse(settings, "use --nsqd-http-address or --lookupd-http-address not both")
    if options.auth_file and options.admin_user:
        raise refuse(settings, "use --auth-file or --admin-user not both")
    _check_oidc(settings, options)
    if options.http_client_tls_cert and not options.http_client_tls_key:
        text = "--http-client-tls-key must be specified with --http-client-tls-cert"
        raise refuse(settings, text)
    if options.http_client_tls_key and not options.http_client_tls_cert:
        text = "--http-client-tls-cert must be specified with --http-client-tls-key"
        raise refuse(settings, text)
    try:
        _ = options.config_network
    except ValueError as error:
        text = f"failed to parse --allow-config-from-cidr ({options.allow_config_from_cidr})"
        raise refuse(settings, f"{text} - {error}", "allow_config_from_cidr") from None
    return options


def _check_oidc(settings: Settings, options: AdminOptions) -> None:
    """Raise StartError if the options of the log-in provider are incomplete."""
    if not options.oidc_issuer:
        return
    needed = {
        "--auth-file": options.auth_file,
        "--oidc-client-id": options.oidc_client_id,
        "--oidc-redirect-url": options.oidc_redirect_url,
        "--oidc-operate-value or --oidc-view-value": (
            options.oidc_operate_value or options.oidc_view_value
        ),
    }
    for name, value in needed.items():
        if not value:
            raise refuse(settings, f"--oidc-issuer needs {name}")
