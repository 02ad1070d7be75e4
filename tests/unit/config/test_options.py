"""The command line of nsqd, value by value, and nsqd's requirements for values."""

import json
import re
import zlib
from hashlib import md5
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.config import durations, loader
from nsqcy.config.daemon_options import LOG_LEVEL
from nsqcy.config.durations import HOUR, MILLISECOND, MINUTE, SECOND, parse_duration
from nsqcy.config.flags import split_flags, usage
from nsqcy.config.options import INT, WORDS, Options, OptionTable, Section, parse_int
from nsqcy.errors import (
    AS_IS,
    DATED,
    LOGGED,
    FloatListError,
    HelpWanted,
    StartError,
    Stop,
    UsageError,
    VersionWanted,
)
from nsqcy.http import config_api
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqadmin.options import resolve as resolve_admin
from nsqcy.nsqd import options as nsqd_options
from nsqcy.nsqd.options import NSQD, NsqdOptions, derive, resolve
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from nsqcy.nsqlookupd.options import resolve as resolve_lookupd
from nsqcy.options.option import Option
from nsqcy.process import limits
from nsqcy.tools.common import LOOKUPD_HTTP_ADDRESS, NSQD_TCP_ADDRESS

# fmt: off
NSQ_FLAGS = [
    "version", "config", "log-level", "log-prefix", "verbose", "node-id", "worker-id",
    "tcp-address", "http-address", "https-address", "broadcast-address", "broadcast-tcp-port",
    "broadcast-http-port", "lookupd-tcp-address", "auth-http-address",
    "auth-http-request-method", "http-client-connect-timeout", "http-client-request-timeout",
    "topology-region", "topology-zone", "enable-experiment", "data-path", "mem-queue-size",
    "max-bytes-per-file", "sync-every", "sync-timeout", "queue-scan-worker-pool-max",
    "queue-scan-selection-count", "msg-timeout", "max-msg-timeout", "max-msg-size",
    "max-req-timeout", "max-body-size", "max-heartbeat-interval", "max-rdy-count",
    "max-output-buffer-size", "max-output-buffer-timeout", "min-output-buffer-timeout",
    "output-buffer-timeout", "max-channel-consumers", "statsd-address", "statsd-prefix",
    "statsd-interval", "statsd-mem-stats", "statsd-udp-packet-size", "statsd-exclude-ephemeral",
    "e2e-processing-latency-percentile", "e2e-processing-latency-window-time", "tls-cert",
    "tls-key", "tls-client-auth-policy", "tls-root-ca-file", "tls-required", "tls-min-version",
    "deflate", "max-deflate-level", "snappy",
]
# fmt: on

RESOLVE = {NSQD: resolve, NSQLOOKUPD: resolve_lookupd, NSQADMIN: resolve_admin}


def start(*argv: str) -> NsqdOptions:
    return resolve(loader.load(NSQD, argv))


def refusal(*argv: str) -> Stop:
    with pytest.raises(Stop) as caught:
        start(*argv)
    return caught.value


def assert_usage_error(error: Stop, line: str) -> None:
    assert isinstance(error, UsageError)
    assert (error.exit_code, error.fd, error.shape) == (2, 2, AS_IS)
    assert str(error) == line


# --- the table --------------------------------------------------------------------------------


def test_every_flag_of_nsq() -> None:
    assert set(NSQ_FLAGS) <= NSQD.by_flag.keys()


def test_defaults_are_nsqs() -> None:
    options = start()
    assert options.tcp_address == "0.0.0.0:4150"
    assert options.http_address == "0.0.0.0:4151"
    assert options.https_address == "0.0.0.0:4152"
    assert options.log_prefix == "[nsqd] "
    assert (options.log_level, options.tls_required, options.tls_min_version) == (2, 0, 769)
    assert options.mem_queue_size == 10000
    assert options.max_bytes_per_file == 104857600
    assert (options.sync_every, options.sync_timeout) == (2500, 2 * SECOND)
    assert (options.msg_timeout, options.max_msg_timeout) == (MINUTE, 15 * MINUTE)
    assert (options.max_msg_size, options.max_body_size) == (1048576, 5242880)
    assert options.max_req_timeout == HOUR
    assert options.max_heartbeat_interval == MINUTE
    assert (options.max_rdy_count, options.max_channel_consumers) == (2500, 0)
    assert options.max_output_buffer_size == 65536
    assert options.max_output_buffer_timeout == 30 * SECOND
    assert options.min_output_buffer_timeout == 25 * MILLISECOND
    assert options.output_buffer_timeout == 250 * MILLISECOND
    assert options.http_client_connect_timeout == 2 * SECOND
    assert options.http_client_request_timeout == 5 * SECOND
    assert options.statsd_prefix == "nsq.%s"
    assert (options.statsd_interval, options.statsd_udp_packet_size) == (MINUTE, 508)
    assert (options.statsd_mem_stats, options.statsd_exclude_ephemeral) == (True, False)
    assert options.e2e_processing_latency_window_time == 10 * MINUTE
    assert (options.deflate, options.max_deflate_level, options.snappy) == (True, 6, True)
    assert options.auth_http_request_method == "get"
    assert options.queue_scan_worker_pool_max == 4
    assert options.queue_scan_selection_count == 20
    assert options.lookupd_tcp_address == options.auth_http_address == ()
    assert options.e2e_processing_latency_percentile == options.enable_experiment == ()
    empty = "config data_path statsd_address tls_cert tls_key tls_client_auth_policy"
    empty += " tls_root_ca_file topology_region topology_zone"
    assert all(getattr(options, name) == "" for name in empty.split())


