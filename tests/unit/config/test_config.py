"""Configuration files: TOML as in NSQ, nsqcy's INI, and their precedence."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy import __main__ as command
from nsqcy.config import configuration_file, loader
from nsqcy.config.file_settings import FileSettings
from nsqcy.config.policies import ChannelPolicy, Policies, TopicPolicy
from nsqcy.errors import (
    AS_IS,
    DATED,
    LOGGED,
    CoerceError,
    ConfigError,
    ParseError,
    StartError,
    StartErrors,
    Stop,
    UsageError,
)
from nsqcy.nsqd import options
from nsqcy.nsqd.options import NSQD, NsqdOptions, resolve
from nsqcy.nsqlookupd.options import NSQLOOKUPD

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Factory of config files: write the text, and return the path."""

    def put(text: str) -> str:
        path = tmp_path / "nsqd.conf"
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        return str(path)

    return put


def start(path: str, *argv: str) -> NsqdOptions:
    return resolve(loader.load(NSQD, [f"--config={path}", *argv]))


def refusal(path: str, *argv: str) -> Stop:
    with pytest.raises(Stop) as caught:
        start(path, *argv)
    return caught.value


def warnings(path: str) -> list[str]:
    settings = loader.load(NSQD, ["--config", path])
    resolve(settings)
    return settings.warnings


# --- precedence -------------------------------------------------------------------------------

BOTH_FORMATS = pytest.mark.parametrize("head", ["", "[nsqd]\n"], ids=["toml", "ini"])


@BOTH_FORMATS
@pytest.mark.case("CFG-24")
def test_a_flag_beats_the_file_and_the_file_the_default(write: Write, head: str) -> None:
    path = write(f"{head}max_rdy_count = 7\n")
    assert start(path).max_rdy_count == 7
    assert start(path, "--max-rdy-count=9").max_rdy_count == 9
    assert start(path, "--max-rdy-count=2500").max_rdy_count == 2500
    assert start(path).max_msg_size == 1048576


@pytest.mark.case("CFG-23")
@pytest.mark.parametrize(
    "text",
    ['nsqlookupd_tcp_addresses = ["a:1"]', "[nsqd]\nlookupd_tcp_address = a:1"],
    ids=["toml", "ini"],
)
def test_a_list_on_the_command_line_replaces_the_files(write: Write, text: str) -> None:
    path = write(text)
    assert start(path).lookupd_tcp_address == ("a:1",)
    argv = ("--lookupd-tcp-address=x:1,y:2", "--lookupd-tcp-address=z:3")
    assert start(path, *argv).lookupd_tcp_address == ("x:1,y:2", "z:3")


def test_no_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nsqd.ini").write_text("[nsqd]\nmax_rdy_count = 7\n")
    monkeypatch.chdir(tmp_path)
    assert resolve(loader.load(NSQD, [])).max_rdy_count == 2500
    assert resolve(loader.load(NSQD, ["--config="])).max_rdy_count == 2500


@BOTH_FORMATS
def test_a_refused_value_says_which_file_and_line_it_is_from(write: Write, head: str) -> None:
    path = write(f"{head}\nmax_deflate_level = 10\n")
    line = 3 if head else 2
    error = refusal(path)
    assert isinstance(error, StartError)
    assert str(error) == (
        f"failed to instantiate nsqd - --max-deflate-level must be [1,9] ({path}, line {line})"
    )
    assert path not in str(refusal(path, "--max-deflate-level=11"))


# --- TOML -------------------------------------------------------------------------------------


@pytest.mark.case("CFG-21")
def test_toml_percentiles_keep_their_order(write: Write) -> None:
    path = write("e2e_processing_latency_percentiles = [0.5, 0.99]")
    assert start(path).e2e_processing_latency_percentile == (0.5, 0.99)
    path = write('e2e_processing_latency_percentiles = "0.5, 0.99"')
    assert start(path).e2e_processing_latency_percentile == (0.5, 0.99)
    path = write("e2e_processing_latency_percentiles = [1, 0.99]")
    assert start(path).e2e_processing_latency_percentile == (1.0, 0.99)


@pytest.mark.case("CFG-19")
@pytest.mark.parametrize("text", ["0.0", "1.1", "nan", "inf", "2"])
def test_toml_percentiles_have_a_range(write: Write, text: str) -> None:
    error = refusal(write(f"e2e_processing_latency_percentiles = [{text}]"))
    assert f"invalid E2E processing latency percentile: {float(text):g} (" in str(error)
    assert "line 1" in str(error)


@pytest.mark.case("CFG-22")
@pytest.mark.ours
@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ('"a:1, b:2"', ("a:1", "b:2")),
        ('" a:1 ,\\tb:2 "', ("a:1", "b:2")),
        ('[" a:1", "b:2 "]', ("a:1", "b:2")),
        ('["a:1, b:2", "c:3"]', ("a:1, b:2", "c:3")),
    ],
)
def test_blanks_around_the_addresses_of_a_toml_list(
    write: Write, text: str, addresses: tuple[str, ...]
) -> None:
    path = write(f"nsqlookupd_tcp_addresses = {text}")
    assert start(path).lookupd_tcp_address == addresses


