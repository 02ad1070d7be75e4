"""Contributors can rely on documented commands, and tools can read their configuration."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def read(path: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / path).read_text())


def test_commands_of_the_guide_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    page = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.findall(r"`make ([^`]+)`|^make (.+?) {2,}#", page, re.MULTILINE)
    words = {word for found in code for word in " ".join(found).split() if "=" not in word}
    assert words and words <= targets, words - targets


def test_folders_of_the_guide_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    folders = re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE)
    assert len(folders) >= 8
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_the_workflow_calls_the_script_of_the_repository() -> None:
    steps = read(".github/workflows/ci.yml")["jobs"]["test"]["steps"]
    assert any(".ci/run" in step.get("run", "") for step in steps)


def test_forms_ask_for_what_is_needed() -> None:
    for name in ("bug", "feature"):
        form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
        assert form["name"] and form["description"]
        assert any(each.get("validations", {}).get("required") for each in form["body"])


def test_hooks_run_what_lint_runs() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text()
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    for hook in repository["hooks"]:
        tool = hook["entry"].replace(".venv/bin/", "").replace(" --force-exclude", "")
        words = tool.split()
        assert all(word in lint for word in words), hook["id"]


def test_the_dev_container_sets_up_the_tree() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make dev"