class Cups(Options, program="cups"):
    _table = Section("Table")
    cup_count = Option("cup-count", INT, 2, "number of cups")

    _shelf = Section("Shelf")
    plates = Option("plates", WORDS, (), "plates on the shelf")
    log_level = LOG_LEVEL


def test_a_class_of_options_is_a_table() -> None:
    assert Cups.table.daemon == "cups"
    assert Cups.table.sections == {
        "Table": [Cups.cup_count],
        "Shelf": [Cups.plates, Cups.log_level],
    }
    assert Cups.log_level is LOG_LEVEL
    cups = Cups(Cups.table.defaults() | {"plates": ("blue",)})
    assert (cups.cup_count, cups.plates, cups.log_level) == (2, ("blue",), 2)


def test_an_attribute_is_named_like_its_option() -> None:
    with pytest.raises((TypeError, RuntimeError)) as caught:
        type("Mugs", (Options,), {"_all": Section(""), "mugs": Cups.cup_count}, program="mugs")
    error = caught.value.__cause__ or caught.value  # wrapped before Python 3.12
    assert str(error) == (
        "Mugs.mugs holds the option 'cup_count': the attribute and the option must have the same "
        "name"
    )


def test_options_are_fixed_but_for_those_that_may_change() -> None:
    options = start()
    with pytest.raises(AttributeError):
        options.msg_timeout = 5
    with pytest.raises(AttributeError):
        options.change("msg_timeout", 5)
    options.change("log_level", 1)
    options.change("lookupd_tcp_address", ("a:1",))
    assert (options.log_level, options.lookupd_tcp_address) == (1, ("a:1",))
    assert {option.name for option in NSQD if option.runtime} == {
        "log_level",
        "lookupd_tcp_address",
    }


def test_replace_makes_another() -> None:
    options = start()
    bound = options.replace(broadcast_tcp_port=4150)
    assert (options.broadcast_tcp_port, bound.broadcast_tcp_port) == (0, 4150)
    with pytest.raises(AttributeError):
        options.replace(no_such_option=1)


def test_options_travel_as_json() -> None:
    options = start("--lookupd-tcp-address=a:1", "--e2e-processing-latency-percentile=0.5")
    again = NsqdOptions.restore(json.loads(json.dumps(options.dump())))
    assert again.dump() == options.dump()
    assert again.lookupd_tcp_address == ("a:1",)


# --- Go's flag grammar ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["-max-rdy-count=9"],
        ["--max-rdy-count=9"],
        ["-max-rdy-count", "9"],
        ["--max-rdy-count", "9"],
        ["--snappy", "-max-rdy-count", "9", "--deflate"],
        ["--max-rdy-count=3", "--max-rdy-count", "9"],
        ["--max-rdy-count=9", "--", "--max-rdy-count=1"],
        ["--max-rdy-count=9", "-", "--bogus"],
        ["--max-rdy-count=9", "", "--bogus"],
    ],
)
def test_forms_of_a_flag(argv: list[str]) -> None:
    assert start(*argv).max_rdy_count == 9