@pytest.mark.case("CFG-25")
def test_a_toml_integer_for_a_duration_is_milliseconds(write: Write) -> None:
    assert start(write("msg_timeout = 1500")).msg_timeout == 1500000000
    assert start(write('msg_timeout = "1.5s"')).msg_timeout == 1500000000


@pytest.mark.case("CFG-27")
def test_a_toml_string_for_an_integer(write: Write) -> None:
    assert start(write('mem_queue_size = "77"')).mem_queue_size == 77
    assert start(write("mem_queue_size = 0x4D")).mem_queue_size == 77


@pytest.mark.case("CFG-26")
@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('msg_timeout = "1500"', "MsgTimeout"),
        ("msg_timeout = 1.5", "MsgTimeout"),
        ("msg_timeout = true", "MsgTimeout"),
        (f"msg_timeout = {1 << 62}", "MsgTimeout"),
        ("mem_queue_size = 1e3", "MemQueueSize"),
        ('mem_queue_size = "0x10"', "MemQueueSize"),
        ('mem_queue_size = "٣"', "MemQueueSize"),
        ("mem_queue_size = true", "MemQueueSize"),
        (f"mem_queue_size = {1 << 63}", "MemQueueSize"),
        ("deflate = 0", "Deflate"),
        ("deflate = 1", "Deflate"),
        ('deflate = "no"', "Deflate"),
        ("data_path = 5", "DataPath"),
        ("http_address = false", "HTTPAddress"),
        ("id = 1.5", "ID"),
        ("nsqlookupd_tcp_addresses = 5", "NSQLookupdTCPAddresses"),
        ('auth_http_addresses = ["a", 5]', "AuthHTTPAddresses"),
        ('e2e_processing_latency_percentiles = ["x"]', "E2EProcessingLatencyPercentiles"),
        ('e2e_processing_latency_percentiles = "x"', "E2EProcessingLatencyPercentiles"),
        ("e2e_processing_latency_percentiles = 0.5", "E2EProcessingLatencyPercentiles"),
        ("[max_rdy_count]", "MaxRdyCount"),
    ],
)
def test_toml_values_of_the_wrong_type(write: Write, text: str, field: str) -> None:
    path = write(f"\n{text}\n")
    error = refusal(path)
    assert isinstance(error, CoerceError)
    assert (error.exit_code, error.fd, error.shape) == (1, 2, DATED)
    assert (error.file, error.line) == (path, 2)
    assert error.allowed
    assert str(error).startswith("ERROR: Resolve failed to coerce value ")
    assert f" for field {field} - {path}: line 2: " in str(error)


def test_a_coerce_failure_shows_value_and_default(write: Write) -> None:
    error = refusal(write('auth_http_addresses = ["a", 5, true]'))
    assert "coerce value [a 5 true] ([]) for field AuthHTTPAddresses" in str(error)
    error = refusal(write('msg_timeout = "1500"'))
    assert "coerce value 1500 (1m0s) for field MsgTimeout" in str(error)


@pytest.mark.case("CFG-28")
def test_what_toml_does_not_know_is_ignored_with_a_warning(write: Write) -> None:
    path = write(
        "verbose = false\n"
        "unknown = 1\n"
        "mem-queue-size = 5\n"
        "node_id = 5\n"
        'lookupd_tcp_address = ["a:1"]\n'
        "Max_Rdy_Count = 1\n"
        "worker_id = true\n"
        "[section]\n"
        "max_rdy_count = 6\n"
    )
    options, defaults = start(path).dump(), resolve(loader.load(NSQD, [])).dump()
    del options["config"], defaults["config"], options["memory_bytes"], defaults["memory_bytes"]
    assert options == defaults
    said = warnings(path)
    assert [warning.split(":")[0] for warning in said] == [
        f"{path}, line {line}" for line in range(1, 9)
    ]
    assert "(--verbose is deprecated and has no effect; use --log-level)" in said[0]
    assert '"unknown" is ignored' in said[1]
    assert "the key of --mem-queue-size is mem_queue_size" in said[2]
    assert "the key of --node-id is id" in said[3]
    assert "the key of --lookupd-tcp-address is nsqlookupd_tcp_addresses" in said[4]
    assert "table [section] is ignored" in said[7]


@pytest.mark.case("CFG-28")
def test_a_toml_file_may_begin_with_a_table(write: Write) -> None:
    path = write("# a comment\n\n[section]\nmax_rdy_count = 6\n")
    assert start(path).max_rdy_count == 2500
    assert "for an INI file, begin the file with [nsqd]" in warnings(path)[0]


@pytest.mark.case("CFG-29")
def test_toml_id(write: Write) -> None:
    assert start(write("id = 5")).node_id == 5


