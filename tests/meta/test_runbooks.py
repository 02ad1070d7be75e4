"""Every runbook has the same shape: when to use it, what it costs, check, act, verify.

Warnings precede the commands that they are about. Only commands that a reader types are in a
runbook; additional steps of a test belong in the test.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from nsqcy.cli.main import main
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
# These pages describe something, and contain no procedure.
REFERENCE = {"README", "service"}
PAGES = [page for page in sorted(RUNBOOKS.glob("*.md")) if page.stem not in REFERENCE]

SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```(?:sh|text).*?^```$", re.MULTILINE | re.DOTALL)
SCAFFOLDING = re.compile(r"\|\| (true|echo)\b|grep -v|exit code \$\?")
DESTRUCTIVE = re.compile(
    r"/(topic|channel)/(empty|delete)|nsqcy (topic|channel) (empty|delete)|\brm\b"
    r'|copies (force|repair)|"retention_\w+": "?0|"min_copies": 1'
)
PLACEHOLDER = re.compile(r"\b(TOPIC|CHANNEL|DATA_PATH|GROUP)\b")
CURL = re.compile(r"\bcurl -[^|;)\n\\]*(?:\\\n[^|;)\n]*)*")
JOURNAL, WHERE_LOGS_ARE = "journalctl -u nsqd", "README.md#where-the-log-is"
WARNING = re.compile(r"\b(Never|Do not)\b")


def mistakes(text: str) -> Iterator[str]:
    """Yield the faults in the text of a runbook."""
    yield from _shape(text)
    for found in BLOCK.finditer(text):
        block = found[0]
        if SCAFFOLDING.search(block):
            yield f"scaffolding of a test: {block}"
        if DESTRUCTIVE.search(block):
            if not PLACEHOLDER.search(block):
                yield f"destroys without a placeholder: {block}"
            if "**" not in text[: found.start()].rstrip().rpartition("\n\n")[2]:
                yield f"destroys without a warning: {block}"
    # A hung daemon must not hang the operator.
    for command in CURL.findall(text):
        if "--max-time " not in command:
            yield f"no time limit: {command}"
    if text.count(JOURNAL) > text.count(WHERE_LOGS_ARE):
        yield f"{JOURNAL} without a link to {WHERE_LOGS_ARE}"
    for part in re.split(r"^##", text, flags=re.MULTILINE):
        before, _, after = part.rpartition("```sh")
        if before and WARNING.search(after):
            yield f"a warning after the commands: {after}"


def _shape(text: str) -> Iterator[str]:
    head, _, rest = text.partition("\n## ")
    if not re.search(r"^\*\*(Symptom|When)\.\*\* ", head, re.MULTILINE):
        yield "neither Symptom nor When"
    if not re.search(r"^\*\*Cost\.\*\* ", head, re.MULTILINE):
        yield "no Cost"
    if BLOCK.search(head):
        yield "a command before the check"
    names = [re.split(r"[: ]", each)[0] for each in SECTION.findall(f"\n## {rest}")]
    steps = [each for each in dict.fromkeys(names) if each in ("Check", "Act", "Verify")]
    if names[0] != "Check" or steps != ["Check", "Act", "Verify"]:
        yield f"sections: {names}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook(page: Path) -> None:
    assert list(mistakes(page.read_text())) == []


@pytest.mark.parametrize("name", ["README", "service"])
def test_a_description(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert all("--max-time " in each for each in CURL.findall(text))


def test_the_log_is_explained_for_each_way_of_running() -> None:
    (text,) = re.findall(
        r"^## Where the log is\n(.*?)\nBefore", (RUNBOOKS / "README.md").read_text(), re.M | re.S
    )
    for way in (JOURNAL, "docker logs", "kubectl logs", "nsqcy up", "FILE"):
        assert way in text


EVENTS_SOURCE = (RUNBOOKS.parents[1] / "nsqcy/logging/events.py").read_text()
NO_TEXT = {"record_damaged", "state_file_damaged", "worker_died"}  # texts without a fixed part
SPAN = re.compile(r"`([^`]+)`")


def texts_of_events() -> dict[str, list[str]]:
    """Return the fixed parts of each event's text, by name."""
    found = {}
    for function in ast.parse(EVENTS_SOURCE).body:
        if isinstance(function, ast.FunctionDef):
            parts = [
                each.value
                for last in function.body[-1:]
                for each in ast.walk(last)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            found[function.name] = [part.strip() for part in parts]
    return found


def unquoted(text: str, events: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the events that a page names without quoting the text of the log line, which is all
    that the default log shows."""
    spans = [" ".join(each.split()) for each in SPAN.findall(BLOCK.sub("", text))]
    pieces = [piece.strip() for span in spans if span not in events for piece in span.split("…")]
    return [
        name
        for name in dict.fromkeys(spans)
        if name in events and not any(_quotes(piece, events[name]) for piece in pieces)
    ]


def _quotes(piece: str, parts: Sequence[str]) -> bool:
    return len(piece) >= 8 and any(
        piece in part or (len(part) >= 8 and part in piece) for part in parts
    )


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_events_are_named_with_the_text_of_their_lines(page: Path) -> None:
    assert set(unquoted(page.read_text(), texts_of_events())) <= NO_TEXT


def test_an_event_without_its_text_is_found() -> None:
    events = {"worker_died": ["worker", "killed by"], "disk_hung": ["; publishes are refused"]}
    assert unquoted("`worker_died` and `disk_hung`", events) == ["worker_died", "disk_hung"]
    quoted = (
        "`worker_died` (`worker 0: killed by signal 9`), `disk_hung` (`…; publishes are\nrefused`)"
    )
    assert unquoted(quoted, events) == []


def test_diagnosis_comes_first() -> None:
    text = (RUNBOOKS / "README.md").read_text()
    assert 0 < text.index("nsqcy doctor") < text.index("| alert |")


GOOD = """# Title

**Symptom.** It burns.

**Cost.** Nothing.

## Check

```sh
look
```

## Act

Never do it twice. **This destroys the messages.**

```sh
nsqcy topic empty TOPIC
```

## Verify

```sh
look again
```
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("**Symptom.**", "", "neither Symptom nor When"),
        ("**Cost.**", "", "no Cost"),
        ("**Cost.**", "```sh\nact\n```\n\n**Cost.**", "a command before the check"),
        ("## Check", "## Act", "sections: "),
        ("look again", "look again || true", "scaffolding"),
        ("look again", "look | grep -v x", "scaffolding"),
        ("empty TOPIC", "empty orders", "destroys without a placeholder"),
        ("**This destroys the messages.**", "", "destroys without a warning"),
        ("look again", "curl -s http://x/ready", "no time limit"),
        ("look again", "curl -s http://x/ready \\\n  -d x; curl --max-time 1 y", "no time limit"),
        ("look again", "journalctl -u nsqd", "journalctl -u nsqd without a link"),
        ("look again\n```\n", "look again\n```\n\nDo not repeat it.\n", "a warning after"),
    ],
)
def test_a_mistake_is_found(old: str, new: str, told: str) -> None:
    assert list(mistakes(GOOD)) == []
    (found,) = mistakes(GOOD.replace(old, new))
    assert found.startswith(told)


# --- the production checklist -------------------------------------------------------------------

PRODUCTION = (RUNBOOKS.parent / "PRODUCTION.md").read_text()
FLAGS = {f"--{option.flag}" for table in (NSQD, NSQLOOKUPD, NSQADMIN) for option in table}
COMMANDS = {"--config", "--quiet", "--fail-on", "--token"}  # flags of commands on the page


def test_the_checklist_names_options_that_exist() -> None:
    named = set(re.findall(r"`(--[a-z-]+)[`=]", PRODUCTION))
    assert len(named) > 20 and named - FLAGS - COMMANDS == set()


def test_nsqd_accepts_the_file_of_the_checklist(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (text,) = re.findall(r"^```ini\n(.*?)^```$", PRODUCTION, re.MULTILINE | re.DOTALL)
    file = tmp_path / "nsqd.ini"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 0, capfd.readouterr().err
    assert capfd.readouterr().err == ""