def test_a_value_may_hold_an_equals_sign_or_look_like_a_flag() -> None:
    assert start("--data-path=a=b").data_path == "a=b"
    assert start("--data-path", "-x").data_path == "-x"
    assert start("--data-path=").data_path == ""


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--max-rdy-count"], "flag needs an argument: -max-rdy-count; write --max-rdy-count=INT"),
        (
            ["---max-rdy-count=1"],
            "bad flag syntax: ---max-rdy-count=1; did you mean --max-rdy-count=1?",
        ),
        (["-=1"], "bad flag syntax: -=1; see nsqd -help"),
        (["--=1"], "bad flag syntax: --=1; see nsqd -help"),
        (["--Deflate"], "flag provided but not defined: -Deflate; did you mean --deflate?"),
        (
            ["--max_rdy_count=1"],
            "flag provided but not defined: -max_rdy_count; did you mean --max-rdy-count?",
        ),
        (
            ["--max-later-timeout=1s"],
            "flag provided but not defined: -max-later-timeout; did you mean --max-defer-timeout?",
        ),
    ],
)
def test_bad_syntax(argv: list[str], line: str) -> None:
    assert_usage_error(refusal(*argv), line)


@pytest.mark.case("CFG-01")
@pytest.mark.parametrize(
    "argv", [["--version"], ["-version"], ["--version=true", "--config=/nonexistent"]]
)
def test_version(argv: list[str]) -> None:
    error = refusal(*argv)
    assert isinstance(error, VersionWanted)
    assert (error.exit_code, error.fd) == (0, 1)
    assert re.fullmatch(r"[a-z]+ v\d+\.\d+\.\d+(-[a-z]+)? \(built w/[a-z0-9.-]+\)", str(error))
    assert str(error).startswith("nsqd v1.3.0 (built w/nsqcy-")
    assert start("--version=false")


@pytest.mark.case("CFG-02")
@pytest.mark.parametrize("flag", ["-h", "--h", "-help", "--help"])
def test_help(flag: str) -> None:
    error = refusal(flag, "--bogus")
    assert isinstance(error, HelpWanted)
    assert (error.exit_code, error.fd, error.shape) == (0, 2, AS_IS)
    assert str(error) == usage(NSQD)


def test_usage_layout() -> None:
    lines = usage(NSQD).split("\n")
    assert lines[0] == "Usage of nsqd:"
    flags = [line.split()[0] for line in lines if line.startswith("  -")]
    assert flags == sorted(f"-{flag}" for flag in NSQD.by_flag)
    assert "  -max-rdy-count int" in lines
    assert "  -deflate" in lines
    assert any(re.fullmatch(r"    \t.*\(default \"0.0.0.0:4150\"\)", line) for line in lines)


@pytest.mark.case("CFG-03")
def test_unknown_flag() -> None:
    line = "flag provided but not defined: -bogus; see nsqd -help"
    assert_usage_error(refusal("--bogus"), line)
    assert_usage_error(refusal("-bogus=5"), line)
    line = "flag provided but not defined: -lookupd-tcp-adress; did you mean --lookupd-tcp-address?"
    assert_usage_error(refusal("--lookupd-tcp-adress=a:1"), line)


@pytest.mark.case("TOOL-005")
@pytest.mark.case("CFG-04")
@pytest.mark.parametrize("text", ["5", "5 s", "1d", "", "s", ".s", "-", "1.5", "1h2", "1_0s"])
def test_bad_durations(text: str) -> None:
    error = refusal(f"--msg-timeout={text}")
    assert (error.exit_code, error.shape) == (2, AS_IS)
    assert str(error).startswith(f'invalid value "{text}" for flag -msg-timeout: ')


@pytest.mark.case("CFG-05")
@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1.5h30m", 7200000000000),
        ("250ms", 250 * MILLISECOND),
        ("-5s", -5 * SECOND),
        ("+5s", 5 * SECOND),
        ("0", 0),
        ("-0", 0),
        ("1.s", SECOND),
        (".5s", SECOND // 2),
        ("1us1µs1μs1ns", 3001),
        ("2562047h47m16.854775807s", (1 << 63) - 1),
        ("-9223372036854775808ns", -(1 << 63)),
    ],
)
def test_durations(text: str, nanoseconds: int) -> None:
    assert start(f"--msg-timeout={text}").msg_timeout == nanoseconds


@pytest.mark.parametrize("text", ["9223372036854775808ns", "2562048h", "1" * 5000 + "s"])
def test_durations_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "hours"), [("7d", 168), ("1d12h", 36), ("-2d", -48), ("+1d0s", 24), ("90m", 1.5)]
)
def test_durations_with_days(text: str, hours: float) -> None:
    assert durations.parse_with_days(text) == hours * HOUR