@pytest.mark.case("CFG-16")
def test_toml_id_has_a_range(write: Write) -> None:
    assert "--node-id must be [0,1024)" in str(refusal(write("id = 1024")))


@pytest.mark.case("CFG-28")
@pytest.mark.ours
@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("tls-required = true", "tls-required", "tls_required"),
        ("TLS_Required = true", "TLS_Required", "tls_required"),
        ('tls_client_auth_polcy = "require"', "tls_client_auth_polcy", "tls_client_auth_policy"),
        ('auth_http_address = ["a:1"]', "auth_http_address", "auth_http_addresses"),
        ('auth_flie = "x"', "auth_flie", "auth_file"),
        ('[section]\nauth_file = "x"', "section.auth_file", "auth_file"),
    ],
)
def test_toml_that_was_to_guard_a_door_is_not_ignored(
    write: Write, text: str, key: str, meant: str
) -> None:
    path = write(f"msg_timeout = 1000\n{text}\n")
    error = refusal(path)
    assert isinstance(error, ConfigError) and error.line == 2
    assert error.detail == f'unknown key "{key}"; did you mean {meant}?'


@pytest.mark.case("CFG-30")
def test_toml_tls_min_version(write: Write) -> None:
    assert start(write('tls_min_version = ""')).tls_min_version == 769
    assert start(write('tls_min_version = "TLS1.2"')).tls_min_version == 771


@pytest.mark.parametrize(
    ("text", "number"), [("true", 2), ("1", 2), ("0", 0), ('"tcp-https"', 1), ('"f"', 0)]
)
def test_toml_tls_required(write: Write, text: str, number: int) -> None:
    path = write(f'tls_required = {text}\ntls_cert = "c"\ntls_key = "k"\n')
    assert start(path).tls_required == number


@pytest.mark.case("CFG-31")
@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ('tls_required = "bad"', "failed parsing tls_required bad"),
        ("tls_required = 2", "failed parsing tls_required 2"),
        ("tls_required = -1", "failed parsing tls_required -1"),
        ('log_level = "trace"', "failed parsing log_level trace"),
        ("log_level = 2", "failed parsing log_level 2"),
        ('tls_min_version = "ssl3.0"', "failed parsing tls_min_version ssl3.0"),
        ("tls_min_version = 771", "failed parsing tls_min_version 771"),
    ],
)
def test_toml_values_nsq_parses_first(write: Write, text: str, beginning: str) -> None:
    path = write(f"msg_timeout = true\n{text}\n")
    error, other = refusal(path).parts
    assert f"{path}: line 1: msg_timeout: invalid value type" in str(other)
    assert isinstance(error, ParseError)
    assert (error.exit_code, error.fd, error.shape) == (1, 2, LOGGED)
    assert str(error).startswith(f"{beginning} - {path}: line 2: ")
    assert "allowed: " in str(error)


@pytest.mark.case("TOOL-014")
@pytest.mark.case("CFG-32")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    error = refusal(missing)
    assert (error.exit_code, error.shape) == (1, LOGGED)
    assert str(error) == (
        f"failed to load config file {missing} - open {missing}: no such file or directory"
    )
    assert "is a directory" in str(refusal(str(tmp_path)))
    assert "zero byte" in str(refusal("a\0b"))


@pytest.mark.case("CFG-32")
@pytest.mark.parametrize(
    "text",
    ["a = 1\nmax_rdy_count 7", "a = 1\nx = ", "a = 1\na = 2", "a = 1\n= 5", "a = 1\nb = 1e"],
)
def test_toml_syntax_errors(write: Write, text: str) -> None:
    path = write(text)
    error = refusal(path)
    assert isinstance(error, ConfigError)
    assert error.exit_code == 1
    assert error.line in (2, None)
    assert error.allowed == "TOML, or INI that starts with [nsqd]"
    assert str(error).startswith(f"failed to load config file {path} - ")


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "x = " + "1" * 10_000, "x = " + "{a=" * 50_000, "\udcff = 1"],
    ids=["deep array", "long number", "deep table", "not UTF-8"],
)
def test_hostile_toml(write: Write, text: str) -> None:
    assert str(refusal(write(text))).startswith("failed to load config file")


def test_nsqs_sample_file(write: Write) -> None:
    options = start(
        write(
            'log_level = "info"\ntcp_address = "0.0.0.0:4150"\nmax_msg_size = 1024768\n'
            'max_body_size = 5123840\nmax_output_buffer_timeout = "1s"\n'
            'tls_min_version = ""\ntls_required = false\n'
            'nsqlookupd_tcp_addresses = [\n    "127.0.0.1:4160"\n]\nsnappy = true\n'
        )
    )
    assert (options.max_msg_size, options.max_body_size) == (1024768, 5123840)
    assert options.max_output_buffer_timeout == 1_000_000_000
    assert options.lookupd_tcp_address == ("127.0.0.1:4160",)


