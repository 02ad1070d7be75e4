"""Command-line behaviour common to all tools."""

import re
import subprocess
import sys

import pytest

from nsqcy.cli.main import SECTIONS
from support import tool_process
from support.nsqd_process import Nsqd, environment

TOOLS = list(SECTIONS["NSQ's tools"])
DATE = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d "


def test_there_are_tools() -> None:
    assert "nsq_stat" in TOOLS


@pytest.mark.real_start
@pytest.mark.case("TOOL-002")
@pytest.mark.parametrize("name", TOOLS)
def test_version(name: str) -> None:
    result = tool_process.run(name, "--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(rf"{name} v\d+\.\d+\.\d+\n", result.stdout)


@pytest.mark.case("TOOL-003")
@pytest.mark.parametrize("name", TOOLS)
def test_help(name: str) -> None:
    result = tool_process.run(name, "-h")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.startswith(f"Usage of {name}:\n  -")


@pytest.mark.case("TOOL-004")
@pytest.mark.parametrize("name", TOOLS)
def test_unknown_flag(name: str) -> None:
    result = tool_process.run(name, "--bogus")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"flag provided but not defined: -bogus; see {name} -help\n"


@pytest.mark.parametrize("name", TOOLS)
def test_by_the_nsqcy_command(name: str) -> None:
    words = [sys.executable, "-m", "nsqcy", name, "--version"]
    result = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{name} v")


@pytest.mark.case("TOOL-021")
@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ((), "--nsqd-http-address or --lookupd-http-address required"),
        (
            ("--nsqd-http-address=a:1", "--lookupd-http-address=b:2"),
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
    ],
)
def test_sources_of_nsq_stat(sources: tuple[str, ...], text: str) -> None:
    result = tool_process.run("nsq_stat", "--topic=t", "--channel=c", *sources)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(DATE + re.escape(text) + "\n", result.stderr), result.stderr


@pytest.mark.case("TOOL-019")
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("nsq_tail", ()),
        ("nsq_to_http", ("--post=http://127.0.0.1:1/",)),
        ("nsq_to_nsq", ("--destination-nsqd-tcp-address=127.0.0.1:1",)),
    ],
)
def test_an_nsqd_that_is_down(name: str, args: tuple[str, ...], plain: Nsqd, nobody: str) -> None:
    up = f"--nsqd-tcp-address=127.0.0.1:{plain.tcp_port}"
    result = tool_process.run(name, "--topic=t", up, f"--nsqd-tcp-address={nobody}", *args)
    assert (result.returncode, result.stdout) == (1, "")
    text = f"failed to connect to nsqd - {nobody}: connection refused"
    assert tool_process.DATE.sub("", result.stderr).splitlines()[-1] == text