@pytest.mark.parametrize("text", ["d", "7dd", "1d-1h", "1.5d", "106752d", "12h1d", "1d1", "7D"])
def test_durations_with_days_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        durations.parse_with_days(text)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@example(1633)
def test_durations_survive_being_shown(nanoseconds: int) -> None:
    assert parse_duration(durations.format_duration(nanoseconds)) == nanoseconds
    assert parse_duration(durations.short_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1633, "1.633µs"),
        (25 * MILLISECOND, "25ms"),
        (728_376_310, "728.37631ms"),
        (999_999_999, "999.999999ms"),
        (1_500_000_000, "1.5s"),
        (MINUTE, "1m0s"),
        (137_302_222_392, "2m17.302222392s"),
        (100 * HOUR, "100h0m0s"),
        (-1500, "-1.5µs"),
        (90 * MINUTE, "1h30m0s"),
        (-HOUR, "-1h0m0s"),
    ],
)
def test_durations_are_shown_as_go_does(nanoseconds: int, text: str) -> None:
    assert durations.format_duration(nanoseconds) == text


@given(st.text(alphabet="0123456789.-+nuµmsh ", max_size=30) | st.text(max_size=20))
def test_a_duration_is_read_or_refused(text: str) -> None:
    try:
        assert -(1 << 63) <= parse_duration(text) < 1 << 63
    except ValueError:
        pass


@pytest.mark.case("CFG-06")
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0x10", 16),
        ("1_000", 1000),
        ("0o17", 15),
        ("017", 15),
        ("0_17", 15),
        ("0b101", 5),
        ("+7", 7),
        ("0", 0),
        ("00", 0),
        ("0X_fF", 255),
    ],
)
def test_integers(text: str, number: int) -> None:
    assert start(f"--mem-queue-size={text}").mem_queue_size == number


@pytest.mark.case("CFG-06")
@pytest.mark.parametrize(
    "text", ["1e3", "10k", "", "-", "1__0", "_1", "1_", "08", "0x", " 1", "1.0", "٣", "1" * 5000]
)
def test_bad_integers(text: str) -> None:
    error = refusal(f"--mem-queue-size={text}")
    line = (
        f'invalid value "{text}" for flag -mem-queue-size: parse error'
        " (allowed: an integer such as 2500, 1_000 or 0x10)"
    )
    assert_usage_error(error, line)


@pytest.mark.parametrize("text", ["9223372036854775808", "-0x8000000000000001"])
def test_integers_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_int(text)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(["d", "#x", "#o", "#b", "_d"]))
def test_integers_in_every_base(number: int, form: str) -> None:
    assert parse_int(format(number, form)) == number


@pytest.mark.case("CFG-07")
def test_booleans() -> None:
    for text in ("1", "t", "T", "TRUE", "true", "True"):
        assert start("--deflate=false", f"--deflate={text}").deflate is True
    for text in ("0", "f", "F", "FALSE", "false", "False"):
        assert start(f"--deflate={text}").deflate is False
    for text in ("no", "yes", "tRUE", ""):
        line = f'invalid boolean value "{text}" for -deflate: parse error (allowed: true or false)'
        assert_usage_error(refusal(f"--deflate={text}"), line)


@pytest.mark.case("CFG-08")
def test_of_repeated_scalars_the_last_counts() -> None:
    assert start("--deflate=false", "--deflate=true", "--deflate=0").deflate is False


def test_blanks_around_an_address_are_no_part_of_it() -> None:
    options = start("--lookupd-tcp-address", " a:1 ", "--auth-http-address=b:2 ")
    assert options.lookupd_tcp_address == ("a:1",)
    assert options.auth_http_address == ("b:2",)
    assert split_flags(NSQADMIN, ["--admin-user= ann "])[0] == {"admin_user": ("ann",)}
    table = OptionTable("tool", {"": (NSQD_TCP_ADDRESS, LOOKUPD_HTTP_ADDRESS)})
    assert split_flags(table, ["--nsqd-tcp-address", " a:1", "--nsqd-tcp-address=b:2 "])[0] == {
        "nsqd_tcp_address": ("a:1", "b:2")
    }
    given = config_api.read(NSQD.by_name["lookupd_tcp_address"], b'[" a:1", "b:2 "]')
    assert given == ("a:1", "b:2")


@pytest.mark.case("CFG-09")
def test_the_first_word_ends_the_flags() -> None:
    assert start("word", "--log-level=bogus").log_level == 2
    assert start("--deflate", "false", "--log-level=bogus").deflate is True


@pytest.mark.case("CFG-10")
def test_tls_required_takes_no_word() -> None:
    error = refusal("--tls-required", "tcp-https", "--log-level=debug")
    assert (error.exit_code, error.shape) == (1, LOGGED)
    assert str(error) == (
        "failed to instantiate nsqd - "
        "cannot require TLS client connections without TLS key and cert"
    )
    assert split_flags(NSQD, ["--tls-required", "tcp-https"])[0] == {"tls_required": 2}