def test_a_byte_order_mark_and_crlf_are_no_matter(write: Write) -> None:
    assert start(write("\ufeffmax_rdy_count = 7\r\n")).max_rdy_count == 7
    assert start(write("\ufeff[nsqd]\r\nmax_rdy_count = 7\r\n")).max_rdy_count == 7


# --- INI --------------------------------------------------------------------------------------


def ini(write: Write, *lines: str) -> str:
    return write("\n".join(["# first", "", "[nsqd]", *lines]))


def test_ini_values(write: Write) -> None:
    options = start(
        ini(
            write,
            "max_rdy_count=1_000",
            "  msg_timeout   =   1.5h30m  ",
            "# a comment",
            "   # another",
            "deflate = f",
            "log_level = WARN",
            "lookupd_tcp_address = a:1, b:2 ,",
            "e2e_processing_latency_percentile = 0.5, 0.99",
            "statsd_prefix = nsq.%s;a#b=c",
            'log_prefix = "[x] "',
            "http_address =",
            "tls_min_version =",
            "mem_queue_size = 0x10",
        )
    )
    assert options.max_rdy_count == 1000
    assert options.msg_timeout == 7200000000000
    assert options.deflate is False
    assert options.log_level == 3
    assert options.lookupd_tcp_address == ("a:1", "b:2")
    assert options.e2e_processing_latency_percentile == (0.5, 0.99)
    assert options.statsd_prefix == "nsq.%s;a#b=c"
    assert options.log_prefix == "[x] "
    assert options.http_address == ""
    assert options.tls_min_version == 769
    assert options.mem_queue_size == 16


def test_blanks_around_the_addresses_of_an_ini_list(write: Write) -> None:
    path = ini(write, 'lookupd_tcp_address = a:1 ,b:2, " c:3 "')
    assert start(path).lookupd_tcp_address == ("a:1", "b:2", "c:3")


def test_ini_takes_nsqs_own_keys_too(write: Write) -> None:
    address = start(ini(write, "lookupd_tcp_address = [::1]:4160")).lookupd_tcp_address
    assert address == ("[::1]:4160",)
    options = start(
        ini(
            write,
            "id = 5",
            "nsqlookupd_tcp_addresses = a:1",
            "auth_http_addresses = b:2",
            "e2e_processing_latency_percentiles = 1",
        )
    )
    assert options.node_id == 5
    assert options.lookupd_tcp_address == ("a:1",)
    assert options.auth_http_address == ("b:2",)
    assert options.e2e_processing_latency_percentile == (1.0,)


def test_our_own_options(write: Write) -> None:
    lines = ("workers = 3", "max_input_bytes = 8_000_000", "memory_bytes = 5", "log_format = json")
    options = start(ini(write, *lines))
    assert (options.workers, options.max_input_bytes) == (3, 8_000_000)
    assert (options.memory_bytes, options.log_format) == (5, "json")


@pytest.mark.parametrize(
    ("line", "problem", "allowed"),
    [
        ("max_rdy = 5", 'unknown key "max_rdy"; did you mean max_rdy_count?', ""),
        ("Deflate = true", 'unknown key "Deflate"; did you mean deflate?', ""),
        ("mem-queue-size = 5", "did you mean mem_queue_size?", ""),
        ("version = true", "did you mean tls_min_version?", ""),
        ("config = x", 'unknown key "config"', "config sample nsqd prints"),
        ("verbose = true", 'unknown key "verbose"', "config sample nsqd prints"),
        ("worker_id = true", "did you mean workers?", ""),
        ("max_rdy_count = 1e3", 'max_rdy_count: invalid value "1e3"', "an integer such as"),
        ("max_rdy_count =", 'max_rdy_count: invalid value ""', "an integer such as"),
        ("max_rdy_count = 5 # five", "invalid value", "an integer such as"),
        ("msg_timeout = 5", "missing unit", "units are ns, us, ms, s, m, h"),
        ("msg_timeout = 1d", 'unknown unit "d"', "units are ns, us, ms, s, m, h"),
        ("deflate = yes", 'deflate: invalid value "yes"', "true or false"),
        ("deflate", "not a setting: deflate", "key = value"),
        ("= 5", "not a setting", "key = value"),
        ("; comment", "not a setting: ; comment", "# and a comment"),
        ("log_level = trace", 'invalid log level "trace"', "debug, info, warn, error or fatal"),
        ("tls_required = bad", "tls_required", "false, true or tcp-https"),
        ("tls_min_version = ssl3.0", "ssl3.0", "tls1.0, tls1.1, tls1.2, tls1.3"),
        ("e2e_processing_latency_percentile = 1, x", "Could not parse: x", "numbers"),
        ('lookupd_tcp_address = ["a:1"]', "arrays are TOML", "values separated by commas"),
        ("auth_http_address = ,", "a value is missing between the commas", "values separated"),
        ("[channel]", "unknown section [channel]", "[topic PATTERN] or [channel TOPICPATTERN/"),
        ("[topic]", "unknown section [topic]", "[nsqd], [topic PATTERN] or [channel "),
        ("[topics x]", "unknown section [topics x]", "[nsqd], [topic PATTERN] or [channel "),
        ("[nsqlookupd]", "unknown section [nsqlookupd]", "[nsqd]"),
        ("[nsqd", "not a section header: [nsqd", "[nsqd]"),
        ("[nsqd]", "section [nsqd] is already defined at line 3", "each section once"),
        ("log_prefix = y", "log_prefix is already set at line 4", "each option once"),
    ],
)
def test_ini_errors_name_the_file_the_line_and_the_allowed_values(
    write: Write, line: str, problem: str, allowed: str
) -> None:
    path = ini(write, "log_prefix = x", line)
    error = refusal(path)
    assert isinstance(error, ConfigError)
    assert (error.exit_code, error.fd, error.shape) == (1, 2, LOGGED)
    assert (error.file, error.line) == (path, 5)
    assert str(error).startswith(f"failed to load config file {path} - line 5: ")
    assert problem in str(error)
    assert allowed in error.allowed


