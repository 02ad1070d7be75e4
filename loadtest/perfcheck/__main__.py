"""The command line: count, compare with the committed figures, report changes.

Figures are valid for one combination of processor architecture, CPython and compiler: figures.json
has an entry for each recorded combination. Exit status 1: some work takes more instructions than
before; 2: nothing was compared.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadtest.perfcheck.callgrind import Count, Failure, count
from nsqcy.protocol import core as protocol

FIGURES = Path(__file__).with_name("figures.json")
TOLERANCE = 0.05
SHOWN = 0.01  # share of the total; functions below it are summed
COMPILED_BY = re.compile(rb"(GCC): \([^)]*\) ([\d.]+)|(clang) version ([\d.]+)")

AGAIN = "make perfcheck UPDATE=1"


def compiler() -> tuple[str, str]:
    """Return the compiler that built the modules, and its version."""
    found = COMPILED_BY.search(Path(protocol.__file__).read_bytes())
    if not found:
        return "unknown compiler", "0"
    name, number = (each.decode() for each in found.groups() if each)
    return name, number


def combination() -> str:
    """Return the key of an entry: the facts that change figures by more than the tolerance."""
    name, number = compiler()
    config = sysconfig.get_config_var("CONFIG_ARGS") or ""
    optimized = " optimized" * ("--enable-optimizations" in config)
    python = f"{platform.python_implementation()} {platform.python_version()}{optimized}"
    return f"{platform.machine()}, {python}, {name} {number.partition('.')[0]}"


def details() -> dict[str, str]:
    """Return other facts, which usually affect the figures less."""
    valgrind = subprocess.run(["valgrind", "--version"], capture_output=True, text=True).stdout
    try:
        cython = version("Cython")
    except PackageNotFoundError:
        cython = "unknown"
    return {
        "compiler": " ".join(compiler()),
        "Cython": cython,
        "libc": " ".join(platform.libc_ver()),
        "valgrind": valgrind.strip().removeprefix("valgrind-"),
    }


def compare(now: dict[str, float], then: dict[str, float]) -> dict[str, str]:
    """Return a remark about each kind of work, or "" for no remark."""
    verdicts = {}
    for name in now.keys() | then.keys():
        verdict = ""
        if name not in now:
            verdict = "gone"
        elif name not in then:
            verdict = "new"
        elif now[name] > then[name] * (1 + TOLERANCE):
            verdict = "worse"
        elif now[name] < then[name] * (1 - TOLERANCE):
            verdict = "better"
        verdicts[name] = verdict
    return verdicts


def show(now: dict[str, float], then: dict[str, float]) -> None:
    print(f"{'instructions per message':26}{'recorded':>10}{'now':>10}{'change':>9}")
    verdicts = compare(now, then) if then else dict.fromkeys(now, "")
    for name in [*now, *(then.keys() - now.keys())]:
        cells = [
            f"{figures[name]:10.1f}" if name in figures else " " * 10 for figures in (then, now)
        ]
        change = ""
        if name in now and name in then:
            change = f"{now[name] / then[name] - 1:+9.1%}"
        print(f"{name:26}{cells[0]}{cells[1]}{change:9}  {verdicts[name]}".rstrip())


def show_functions(counts: dict[str, Count]) -> None:
    """Print the instructions per message of each function, as Markdown tables."""
    for name, found in counts.items():
        print(f"\n### {name}: {found.each:.0f}\n\n| function | module | instructions |")
        print("| --- | --- | ---: |")
        left = found.instructions
        for (module, function), cost in found.functions.most_common():
            if cost < SHOWN * found.instructions:
                break
            left -= cost
            print(f"| `{function}` | {module} | {cost / found.messages:.0f} |")
        print(f"| others | | {left / found.messages:.0f} |")


def judge(now: dict[str, float], entry: dict[str, Any]) -> int:
    show(now, entry["figures"])
    for what, then in entry["with"].items():
        if details()[what] != then:
            print(f"recorded with {what} {then}, this is {details()[what]}")
    verdicts = compare(now, entry["figures"])
    grouped = {
        verdict: [name for name in sorted(verdicts) if verdicts[name] == verdict]
        for verdict in ("worse", "new", "gone", "better")
    }
    if grouped["better"]:
        print(f"more than {TOLERANCE:.0%} better: {', '.join(grouped['better'])}; keep it: {AGAIN}")
    if grouped["new"] or grouped["gone"]:
        print(f"not the kinds of work that are recorded: {AGAIN}")
    if grouped["worse"]:
        print(f"more than {TOLERANCE:.0%} worse: {', '.join(grouped['worse'])}")
    return int(any(grouped[verdict] for verdict in ("worse", "new", "gone")))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.perfcheck", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the figures into figures.json")
    parser.add_argument("--functions", action="store_true", help="show where they go, as Markdown")
    args = parser.parse_args(argv)
    if protocol.COUNTED:
        print("perfcheck: this is the debug build: make build", file=sys.stderr)
        return 2
    try:
        counts = count()
    except Failure as failure:
        print(f"perfcheck: {failure}", file=sys.stderr)
        return 2
    if args.functions:
        show_functions(counts)
        return 0
    now = {name: round(found.each, 1) for name, found in counts.items()}
    recorded = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    key = combination()
    print(key)
    entry = recorded.get(key)
    if args.update:
        show(now, entry["figures"] if entry else {})
        recorded[key] = {"with": details(), "figures": now}
        FIGURES.write_text(json.dumps(recorded, indent=2, sort_keys=False) + "\n")
        return 0
    if entry:
        return judge(now, entry)
    show(now, {})
    print(f"nothing to compare with: {FIGURES.name} has figures for {'; '.join(recorded)}.")
    print(f"Record yours where you trust the code: git stash or checkout, {AGAIN}, and back.")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