@pytest.mark.case("CFG-11")
@pytest.mark.parametrize(
    ("text", "number"), [("tcp-https", 1), ("TCP-HTTPS", 1), ("True", 2), ("tRuE", 2), ("0", 0)]
)
def test_tls_required(text: str, number: int) -> None:
    options = start(f"--tls-required={text}", "--tls-cert=c", "--tls-key=k")
    assert options.tls_required == number


def test_bad_tls_required() -> None:
    line = (
        'invalid boolean value "maybe" for -tls-required: parse error'
        " (allowed: false, true or tcp-https)"
    )
    assert_usage_error(refusal("--tls-required=maybe"), line)


@pytest.mark.case("CFG-12")
def test_tls_min_version() -> None:
    assert refusal("--tls-min-version=ssl3.0").exit_code == 2
    assert start("--tls-min-version=TLS1.3").tls_min_version == 772
    assert start("--tls-min-version=tls1.1").tls_min_version == 770
    assert start("--tls-min-version=").tls_min_version == 769


@pytest.mark.case("CFG-13")
def test_log_level() -> None:
    assert start("--log-level=WARN").log_level == 3
    assert start("--log-level", "Debug").log_level == 1
    assert refusal("--log-level=warning").exit_code == 2
    assert refusal("--log-level=2").exit_code == 2


@pytest.mark.case("CFG-14")
def test_deprecated_flags_are_taken_with_a_warning() -> None:
    settings = loader.load(NSQD, ["--worker-id", "--verbose"])
    assert settings["node_id"] == start().node_id
    assert len(settings.warnings) == 2
    assert all("deprecated" in warning for warning in settings.warnings)


@pytest.mark.case("CFG-15")
def test_worker_id_is_boolean() -> None:
    line = 'invalid boolean value "5" for -worker-id: parse error (allowed: true or false)'
    assert_usage_error(refusal("--worker-id=5"), line)


@pytest.mark.parametrize("flag", ["queue-scan-worker-pool-max", "queue-scan-selection-count"])
def test_flags_without_effect_say_so(flag: str) -> None:
    settings = loader.load(NSQD, [f"--{flag}=7"])
    assert resolve(settings).dump()[flag.replace("-", "_")] == 7
    assert [w for w in settings.warnings if flag in w and "no effect" in w]


def test_lists_grow_and_keep_their_commas() -> None:
    options = start("--lookupd-tcp-address=x:1,y:2", "--lookupd-tcp-address", "z:3")
    assert options.lookupd_tcp_address == ("x:1,y:2", "z:3")


@pytest.mark.case("CFG-20")
def test_percentiles_are_sorted() -> None:
    flag = "--e2e-processing-latency-percentile"
    options = start(f"{flag}=0.99,1.0", f"{flag}=0.5")
    assert options.e2e_processing_latency_percentile == (1.0, 0.99, 0.5)


@given(st.lists(st.sampled_from(["-", "--", "="]) | st.text(max_size=6), max_size=8))
def test_any_words_are_flags_or_a_stop(words: list[str]) -> None:
    try:
        loader.load(NSQD, words)
    except Stop as stop:
        assert stop.exit_code in (0, 1, 2)


@given(st.sampled_from(sorted(set(NSQD.by_flag) - {"config"})), st.text(max_size=12))
def test_any_value_of_any_flag_is_read_or_a_stop(flag: str, text: str) -> None:
    try:
        start(f"--{flag}={text}")
    except Stop as stop:
        assert stop.exit_code in (0, 1, 2)
        assert str(stop)


# --- nsqd's requirements ----------------------------------------------------------------------