def test_two_names_of_one_option_are_a_duplicate(write: Write) -> None:
    error = refusal(ini(write, "node_id = 1", "id = 1"))
    assert "id is already set at line 4" in str(error)


@pytest.mark.parametrize(
    "first", ["[nsqlookupd]", "[nsqadmin]", "[ nsqlookupd ]", "[topic ]", "[channel  ]"]
)
def test_a_section_of_ours_makes_a_file_ini(write: Write, first: str) -> None:
    error = refusal(write(f"# x\n\n{first}\n"))
    assert "line 3: unknown section" in str(error)


# --- topic sections ---------------------------------------------------------------------------


def policies(path: str, *argv: str) -> Policies:
    settings = loader.load(NSQD, [f"--config={path}", *argv])
    return options.policies(settings, resolve(settings))


def test_a_later_section_overrides_an_earlier_one_key_by_key(write: Write) -> None:
    found = policies(
        ini(
            write,
            "durability = os",
            "retention_bytes = 5",
            "[topic orders.*]",
            "durability = fsync",
            "retention_time = 1h",
            "[ topic  *.eu ]",
            "retention_time = 2h",
        )
    )
    hour = 3600 * 10**9
    assert found.topic("clicks") == TopicPolicy("os", 0, 5)
    assert found.topic("orders.us") == TopicPolicy("fsync", hour, 5)
    assert found.topic("orders.eu") == TopicPolicy("fsync", 2 * hour, 5)
    assert found.topic("clicks.eu") == TopicPolicy("os", 2 * hour, 5)
    assert found.topic("Orders.us") == TopicPolicy("os", 0, 5)


def test_a_flag_is_for_topics_no_section_speaks_of(write: Write) -> None:
    path = ini(write, "durability = os", "[topic x]", "durability = memory")
    found = policies(path, "--durability=fsync")
    assert (found.topic("x").durability, found.topic("y").durability) == ("memory", "fsync")


def test_sections_of_topics_may_come_first(write: Write) -> None:
    path = write("[topic x]\ndurability = os\n[nsqd]\nmax_rdy_count = 7\n")
    assert start(path).max_rdy_count == 7
    assert policies(path).topic("x").durability == "os"


def test_toml_has_no_sections_of_topics(write: Write) -> None:
    path = write('durability = "os"\nretention_time = "1h"\n[topic.x]\ndurability = "fsync"\n')
    assert policies(path).topic("x") == TopicPolicy("os", 3600 * 10**9)
    assert warnings(path) == [
        f"{path}, line 3: table [topic] is ignored (for an INI file, begin the file with [nsqd])"
    ]


def test_sections_of_channels(write: Write) -> None:
    found = policies(
        ini(
            write,
            "[channel orders*/*]",
            "max_attempts = 5",
            "dead_letter_topic = dead",
            "[topic orders.eu]",
            "msg_timeout = 2m",
            "[channel  *.eu/billing ]",
            "max_attempts = 0x9",
            "prune_messages = true",
        )
    )
    assert found.channel("clicks", "billing") == ChannelPolicy()
    assert found.channel("orders", "mail").max_attempts == 5
    assert found.channel("orders.eu", "billing") == ChannelPolicy(
        msg_timeout=120 * 10**9, max_attempts=9, dead_letter_topic="dead", prune_messages=True
    )


NAMES_OF_TOPICS = "a topic name"
NAMES_OF_CHANNELS = "TOPIC/CHANNEL, names"


