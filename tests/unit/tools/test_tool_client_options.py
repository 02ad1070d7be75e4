"""--consumer-opt and --producer-opt, from strings to keyword arguments of the client."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from nsqcy.client.options import consumer_options, producer_options
from nsqcy.config.flags import split_flags
from nsqcy.config.options import OptionTable
from nsqcy.errors import UsageError
from nsqcy.testing.certificates import make
from nsqcy.tools.client_options import (
    CONSUMER_OPT,
    OPTIONS,
    PRODUCER_OPT,
    consumer_keywords,
    producer_keywords,
)
from nsqcy.tools.common import ToolError

TABLE = OptionTable("nsq_tail", {"": (CONSUMER_OPT, PRODUCER_OPT)})


def refusal(*options: str) -> str:
    with pytest.raises(UsageError) as caught:
        split_flags(TABLE, [f"--consumer-opt={option}" for option in options])
    return str(caught.value)


def test_they_add_up() -> None:
    argv = ["--consumer-opt", "max_attempts,0", "-consumer-opt=snappy", "--producer-opt=deflate"]
    assert split_flags(TABLE, argv)[0] == {
        "consumer_opt": ("max_attempts,0", "snappy"),
        "producer_opt": ("deflate",),
    }


@pytest.mark.parametrize(
    "option, why",
    [
        ("bogus,1", "invalid option bogus"),
        ("bo-gus", "invalid option bo_gus"),
        ("", "invalid option "),
        ("heartbeat_interval,30", "failed to coerce option heartbeat_interval (30) - missing unit"),
        ("deflate_level,x", "failed to coerce option deflate_level (x) - parse error"),
        ("deflate_level", "failed to coerce option deflate_level () - a value is required"),
        ("snappy,maybe", "failed to coerce option snappy (maybe) - parse error"),
        ("tls_cert,/no/such", "failed to coerce option tls_cert (/no/such) - open /no/such: no"),
        ("local_addr,localhost", "failed to coerce option local_addr (localhost) - not host:port"),
        ("local_addr,a:99999", "failed to coerce option local_addr (a:99999) - not host:port"),
        ("read_timeout,99ms", "invalid read_timeout ! 99ms < 100ms"),
        ("max-attempts,65536", "invalid max_attempts ! 65536 > 65535"),
        ("lookupd_poll_jitter,1.5", "invalid lookupd_poll_jitter ! 1.5 > 1"),
        ("max_requeue_delay,61m", "invalid max_requeue_delay ! 1h1m0s > 1h0m0s"),
        ("backoff_strategy,linear", "failed to coerce option backoff_strategy (linear) - must be"),
        ("tls_min_version,tls1.3", "failed to coerce option tls_min_version (tls1.3) - must be"),
    ],
)
def test_what_is_refused(option: str, why: str) -> None:
    start = f'invalid value "{option}" for flag -consumer-opt: {why}'
    assert refusal(option).startswith(start)


BOUNDS = {
    "read_timeout": ("100ms", "5m"),
    "write_timeout": ("100ms", "5m"),
    "lookupd_poll_interval": ("10ms", "5m"),
    "lookupd_poll_jitter": ("0", "1"),
    "max_requeue_delay": ("0s", "60m"),
    "default_requeue_delay": ("0s", "60m"),
    "max_backoff_duration": ("0s", "60m"),
    "backoff_multiplier": ("0s", "60m"),
    "max_attempts": ("0", "65535"),
    "low_rdy_idle_timeout": ("1s", "5m"),
    "low_rdy_timeout": ("1s", "5m"),
    "rdy_redistribute_interval": ("1ms", "5s"),
    "sample_rate": ("0", "99"),
    "deflate_level": ("1", "9"),
    "max_in_flight": ("0", "9000"),
    "msg_timeout": ("0s", "9000h"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_within(name: str) -> None:
    split_flags(TABLE, [f"--consumer-opt={name},{bound}" for bound in BOUNDS[name]])


def test_every_range_is_tried() -> None:
    assert {name for name, rule in OPTIONS.items() if rule.low is not None} == BOUNDS.keys()


DEFAULTS: dict[str, Any] = {  # defaults of NSQ's client
    "max_tries": 5,
    "requeue_delay": 90.0,
    "requeue_strategy": "linear",
    "max_backoff_duration": 120.0,
}

GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("dial_timeout,5s", {"timeout": 5.0}),
    ("write_timeout,3s", {"timeout": 3.0}),
    ("read_timeout,90s", {}),
    ("local_addr,127.0.0.1:0", {"local_address": "127.0.0.1:0"}),
    ("lookupd_poll_interval,10ms", {"lookupd_poll_interval": 0.01}),
    ("lookupd_poll_jitter,0.5", {"lookupd_poll_jitter": 0.5}),
    ("lookupd_poll_timeout,3s", {"lookupd_request_timeout": 3.0}),
    ("max_requeue_delay,1m", {"max_requeue_delay": 60.0}),
    ("default_requeue_delay,0s", {"requeue_delay": 0.0}),
    ("backoff_strategy,full_jitter", {"backoff_strategy": "full_jitter"}),
    ("max_backoff_duration,0", {"max_backoff_duration": 0.0}),
    ("backoff_multiplier,10ms", {"backoff_multiplier": 0.01}),
    ("max_attempts,0", {"max_tries": 0}),
    ("low_rdy_idle_timeout,1s", {"low_rdy_idle_timeout": 1.0}),
    ("low_rdy_timeout,1s", {"low_rdy_timeout": 1.0}),
    ("rdy_redistribute_interval,1ms", {"rdy_redistribute_interval": 0.001}),
    ("client_id,a,b", {"client_id": "a,b"}),
    ("hostname,h", {"hostname": "h"}),
    ("user_agent,me", {}),
    ("heartbeat_interval,-1", {"heartbeat_interval": -1}),
    ("heartbeat-interval,1.5s", {"heartbeat_interval": 1.5}),
    ("sample_rate,42", {"sample_rate": 42}),
    ("tls_v1", {"tls_v1": True}),
    ("tls_insecure_skip_verify", {}),
    ("tls_min_version,tls1.2", {}),
    ("deflate,1", {"deflate": True}),
    ("deflate_level,9", {"deflate_level": 9}),
    ("snappy,true", {"snappy": True}),
    ("output_buffer_size,64", {"output_buffer_size": 64}),
    ("output_buffer_timeout,20ms", {"output_buffer_timeout": 20}),
    ("output_buffer_timeout,-1ms", {"output_buffer_timeout": -1}),
    ("max_in_flight,7", {}),
    ("msg_timeout,2s", {"msg_timeout": 2.0}),
    ("auth_secret,s", {"auth_secret": "s"}),
    ("trust_lookupd", {"trust_lookupd": True}),
    ("skip_lookupd_authorization,false", {"lookupd_authorization": False}),
    ("lookupd_authorization,false", {"lookupd_authorization": False}),
]


@pytest.mark.parametrize("option, keywords", GIVEN)
def test_keywords_of_a_consumer(option: str, keywords: dict[str, Any]) -> None:
    assert consumer_keywords([option]) == DEFAULTS | keywords
    consumer_options(consumer_keywords([option]))
    producer_options(producer_keywords([option]))


def test_a_tool_may_have_its_own_defaults() -> None:
    assert consumer_keywords([], max_tries=0) == DEFAULTS | {"max_tries": 0}
    assert consumer_keywords(["max_attempts,7"], max_tries=0) == DEFAULTS | {"max_tries": 7}


def test_every_option_is_tried() -> None:
    tried = {option.partition(",")[0].replace("-", "_") for option, _ in GIVEN}
    assert tried == OPTIONS.keys() - {"tls_root_ca_file", "tls_cert", "tls_key"}


def test_the_last_of_each_counts() -> None:
    options = ["msg_timeout,1s", "snappy", "msg-timeout,2s", "snappy,false"]
    assert consumer_keywords(options) == DEFAULTS | {"msg_timeout": 2.0, "snappy": False}


def test_the_longer_of_two_timeouts() -> None:
    assert producer_keywords(["dial_timeout,5s", "write_timeout,2s"]) == {"timeout": 5.0}


def test_a_producer_is_told_of_connections_only() -> None:
    assert producer_keywords([]) == {}
    options = ["max_attempts,3", "lookupd_poll_interval,1s", "snappy"]
    assert producer_keywords(options) == {"snappy": True}


@pytest.mark.parametrize(
    "options, text",
    [
        (
            ["heartbeat_interval,90s"],
            "HeartbeatInterval 1m30s must be less than ReadTimeout 1m0s",
        ),
        (["read_timeout,10s"], "HeartbeatInterval 30s must be less than ReadTimeout 10s"),
        (
            ["deflate", "snappy"],
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
    ],
)
@pytest.mark.parametrize("keywords", [consumer_keywords, producer_keywords])
def test_what_does_not_go_together(keywords: Any, options: list[str], text: str) -> None:
    with pytest.raises(ToolError) as caught:
        keywords(options)
    assert str(caught.value) == text


def test_a_longer_read_timeout_allows_a_longer_heartbeat() -> None:
    options = ["heartbeat_interval,90s", "read_timeout,90s"]
    assert consumer_keywords(options)["heartbeat_interval"] == 90.0


def test_certificates(tmp_path: Path) -> None:
    files = make("client").save(tmp_path)
    options = [
        "tls_v1",
        f"tls_root_ca_file,{files.certificate}",
        f"tls_cert,{files.certificate}",
        f"tls_key,{files.key}",
        "tls_min_version,tls1.2",
    ]
    context = producer_keywords(options)["tls_options"]
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.cert_store_stats()["x509"] == 1

    careless = producer_keywords([*options, "tls_insecure_skip_verify"])["tls_options"]
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish")
    for name in ("tls_root_ca_file", "tls_cert"):
        with pytest.raises(ToolError, match=r"^cannot load certificates: "):
            producer_keywords(["tls_v1", f"{name},{rubbish}"])