@pytest.mark.case("C334", "F10", "CFG-17", "CFG-18")
@pytest.mark.parametrize(
    ("argv", "text"),
    [
        pytest.param(
            [f"--node-id={value}"],
            "--node-id must be [0,1024)",
            marks=pytest.mark.case("CFG-16"),
        )
        for value in (1024, -1)
    ]
    + [
        pytest.param(
            [f"--max-deflate-level={value}"],
            "--max-deflate-level must be [1,9]",
            marks=pytest.mark.case("CFG-17"),
        )
        for value in (0, 10)
    ]
    + [
        pytest.param(
            ["--auth-http-request-method=GET"],
            "--auth-http-request-method must be post or get",
            marks=pytest.mark.case("CFG-18"),
        )
    ]
    + [
        pytest.param(
            [f"--e2e-processing-latency-percentile=0.5,{value}"],
            f"invalid E2E processing latency percentile: {value}",
            marks=pytest.mark.case("CFG-19"),
        )
        for value in ("0", "1.1", "-0.5")
    ]
    + [
        (["--sync-timeout=0"], "--sync-timeout must be > 0"),
        (["--output-buffer-timeout=-1s"], "--output-buffer-timeout must be > 0"),
        (["--mem-queue-size=-1"], "--mem-queue-size must be >= 0"),
        (["--max-msg-size=0"], "--max-msg-size must be > 0"),
        (["--statsd-address=a:1", "--statsd-interval=0"], "--statsd-interval must be > 1s"),
        (["--statsd-address=a:1", "--statsd-interval=1s"], "--statsd-interval must be > 1s"),
        (
            [
                "--e2e-processing-latency-percentile=1",
                "--e2e-processing-latency-window-time=0",
            ],
            "--e2e-processing-latency-window-time must be > 0",
        ),
        (["--workers=0"], "--workers must be [1,64]"),
        (["--workers=65"], "--workers must be [1,64]"),
        (["--memory-bytes=-1"], "--memory-bytes must be >= 0"),
        (["--durability=disk"], "--durability must be memory, os or fsync"),
        (["--retention-time=-1s"], "--retention-time must be >= 0"),
        (["--retention-bytes=-1"], "--retention-bytes must be >= 0"),
        (["--min-free-disk=-1"], "--min-free-disk must be >= 0"),
        (["--log-format=xml"], "--log-format must be text or json"),
        (
            ["--max-input-bytes=5242879"],
            "--max-input-bytes must be >= --max-msg-size and --max-body-size (5242880)",
        ),
        # nsqd reports the error that NSQ checks first.
        (["--node-id=-1", "--max-deflate-level=0"], "--max-deflate-level must be [1,9]"),
        (
            ["--tls-required", "--sync-timeout=0", "-auth-http-request-method=x"],
            "cannot require TLS client connections without TLS key and cert",
        ),
    ],
)
def test_values_nsqd_does_not_start_with(argv: list[str], text: str) -> None:
    error = refusal(*argv)
    assert isinstance(error, StartError)
    assert (error.exit_code, error.fd, error.shape) == (1, 2, LOGGED)
    assert str(error.parts[0]) == f"failed to instantiate nsqd - {text}"


@pytest.mark.case("CFG-19")
@pytest.mark.parametrize("text", ["x", "0.5,", "0.5, 0.9", "nan", "1e999", "٣"])
def test_a_percentile_that_is_no_number(text: str) -> None:
    error = refusal(f"--e2e-processing-latency-percentile={text}")
    assert isinstance(error, FloatListError)
    assert (error.exit_code, error.fd, error.shape) == (1, 2, DATED)
    assert str(error) == f"Could not parse: {text.split(',')[-1]}"


def test_without_statsd_or_percentiles_their_times_do_not_matter() -> None:
    assert start("--statsd-interval=0", "--e2e-processing-latency-window-time=0")


@pytest.mark.case("CFG-35")
@pytest.mark.parametrize("flag", ["--tls-cert=x", "--tls-key=x"])
def test_a_certificate_needs_its_key(flag: str) -> None:
    error = refusal(flag, "--tls-required")
    assert error.exit_code == 1
    assert str(error).startswith("failed to instantiate nsqd - failed to build TLS config - ")


def test_a_client_policy_requires_tls() -> None:
    assert "cannot require TLS" in str(refusal("--tls-client-auth-policy=require"))
    certificate = ("--tls-cert=c", "--tls-key=k")
    assert start(*certificate, "--tls-client-auth-policy=require").tls_required == 2
    policy = "--tls-client-auth-policy=require"
    assert start(*certificate, policy, "--tls-required=0").tls_required == 2
    assert start(*certificate, policy, "--tls-required=tcp-https").tls_required == 1


@pytest.mark.case("F11")
@pytest.mark.ours
@pytest.mark.parametrize("policy", ["requre-verify", "Require", "require ", "true"])
def test_an_unknown_client_policy_ends_the_start(policy: str) -> None:
    error = refusal("--tls-cert=c", "--tls-key=k", f"--tls-client-auth-policy={policy}")
    assert (error.exit_code, error.shape) == (1, LOGGED)
    assert str(error) == (
        "failed to instantiate nsqd - --tls-client-auth-policy must be require, require-verify or"
        " empty"
    )