@pytest.mark.parametrize(
    ("header", "line", "number", "problem", "allowed"),
    [
        ("[topic x]", "durability = disk", 5, 'durability: invalid value "disk"', "or fsync"),
        ("[topic x]", "retention_time = 5", 5, "missing unit", "units are"),
        ("[topic x]", "retention_time = -5s", 5, 'invalid value "-5s"', ">= 0"),
        ("[topic x]", "retention_bytes = -1", 5, 'invalid value "-1"', ">= 0"),
        ("[topic x]", "retention_bytes = 1GB", 5, "parse error", "an integer such as"),
        ("[topic x]", "durabilty = os", 5, "did you mean durability?", ""),
        ("[topic x]", "max_rdy_count = 5", 5, "it belongs in a section [nsqd]", ""),
        ("[topic x]", "durability", 5, "not a setting", "key = value"),
        ("[topic x]", "durability = os\ndurability = os", 6, "at line 5", "each option once"),
        (
            "[topic x]",
            "[topic  x ]",
            5,
            "section [topic x] is already defined at line 4",
            "each section once",
        ),
        ("[topic x y]", "", 4, 'no topic can match "x y"', NAMES_OF_TOPICS),
        ("[topic x[]", "", 4, 'no topic can match "x["', NAMES_OF_TOPICS),
        ("[topic x[]]", "", 4, 'no topic can match "x[]"', NAMES_OF_TOPICS),
        ("[topic x[z-a]]", "", 4, 'no topic can match "x[z-a]"', NAMES_OF_TOPICS),
        ("[topic x#short-lived]", "", 4, "no topic can match", NAMES_OF_TOPICS),
        ("[topic " + 65 * "x" + "]", "", 4, "no topic can match", NAMES_OF_TOPICS),
        ("[topic x]", "max_msg_size = 0", 5, 'invalid value "0"', "[1,5242880], as --max-body-"),
        ("[topic x]", "max_msg_size = 5242881", 5, 'value "5242881"', "[1,5242880], as --max-body"),
        ("[topic x]", "max_defer_timeout = 0", 5, 'invalid value "0s"', "[1ms,876000h]"),
        ("[topic x]", "min_msg_size = -1", 5, 'invalid value "-1"', "[0,1048576], as --max-msg"),
        ("[topic x]", "msg_timeout = 16m", 5, 'value "16m"', "[1ms,15m], as --max-msg-timeout is"),
        ("[topic x]", "mem_queue_size = -1", 5, 'invalid value "-1"', ">= 0"),
        ("[topic x]", "ttl = -1s", 5, 'invalid value "-1s"', ">= 0"),
        ("[topic x]", "max_bytes = -1", 5, 'invalid value "-1"', ">= 0"),
        ("[topic x]", "max_depth = 1.5", 5, "parse error", "an integer such as"),
        ("[topic x]", "on_full = drop", 5, 'value "drop"', "reject, drop-oldest or drop-newest"),
        ("[topic x]", "prune_after = 1ms", 5, 'invalid value "1ms"', "0 or >= 1s"),
        ("[topic x]", "prune_messages = yes", 5, 'invalid value "yes"', "true or false"),
        ("[topic x]", "max_attempts = 5", 5, "it belongs in a section [channel …]", ""),
        ("[channel x]", "", 4, 'no channel can match "x"', NAMES_OF_CHANNELS),
        ("[channel x/]", "", 4, 'no channel can match "x/"', NAMES_OF_CHANNELS),
        ("[channel x/y]", "rate = -1", 5, 'invalid value "-1"', "0 or [0.001,1000000000]"),
        ("[channel x/y]", "max_attempts = 65536", 5, 'value "65536"', "[0,65535]"),
        ("[channel x/y]", "dead_letter_topic = a b", 5, 'value "a b"', "the name of a topic"),
        ("[channel x/y]", "dead_letter_topic = a#ephemeral", 5, "invalid", "not ephemeral"),
        ("[channel x/y]", "on_full = drop-newest", 5, "drop-newest", "reject or drop-oldest"),
        (
            "[channel x/y]",
            "urgent_first = true\norder = key",
            5,
            'urgent_first: invalid value "true"',
            "false, because order is set",
        ),
        ("[channel x/y]", "durability = os", 5, "it belongs in a section [nsqd]", ""),
        ("[channel x/y]", "max_atempts = 5", 5, "did you mean max_attempts?", ""),
    ],
)
def test_errors_in_a_section_of_topics(
    write: Write, header: str, line: str, number: int, problem: str, allowed: str
) -> None:
    path = ini(write, header, line)
    error = refusal(path)
    assert isinstance(error, ConfigError)
    assert (error.file, error.line) == (path, number)
    assert problem in error.problem
    assert allowed in error.allowed


def test_a_daemon_without_topics_has_no_sections_of_them(write: Write) -> None:
    path = write("[nsqlookupd]\n[topic x]\n")
    with pytest.raises(ConfigError) as caught:
        loader.load(NSQLOOKUPD, ["--config", path])
    assert caught.value.detail == "unknown section [topic x] (allowed: [nsqlookupd])"


def test_a_comment_after_the_header_is_no_comment(write: Write) -> None:
    assert "not a section header" in str(refusal(write("[nsqd] # main\n")))


