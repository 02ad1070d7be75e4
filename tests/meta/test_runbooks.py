"""Every runbook has the same shape: when to use it, what it costs, check, act, verify.

Warnings precede the commands that they are about. Only commands that a reader types are in a
runbook; additional steps of a test belong in the test.
"""

import re
from collections.abc import Iterator
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
