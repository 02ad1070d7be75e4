"""Options from flags and from the file, and the errors for invalid values."""

from pathlib import Path

import pytest

from nsqcy.errors import UsageError
from nsqcy.options.kinds import BOOLEAN, EXPRESSION, SIZE, TOPIC_NAME, whole
from nsqcy.options.option import Option
from nsqcy.pipeline.__main__ import JOBS, table
from nsqcy.pipeline.options import (
    ADDRESSES,
    DURATION,
    INSTANT,
    MEMORY,
    PAIRS,
    PATH,
    PORT,
    POSITIVE,
    SOURCE,
    TEXT,
    TOPIC_NAMES,
    Options,
    choice,
    parse,
    with_remedy,
)

WHOLE = whole(0)
TABLE = (
    Option("rate", WHOLE, None, "messages per second"),
    Option("every", DURATION, 60.0, "how often"),
    Option("size", SIZE, 8 << 20, "of a piece"),
    Option("memory", MEMORY, "2g", "heap"),
    Option("root", PATH, "archive", "where"),
    Option("dry-run", BOOLEAN, False, "only count"),
    Option("kind", choice("none", "json"), "none", "of decoding"),
    Option("conf", PAIRS, {}, "settings"),
    *SOURCE,
)
TABLES = {"job": TABLE, "other": (Option("depth", WHOLE, 1, "how deep"),)}


def told(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse("job", TABLES, argv)
    return str(caught.value)


def in_file(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "jobs.toml").write_text(text)
    return ["--config", str(tmp_path / "jobs.toml")]


@pytest.fixture(autouse=True)
def configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "job", (*TABLE, Option("config", TEXT, None, "the file")))


def test_flags() -> None:
    words = ["--rate=5", "--every", "1.5h", "--dry-run", "--size", "2K", "--topic", "t"]
    words += ["--conf", "a=b=c", "--conf", "d="]
    options = parse("job", TABLES, words)
    assert (options["rate"], options["every"], options["dry-run"]) == (5, 5400, True)
    assert (options["size"], options["memory"], options["kind"]) == (2048, "2g", "none")
    assert options["conf"] == {"a": "b=c", "d": ""}
    assert options.given == {"rate", "every", "dry-run", "size", "conf", "topic"}


def test_the_last_of_several_counts() -> None:
    assert parse("job", TABLES, ["--rate=1", "--rate=2"])["rate"] == 2


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--rat=5", "unknown option --rat: did you mean --rate or --root?"),
        ("rate", "got unexpected extra argument (rate)"),
        ("--rate", "option '--rate' requires an argument"),
        ("--rate=x", "--rate is 'x': expected a whole number"),
        ("--every=5", "--every is '5': expected a duration, such as 500ms, 30s, 15m, 1h or 7d"),
        ("--size=0", "--size is '0': expected a number of bytes, such as 8m, 512k or 1048576"),
        ("--memory=2", "--memory is '2': expected a memory size, such as 512m or 2g"),
        ("--dry-run=yes", "--dry-run is 'yes': expected true or false"),
        ("--kind=jso", "--kind is 'jso': expected one of none, json; did you mean json?"),
        ("--kind=x", "--kind is 'x': expected one of none, json; allowed: none, json"),
        ("--conf=a", "--conf is 'a': expected NAME=VALUE"),
        ("--root=s3a://b/x", "--root is 's3a://b/x': expected a local path, because s3a://"),
        ("--root=gs:/b/x", "--root is 'gs:/b/x': expected a local path, because gs://"),
        ("--topic=a b", "--topic is 'a b': expected a topic name"),
        ("--topics-pattern=(", "--topics-pattern is '(': expected a regular expression"),
        ("--nsqd-tcp-address=x", "--nsqd-tcp-address is 'x': expected host:port, without http://"),
        ("--option=authSecret", "--option expected NAME=VALUE"),
    ],
)
def test_bad_flags(word: str, text: str) -> None:
    assert text in told(word)


def test_the_file(tmp_path: Path) -> None:
    words = in_file(
        tmp_path,
        """
        [common]
        topic = "orders"
        nsqd_tcp_address = ["a:1", " b:2 "]
        driver-memory = "4g"
        root = "everywhere"
        [common.option]
        fetchBytes = "1m"
        [job]
        rate = 7
        topic = "invoices"
        dry-run = true
        conf = ["a=b"]
        [other]
        depth = 3
        """,
    )
    options = parse("job", TABLES, [*words, "--rate=9"])
    assert options["rate"] == 9 and options["dry-run"] is True
    assert options["root"] == "everywhere"
    assert options["nsqd-tcp-address"] == ("a:1", "b:2") and options["conf"] == {"a": "b"}
    assert options.source() == {
        "topic": "invoices",
        "nsqdTcpAddresses": "a:1,b:2",
        "fetchBytes": "1m",
    }


