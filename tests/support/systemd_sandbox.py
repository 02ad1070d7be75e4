"""Run a command under the restrictions of a systemd unit: `systemd_sandbox.py UNIT COMMAND...`.

It applies the restrictions that a process can set for itself, permanently and for its children: the
system call filter, no new privileges, no memory that is writable and executable.
"""

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38
PR_SET_MDWE = 65
PR_MDWE_REFUSE_EXEC_GAIN = 1
ALLOW = 0x7FFF0000
EPERM = 0x00050001  # SCMP_ACT_ERRNO(EPERM)


def missing() -> str:
    """Return the missing requirement; empty if there is none."""
    if not shutil.which("systemd-analyze"):
        return "systemd is not installed"
    if not ctypes.util.find_library("seccomp"):
        return "libseccomp is not installed"
    return ""


def values(unit: Path, key: str) -> list[str]:
    lines = unit.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def members(group: str) -> set[str]:
    """Return the system calls in one of systemd's groups, including nested groups."""
    printed = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", group],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: set[str] = set()
    for word in printed.split("\n")[1:]:
        word = word.strip()
        if word.startswith("@"):
            found |= members(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def allowed(unit: Path) -> set[str]:
    """Return the system calls that the unit's filter allows: its first line allows, `~` removes."""
    found: set[str] = set()
    for line in values(unit, "SystemCallFilter"):
        calls = set[str]()
        for word in line.removeprefix("~").split():
            calls |= members(word) if word.startswith("@") else {word}
        found = found - calls if line.startswith("~") else found | calls
    return found


def filter_calls(names: set[str]) -> None:
    """Make every other call fail with EPERM."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(EPERM))
    for name in names:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # not one of a different architecture
            assert library.seccomp_rule_add(context, ALLOW, number, 0) == 0, name
    assert library.seccomp_load(context) == 0


def confine(unit: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    calls = allowed(unit)
    assert values(unit, "NoNewPrivileges") == ["yes"]
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if values(unit, "MemoryDenyWriteExecute") == ["yes"]:
        libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)  # Linux 6.3
    filter_calls(calls)


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
