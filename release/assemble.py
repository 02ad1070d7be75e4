"""Make all files of a release in dist/: `make release`.

    python -m release.assemble [VERSION...] [MACHINE...]

Builds the archives twice, in different directories, and fails if their bytes differ. Without
MACHINE, builds wheels for all machines. Then writes an SBOM for each archive, the release notes (a
section of CHANGELOG.md), and checksums. Nothing is published: docs/RELEASING.md.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from nsqcy import __version__
from release import build, sbom
from release.build import digest, git

NOTES = build.DIST / "NOTES.md"
CHECKSUMS = build.DIST / "SHA256SUMS"
PAGES = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/blob/{GITHUB_REF_NAME}/"


def main(words: list[str]) -> int:
    if changes := git("status", "--porcelain"):
        raise SystemExit(f"a release is built from a commit; commit or remove:\n{changes}")
    tag = os.environ.get("GITHUB_REF_NAME")
    if tag not in (None, f"v{__version__}"):
        raise SystemExit(f"tag {tag}: nsqcy/__init__.py has version {__version__}")
    if not set(words).intersection(build.MACHINES):
        words = [*words, *build.MACHINES]
    if code := build.main(words):
        return code
    _check_that_it_is_reproducible(words)
    for archive in archives(build.DIST):
        sbom.write(archive)
    base = PAGES.format_map(os.environ) if tag else ""
    NOTES.write_text(notes((build.ROOT / "CHANGELOG.md").read_text(), __version__, base))
    CHECKSUMS.write_text(checksums(build.DIST))
    return 0


def archives(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def _check_that_it_is_reproducible(words: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="nsqcy-again-") as scratch:
        clone = Path(scratch) / "elsewhere"
        git("clone", "-q", str(build.ROOT), str(clone))
        subprocess.run([sys.executable, "-m", "release.build", *words], cwd=clone, check=True)
        if different := differences(build.DIST, clone / "dist"):
            raise SystemExit(f"a second build has other bytes: {', '.join(different)}")
    print("a second build in a different directory has the same bytes")


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of the archives that are not the same in both directories."""
    one, other = ({each.name: digest(each) for each in archives(at)} for at in (first, second))
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def checksums(folder: Path) -> str:
    """Return the content of a file for `sha256sum --check`."""
    files = sorted(each for each in folder.iterdir() if each.name != CHECKSUMS.name)
    return "".join(f"{digest(each)}  {each.name}\n" for each in files)


def notes(changelog: str, version: str, base: str) -> str:
    """Return the changelog's section for a version. Its links to pages begin with `base`."""
    sections = re.split(r"(?m)^## ", changelog)[1:]
    (section,) = (each for each in sections if each.startswith(f"{version} "))
    _, _, text = section.partition("\n")
    return re.sub(r"\]\((?!https?:|#)", f"]({base}", text.strip()) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
