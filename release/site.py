"""MkDocs hooks for the documentation site (mkdocs.yml).

Owns the differences between a page in the repository and the same page on the site: links that
leave docs/, test annotations in code fences, and the changelog, which is outside docs/.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
CHANGELOG = "changelog.md"

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>\.\.?/[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^```(sh|python|console) [\w.-]+$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog."""
    files.append(File.generated(config, CHANGELOG, content=(ROOT / "CHANGELOG.md").read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the page as the site shows it."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    return _LINK.sub(lambda link: _on_site(link, folder), _FENCE.sub(r"```\1", markdown))


def _on_site(link: re.Match[str], folder: Path) -> str:
    """Return a link unchanged, or the name of its file if the file is outside docs/."""
    target = (folder / link["target"]).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return link[0]
    if target == ROOT / "CHANGELOG.md":
        home = "../" * len(folder.relative_to(ROOT / "docs").parts)
        return f"[{link['text']}]({home}{CHANGELOG})"
    name = str(target.relative_to(ROOT))
    text = link["text"]
    return text if name in text else f"{text} (`{name}`)"