def test_the_token_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value comes from an option of the source, a file, or the environment, in this order."""

    def secret(*words: str) -> str | None:
        return parse("job", TABLES, ["--topic=t", *words]).source().get("authSecret")

    assert secret() is None
    monkeypatch.setenv("NSQCY_AUTH_TOKEN", "of-environment")
    assert secret() == "of-environment"
    (tmp_path / "named").write_text("of-named-file\n")
    monkeypatch.setenv("NSQCY_AUTH_TOKEN_FILE", str(tmp_path / "named"))
    assert secret() == "of-named-file"
    (tmp_path / "given").write_text("of-given-file\n")
    given = f"--auth-token-file={tmp_path / 'given'}"
    assert secret(given) == "of-given-file"
    assert secret(given, "--option=AUTHSECRET=of-option") is None, "it has another spelling"
    assert secret(given, "--option=authSecret=of-option") == "of-option"


def test_a_missing_token() -> None:
    text = "a:4150 requires authSecret"
    assert with_remedy(text) == f"{text}: set --auth-token-file or NSQCY_AUTH_TOKEN"
    assert with_remedy("a:4150 is gone") == "a:4150 is gone"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[jop]\n", "jobs.toml: no table [jop]; did you mean job?"),
        ("topic = 'x'\n", "jobs.toml: no table [topic]; allowed: common, job, other"),
        ("job = 5\n", "jobs.toml: job is not a table; write [job]"),
        ("[job]\nrat = 5\n", "jobs.toml, [job]: unknown key 'rat'; did you mean rate?"),
        ("[common]\nrat = 5\n", "jobs.toml, [common]: unknown key 'rat'; did you mean rate?"),
        ("[other]\ndepth = -1\n", "jobs.toml, [other], depth is '-1': expected a whole number"),
        ("[job]\nrate = [1]\n", "jobs.toml, [job], rate: expected a single value"),
        ("[job]\nconfig = 'x'\n", "jobs.toml, [job]: unknown key 'config'"),
        ("[job\n", "jobs.toml: Expected ']'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    assert said in told(*in_file(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "none.toml: No such file" in told("--config", str(tmp_path / "none.toml"))


def test_topics_and_addresses() -> None:
    def options(*argv: str) -> Options:
        return parse("job", TABLES, argv)

    assert options().nsqds == ("127.0.0.1:4150",)
    assert options("--lookupd-http-address=a:1").nsqds == ()
    for words, what in [
        ([], "none"),
        (["--topic=a", "--topics=b,c"], "--topic and --topics"),
    ]:
        with pytest.raises(UsageError, match=f"is required: {what} is set"):
            options(*words).require_one_subject()
    with pytest.raises(UsageError, match="--topics-pattern requires --lookupd-http-address"):
        options("--topics-pattern=a.*").require_one_subject()
    with pytest.raises(UsageError, match="--rate is required"):
        options().require("rate")
    theirs = options("--topic=a", "--option=STARTINGoffsets=latest")
    assert theirs.source(startingOffsets="earliest")["STARTINGoffsets"] == "latest"
    assert "startingOffsets" not in theirs.source(startingOffsets="earliest")


# An invalid value for each kind of option, and the text that names the expected value.
BAD = {
    ADDRESSES: ("http://a:4150", "host:port, without http://"),
    DURATION: ("5", "a duration, such as 500ms, 30s, 15m, 1h or 7d"),
    EXPRESSION: ("(", "a regular expression (missing ), unterminated subpattern at position 0)"),
    BOOLEAN: ("yes", "true or false"),
    INSTANT: ("yesterday", "ISO 8601, such as 2024-05-01T12:00:00Z, or milliseconds since 1970"),
    MEMORY: ("2", "a memory size, such as 512m or 2g"),
    PAIRS: ("a", "NAME=VALUE"),
    PATH: (
        "s3a://b/x",
        "a local path, because s3a:// is not supported: mount the storage and specify the mount "
        "point",
    ),
    PORT: ("65536", "a port: 0 to 65535"),
    POSITIVE: ("0", "a whole number of at least 1"),
    TEXT: (" ", "a non-empty string"),
    TOPIC_NAME: (
        "a b",
        "a topic name of 1 to 64 characters: .a-zA-Z0-9_- (ephemeral topics have no log)",
    ),
    TOPIC_NAMES: (
        "a,",
        "a topic name of 1 to 64 characters: .a-zA-Z0-9_- (ephemeral topics have no log)",
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_every_option_has_a_bad_value(job: str) -> None:
    tables = {name: table(name) for name in JOBS}
    for option in table(job):
        value, expected = BAD.get(option.kind, ("?", option.kind.allowed))
        if option.kind not in BAD:
            assert expected == f"one of {option.kind.values}"
            expected += f"; allowed: {option.kind.values}"
        with pytest.raises(UsageError) as caught:
            parse(job, tables, [f"--{option.flag}={value}"])
        assert str(caught.value) == (
            f"--{option.flag} is {value!r}: expected {expected} (see nsqcy-pipeline {job} --help)"
        )


@pytest.mark.parametrize("job", JOBS)
def test_tables_make_sense(job: str) -> None:
    names = [option.flag for option in table(job)]
    assert len(names) == len(set(names))
    assert Options(table(job), {})