def test_all_errors_of_an_ini_file(write: Write) -> None:
    path = write(
        "[nsqd]\n"
        "tcp_adress = a:1\n"
        "id = 5000\n"
        "deflate = yes\n"
        "[topics x]\n"
        "ignored = because of its header\n"
        "[topic x]\n"
        "durability = disk\n"
        "[channel x/y]\n"
        "max_attempts = 70000\n"
    )
    error = refusal(path)
    assert isinstance(error, StartErrors)
    assert (error.exit_code, [part.shape for part in error.parts]) == (1, [LOGGED] * 6)
    starts = [
        'line 2: unknown key "tcp_adress"; did you mean tcp_address?',
        'line 3: node_id: invalid value "5000" (allowed: [0,1024))',
        'line 4: deflate: invalid value "yes"',
        "line 5: unknown section [topics x]",
        'line 8: durability: invalid value "disk"',
        'line 10: max_attempts: invalid value "70000" (allowed: [0,65535])',
    ]
    for part, start in zip(error.parts, starts, strict=True):
        assert str(part).startswith(f"failed to load config file {path} - {start}")


def test_all_errors_of_a_toml_file(write: Write) -> None:
    path = write('msg_timeout = "60"\ndeflate = "yes"\nlog_level = "trace"\nauth_flie = "x"\n')
    assert [str(part).partition(f"{path}")[2][:13] for part in refusal(path).parts] == [
        " - line 4: un",
        ": line 3: inv",
        ": line 1: msg",
        ": line 2: def",
    ]


def test_all_rules_that_are_broken(write: Write) -> None:
    path = ini(write, "max_deflate_level = 0", "id = 5000", "workers = 0")
    texts = [str(part).partition(" - ")[2] for part in refusal(path).parts]
    assert [text.partition(" must be ")[0] for text in texts] == [
        "--max-deflate-level",
        "--node-id",
        "--workers",
    ]
    assert all(f"({path}, line " in text for text in texts)


def test_all_errors_in_sections_of_topics(write: Write) -> None:
    path = ini(write, "[topic a b]", "[topic c]", "max_msg_size = 0", "[channel d]")
    lines = [part.line for part in refusal(path).parts if isinstance(part, ConfigError)]
    assert lines == [4, 6, 7]


def test_an_unknown_toml_key_is_a_warning_with_the_key_that_was_meant(write: Write) -> None:
    (warning,) = loader.load(NSQD, [f"--config={write('max_mesage_size = 5')}"]).warnings
    assert warning.endswith(
        'line 1: unknown key "max_mesage_size" is ignored; did you mean max_msg_size?'
    )


def test_ini_that_is_not_utf8(write: Write) -> None:
    error = refusal(ini(write, "log_prefix = \udcff"))
    assert "line 4: not UTF-8" in str(error)


# --- arbitrary input --------------------------------------------------------------------------

KEYS = st.sampled_from(sorted(NSQD.by_ini_key)) | st.text(max_size=8)
LINES = st.builds("{} = {}".format, KEYS, st.text(max_size=12)) | st.text(max_size=20)
TOML_VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(alphabet="0123456789smhx., ", max_size=8).map('"{}"'.format),
    st.lists(st.sampled_from(["1", "0.5", '"a"', "[]", "{}", "1979-05-27"])).map(
        lambda elements: f"[{', '.join(elements)}]"
    ),
    st.just("{ a = 1 }"),
    st.just("1979-05-27T07:32:00Z"),
)
TOML_LINES = st.builds("{} = {}".format, st.sampled_from(sorted(NSQD.by_toml_key)), TOML_VALUES)


PATTERN_LINES = st.builds(
    "{} = {}".format,
    st.sampled_from(sorted(NSQD.by_pattern["topic"] | NSQD.by_pattern["channel"])) | KEYS,
    st.sampled_from(["os", "5", "-1", "5s", "1h", "true", "reject", "dead", "99999999999999999999"])
    | st.text(max_size=12),
)


def read_or_refuse(directory: Path, data: bytes) -> FileSettings | None:
    path = directory / "any"
    path.write_bytes(data)
    try:
        file = configuration_file.read_file(NSQD, str(path))
    except StartError as error:
        assert all(str(path) in str(part) for part in error.parts)
        return None
    assert file.values.keys() <= NSQD.by_name.keys()
    try:
        resolve(loader.Settings(NSQD, {}, file))
    except StartError:
        return None
    return file


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_file_or_an_error(scratch: Path, data: bytes) -> None:
    read_or_refuse(scratch, data)


@pytest.mark.slow
@given(lines=st.lists(LINES, max_size=6))
def test_any_ini_is_read_or_an_error(scratch: Path, lines: list[str]) -> None:
    text = "\n".join(["[nsqd]", *lines])
    read_or_refuse(scratch, text.encode("utf-8", "surrogatepass"))


