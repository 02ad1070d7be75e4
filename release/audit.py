"""Check the dependencies for known vulnerabilities.

    python -m release.audit [--strict]

Checks the installed dependencies, including those of the extras for users, and their own
dependencies. Exit code 1: a newer version fixes a vulnerability. A vulnerability without a fix, and
a database that cannot be reached, are only reported; with --strict, for releases, they also count
as failures.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("", "debug", "plots", "spark", "tools")


def main(words: list[str]) -> int:
    strict = words == ["--strict"]
    pins = needed("nsqcy", EXTRAS)
    answer = _ask(pins)
    if answer is None:
        print("audit: the database of vulnerabilities cannot be reached; nothing is known")
        return int(strict)
    told, code = judge(answer, strict)
    print("\n".join([*told, f"audit: {len(pins)} packages, exit code {code}"]))
    return code


def needed(name: str, extras: tuple[str, ...]) -> dict[str, str]:
    """Return the version of every installed package that `name` needs, excluding `name` itself."""
    found: dict[str, str] = {}
    left = list(_requirements(name, extras))
    while left:
        requirement = left.pop()
        package = canonicalize_name(requirement.name)
        if package in found or package == name:
            continue
        try:
            found[package] = distribution(package).version
        except PackageNotFoundError:
            continue  # belongs to an extra that is not installed
        left += _requirements(package, ("", *requirement.extras))
    return found


def _requirements(package: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for line in distribution(package).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _ask(pins: dict[str, str]) -> dict[str, Any] | None:
    """Return the findings of pip-audit as JSON; None if it could not reach its database."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in pins.items())
        file.flush()
        words = ["-m", "pip_audit", "--disable-pip", "--no-deps", "--format=json"]
        done = subprocess.run(
            [sys.executable, *words, f"--requirement={file.name}"],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return found


def judge(answer: dict[str, Any], strict: bool) -> tuple[list[str], int]:
    """Return the lines to print about a result of pip-audit, and the exit code."""
    told = []
    code = 0
    skipped = [each["name"] for each in answer["dependencies"] if "skip_reason" in each]
    if skipped:
        told.append(f"not known to the database, or it cannot be reached: {', '.join(skipped)}")
        code |= strict
    for package in answer["dependencies"]:
        for each in package.get("vulns", ()):
            remedy = ", ".join(each["fix_versions"])
            told.append(
                f"{package['name']} {package['version']}: {each['id']}, "
                + (f"not in {remedy}" if remedy else "in every version")
            )
            code |= strict or bool(remedy)
    return told, int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
