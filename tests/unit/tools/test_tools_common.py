"""Features that all tools share, tested with the option table of a fictitious tool."""

import re
from collections.abc import Sequence

import pytest

from nsqcy import NSQ_VERSION, errors
from nsqcy.config.durations import SECOND
from nsqcy.config.options import INT, OptionTable
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.common import ToolError, parse, require_one_source, require_positive, run

TOY = OptionTable(
    "nsq_toy",
    {
        "Toy": (
            common.VERSION,
            common.LOOKUPD_HTTP_ADDRESS,
            Option("n", INT, 3, "how many"),
            common.CONNECT_TIMEOUT,
            common.request_timeout(5 * SECOND),
        )
    },
)


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        ([], ()),
        (["-n", "4"], ()),
        (["--n=4", "word", "--n=5"], ("word", "--n=5")),
        (["--n=4", "--", "--n=5"], ("--n=5",)),
        (["-", "x"], ("-", "x")),
        (["", "x"], ("", "x")),
    ],
)
def test_words_behind_the_flags_are_kept(argv: list[str], left: tuple[str, ...]) -> None:
    settings = parse(TOY, argv)
    assert settings.arguments == left
    assert settings["n"] == (4 if "4" in " ".join(argv) else 3)


def test_a_list_flag_grows() -> None:
    settings = parse(TOY, ["--lookupd-http-address=a:1", "-lookupd-http-address", "b:2,c:3"])
    assert settings["lookupd_http_address"] == ("a:1", "b:2,c:3")
    assert settings["http_client_request_timeout"] == 5 * SECOND


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["--version"], 0, f"nsq_toy v{NSQ_VERSION}\n", ""),
        (["-h"], 0, "", r"Usage of nsq_toy:\n(?s:.*)"),
        (["--bogus"], 2, "", r"flag provided but not defined: -bogus; see nsq_toy -help\n"),
        (
            ["--n=x"],
            2,
            "",
            r'invalid value "x" for flag -n: parse error \(allowed: an integer .*\)\n',
        ),
        (["--n=0"], 1, "", r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d --n should be positive\n"),
        (["--n=1"], 7, "", r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d doing 1\\nthing\n"),
    ],
)
def test_run(
    argv: list[str], code: int, out: str, err: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def main(argv: Sequence[str]) -> int:
        settings = parse(TOY, argv)
        require_positive(settings, "n")
        common.say(f"doing {settings['n']}\nthing")
        return 7

    assert run(main, "nsq_toy", argv) == code
    printed = capfd.readouterr()
    assert printed.out == out
    assert re.fullmatch(err, printed.err), printed.err


def test_one_kind_of_source() -> None:
    require_one_source(("a:1",), ())
    require_one_source((), ("a:1",))
    with pytest.raises(ToolError) as caught:
        require_one_source((), ())
    assert str(caught.value) == "--nsqd-tcp-address or --lookupd-http-address required"
    with pytest.raises(ToolError) as caught:
        require_one_source(("a:1",), ("b:2",), "--nsqd-http-address")
    assert str(caught.value) == "use --nsqd-http-address or --lookupd-http-address not both"
    assert (caught.value.exit_code, caught.value.shape) == (1, errors.DATED)


def test_the_last_words_are_one_line() -> None:
    assert str(ToolError("a\nb\rc")) == "a\\nb\\rc"