@given(
    header=st.sampled_from(["topic a*", "channel a/b", "topic x#ephemeral", "channel */*"])
    | st.builds("{} {}".format, st.sampled_from(["topic", "channel"]), st.text(max_size=9)),
    lines=st.lists(PATTERN_LINES, max_size=6),
)
def test_any_section_of_names_is_read_or_an_error(
    scratch: Path, header: str, lines: list[str]
) -> None:
    text = "\n".join(["[nsqd]", f"[{header}]", *lines])
    file = read_or_refuse(scratch, text.encode("utf-8", "surrogatepass"))
    for section in file.patterns if file is not None else ():
        assert section.values.keys() <= NSQD.by_pattern[section.kind].keys()


@given(lines=st.lists(TOML_LINES, max_size=3))
def test_any_toml_is_read_or_an_error(scratch: Path, lines: list[str]) -> None:
    read_or_refuse(scratch, "\n".join(lines).encode())


# --- final errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "code", "out", "err"),
    [
        (StartError("why"), 1, "", r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: why\n"),
        (CoerceError("f", 1, "p", "a", "s"), 1, "", r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ERROR: .*\n"),
        (UsageError("flag\nusage"), 2, "", "flag\nusage\n"),
    ],
)
def test_last_words(
    capfd: pytest.CaptureFixture[str], stop: Stop, code: int, out: str, err: str
) -> None:
    assert loader.report(stop, "nsqd") == code
    said = capfd.readouterr()
    assert said.out == out
    assert re.fullmatch(err, said.err)
    assert stop.shape in (AS_IS, DATED, LOGGED)


@pytest.mark.case("CFG-01")
def test_the_version_goes_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stop) as caught:
        loader.load(NSQD, ["--version"])
    assert loader.report(caught.value, "nsqd") == 0
    assert capfd.readouterr() == (f"{loader.version_line('nsqd')}\n", "")


# --- the nsqcy command ------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["version", "--version"])
def test_nsqcy_version(capfd: pytest.CaptureFixture[str], word: str) -> None:
    assert command.main([word]) == 0
    assert capfd.readouterr().out.startswith("nsqcy 0.")


def test_nsqcy_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["help"]) == 0
    assert "Usage: nsqcy [OPTIONS] [COMMAND]" in capfd.readouterr().out


def test_nsqcy_config_check(capfd: pytest.CaptureFixture[str], write: Write) -> None:
    path = write("unknown = 1\nid = 5\nmax_rdy_count = 6\n")
    assert command.main(["config", "check", path]) == 0
    said = capfd.readouterr()
    assert said.out == f"{path}: valid for nsqd; options set: 2\n"
    assert said.err.startswith("warning: ")


def test_nsqcy_config_check_of_topics(capfd: pytest.CaptureFixture[str], write: Write) -> None:
    path = ini(write, "workers = 1", "[topic x]", "durability = os")
    assert command.main(["config", "check", path]) == 0
    assert capfd.readouterr().out == f"{path}: valid for nsqd; options set: 2\n"
    path = ini(write, "[topic x]", "durability = disk")
    assert command.main(["config", "check", path]) == 1
    assert 'invalid value "disk" (allowed: memory, os or fsync)' in capfd.readouterr().err


def test_nsqcy_config_of_nsqlookupd(capfd: pytest.CaptureFixture[str], write: Write) -> None:
    path = write("[nsqlookupd]\ntombstone_lifetime = 1m\n")
    assert command.main(["config", "check", path]) == 0
    assert capfd.readouterr().out == f"{path}: valid for nsqlookupd; options set: 1\n"
    path = write("tombstone_lifetime = 1500\n")
    assert command.main(["config", "check", path, "nsqlookupd"]) == 0
    assert capfd.readouterr() == (f"{path}: valid for nsqlookupd; options set: 1\n", "")
    assert command.main(["config", "check", path, "nsq_stat"]) == 2
    assert capfd.readouterr().out == ""
    assert command.main(["config", "sample", "nsqlookupd"]) == 0
    assert "\n[nsqlookupd]\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "[nsqd]\nid = x",
        "id = 1024",
        "[nsqadmin]\nid = 1",
        "x",
        "[nsqd]\ntls_client_auth_policy = requre-verify",
        "tls-required = true",
        '[nsqadmin]\nadmin_user = ""',
    ],
)
def test_nsqcy_config_check_refuses(
    capfd: pytest.CaptureFixture[str], write: Write, text: str
) -> None:
    assert command.main(["config", "check", write(text)]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err


def test_nsqcy_runs_a_daemon_only_when_asked() -> None:
    program = (
        "import sys, types\n"
        "from nsqcy import __main__ as command\n"
        "assert 'nsqcy.nsqd.options' not in sys.modules\n"
        "main = types.ModuleType('nsqcy.nsqd.main')\n"
        "main.main = lambda words: print(*words) or 3\n"
        "sys.modules['nsqcy.nsqd.main'] = main\n"
        "sys.exit(command.main(['nsqd', '-tcp-address=:0', 'x']))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "-tcp-address=:0 x\n", "")