def test_clients_are_not_verified_by_a_file_without_a_name() -> None:
    verify = ("--tls-cert=c", "--tls-key=k", "--tls-client-auth-policy=require-verify")
    assert str(refusal(*verify, "--tls-root-ca-file=")) == (
        "failed to instantiate nsqd - --tls-root-ca-file is empty: set it to a file, or omit"
        " the option to accept certificates from all CAs that the system trusts"
    )
    settings = loader.load(NSQD, verify)
    resolve(settings)
    (warning,) = settings.warnings
    assert "--tls-root-ca-file" in warning
    assert start("--tls-root-ca-file=").tls_root_ca_file == ""


@pytest.mark.parametrize("table", [NSQD, NSQLOOKUPD, NSQADMIN], ids=lambda table: table.daemon)
def test_an_auth_file_has_a_name(table: OptionTable) -> None:
    with pytest.raises(StartError, match="--auth-file is empty: set it to a users file, or"):
        RESOLVE[table](loader.load(table, ["--auth-file="]))


def test_an_auth_server_without_an_address_admits_no_client() -> None:
    assert start("--auth-http-address=").wants_auth


def test_an_admin_has_a_name() -> None:
    with pytest.raises(StartError, match="--admin-user must be a non-empty name"):
        resolve_admin(loader.load(NSQADMIN, ["--admin-user=ann", "--admin-user= "]))


@pytest.mark.case("CFG-09")
@pytest.mark.ours
@pytest.mark.parametrize(
    ("table", "words", "text"),
    [
        (NSQD, ["a", "--auth-file=x"], 'flag -auth-file would be ignored: flags must precede "a"'),
        (NSQD, ["--", "-tls-required"], "flag -tls-required would be ignored"),
        (
            NSQD,
            ["--tls-required", "true", "--tls-client-auth-policy", "require"],
            "flag -tls-client-auth-policy would be ignored",
        ),
        (NSQD, ["--lookupd-tcp-address=a:1,", "b:1", "--auth-http-address=c"], 'precede "b:1"'),
        (NSQADMIN, ["a", "--admin-user=ann"], "flag -admin-user would be ignored"),
        (NSQLOOKUPD, ["a", "b", "-auth-file", "x"], "flag -auth-file would be ignored"),
        (
            NSQD,
            ["--debug-remote", "false"],
            "boolean flag -debug-remote takes no separate value: write -debug-remote=false",
        ),
        (
            NSQADMIN,
            ["--http-client-tls-insecure-skip-verify", "0"],
            "write -http-client-tls-insecure-skip-verify=0",
        ),
    ],
)
def test_a_flag_that_guards_a_door_is_not_ignored(
    table: OptionTable, words: list[str], text: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        loader.load(table, words)


@pytest.mark.parametrize(
    "words", [["--deflate", "false"], ["--auth-file", "x", "word"], ["--debug-remote", "x"]]
)
def test_other_words_behind_the_flags_are_ignored(words: list[str]) -> None:
    (warning,) = loader.load(NSQD, words).warnings
    assert warning.startswith(f'"{words[-1]}" is ignored: ')


@pytest.mark.case("CFG-36")
def test_an_unknown_experiment_is_a_warning() -> None:
    argv = ["--enable-experiment=bogus", "--enable-experiment=topology-aware-consumption"]
    settings = loader.load(NSQD, argv)
    resolve(settings)
    assert len(settings.warnings) == 1
    assert '"bogus"' in settings.warnings[0]


@pytest.mark.case("CFG-37")
def test_an_empty_address_stays_empty() -> None:
    assert start("--http-address=").http_address == ""


@pytest.mark.case("CFG-33")
@pytest.mark.case("CFG-34")
def test_the_data_path_is_not_looked_at_here() -> None:
    assert start("--data-path=/nonexist").data_path == "/nonexist"


@pytest.mark.case("CFG-38")
def test_the_node_id_is_made_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqd_options, "hostname", lambda: "vm")
    assert start().node_id == 617
    monkeypatch.setattr(nsqd_options, "hostname", lambda: "other")
    assert start().node_id == zlib.crc32(md5(b"other").digest()) % 1024


def test_max_input_bytes_grows_with_the_largest_command() -> None:
    assert start().max_input_bytes == 256 << 20
    assert start("--max-body-size=1_000_000_000").max_input_bytes == 1_000_000_000


def test_memory_bytes_is_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqd_options, "available_memory", lambda: 8 << 30)
    assert start("--workers=4").memory_bytes == 1 << 30
    assert start("--workers=4", "--memory-bytes=77").memory_bytes == 77


def test_workers_are_the_usable_cpus_but_at_most_four(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, workers in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr(nsqd_options, "usable_cpus", lambda cpus=cpus: cpus)
        assert start().workers == workers
    assert start("--workers=64").workers == 64


# --- limits of the machine --------------------------------------------------------------------


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


GROUPS_V2 = {"proc/self/cgroup": "0::/a/b\n"}
GROUPS_V1 = {"proc/self/cgroup": "4:memory:/a\n2:cpu,cpuacct:/a\n0::/\n"}
V1_CPU = "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs"


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        (GROUPS_V2, 8),
        (GROUPS_V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        (GROUPS_V2 | {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 2),
        (GROUPS_V2 | {"sys/fs/cgroup/a/b/cpu.max": "10000 100000\n"}, 1),
        (GROUPS_V2 | {"sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        (GROUPS_V2 | {"sys/fs/cgroup/cpu.max": "900000 100000\n"}, 8),
        (GROUPS_V2 | {"sys/fs/cgroup/a/b/cpu.max": "rubbish"}, 8),
        (GROUPS_V1 | {f"{V1_CPU}_quota_us": "-1\n", f"{V1_CPU}_period_us": "100000\n"}, 8),
        (GROUPS_V1 | {f"{V1_CPU}_quota_us": "200000\n", f"{V1_CPU}_period_us": "100000\n"}, 2),
    ],
)
def test_usable_cpus(tmp_path: Path, files: dict[str, str], cpus: int) -> None:
    write_tree(tmp_path, files)
    assert limits.usable_cpus(str(tmp_path)) == cpus


MEMINFO = {"proc/meminfo": "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n"}
V2_MEMORY = "sys/fs/cgroup/a/b/memory"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 0),
        (MEMINFO, 1024000),
        (MEMINFO | GROUPS_V2 | {f"{V2_MEMORY}.max": "max\n"}, 1024000),
        (MEMINFO | GROUPS_V2 | {f"{V2_MEMORY}.max": "500\n"}, 500),
        (
            MEMINFO
            | GROUPS_V2
            | {
                f"{V2_MEMORY}.max": "500\n",
                f"{V2_MEMORY}.current": "400\n",
                f"{V2_MEMORY}.stat": "anon 1\ninactive_file 300\n",
            },
            400,
        ),
        (
            MEMINFO | GROUPS_V2 | {f"{V2_MEMORY}.max": "500\n", f"{V2_MEMORY}.current": "900\n"},
            0,
        ),
        (
            MEMINFO
            | GROUPS_V1
            | {
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "700\n",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "100\n",
            },
            600,
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], free: int) -> None:
    write_tree(tmp_path, files)
    assert limits.available_memory(str(tmp_path)) == free


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, False),
        (GROUPS_V2 | {f"{V2_MEMORY}.oom.group": "0\n"}, False),
        (GROUPS_V2 | {f"{V2_MEMORY}.oom.group": "1\n"}, True),
        (GROUPS_V2 | {"sys/fs/cgroup/a/memory.oom.group": "1\n"}, True),
    ],
)
def test_kills_groups(tmp_path: Path, files: dict[str, str], kills: bool) -> None:
    write_tree(tmp_path, files)
    assert limits.kills_groups(str(tmp_path)) is kills


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_this_machine_has_limits() -> None:
    assert limits.usable_cpus() >= 1
    assert limits.available_memory() > 0


@pytest.mark.parametrize(
    "prefix, host, expected",
    [
        ("nsq.%s", "myhost", "nsq.myhost_4151."),
        ("%s.a.%s", "h.x.y", "h_x_y_4151.a.h_x_y_4151."),
        ("%s.", "::1", "[__1]_4151."),
        ("", "h", ""),
    ],
)
def test_the_statsd_prefix_names_the_address(prefix: str, host: str, expected: str) -> None:
    options = start(f"--statsd-prefix={prefix}", f"--broadcast-address={host}")
    assert derive(options, {"tcp": 4150, "http": 4151}).statsd_prefix == expected


def test_ports_that_are_announced() -> None:
    found = derive(start(), {"tcp": 1, "http": 2})
    assert (found.broadcast_tcp_port, found.broadcast_http_port) == (1, 2)
    told = start("--broadcast-tcp-port=8", "--broadcast-http-port=9")
    found = derive(told, {"tcp": 1, "http": 2})
    assert (found.broadcast_tcp_port, found.broadcast_http_port) == (8, 9)
    found = derive(start("--http-address="), {"tcp": 1})
    assert (found.broadcast_tcp_port, found.broadcast_http_port) == (1, 0)
