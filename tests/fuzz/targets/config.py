"""Configuration files (INI and TOML) and option values: each is accepted, or refused with an error
text.

The first byte of an input selects the daemon whose file the rest is, or a command line.
"""

import tempfile
from pathlib import Path

from nsqcy.config import configuration_file, loader, stray_words
from nsqcy.config.durations import format_duration, parse_duration
from nsqcy.config.flags import split_flags
from nsqcy.config.options import OptionTable
from nsqcy.config.sample import sample
from nsqcy.errors import Stop
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqadmin.options import resolve as resolve_admin
from nsqcy.nsqd.options import NSQD, resolve
from nsqcy.nsqlookupd.options import NSQLOOKUPD

COVERS = [
    "config/loader.py",
    "config/configuration_file.py",
    "config/file_settings.py",
    "config/ini_file.py",
    "config/toml_file.py",
    "config/hints.py",
    "config/stray_words.py",
    "config/options.py",
    "config/flags.py",
    "options/option.py",
    "config/durations.py",
    "nsqd/options.py",
    "config/policies.py",
]
COVERS += ["config/daemon_options.py", "nsqadmin/options.py"]
TABLES = (NSQD, NSQLOOKUPD, NSQADMIN)
SAMPLES = [sample(table) for table in TABLES]
WORDS = [f"{option.name} = ".encode() for table in TABLES for option in table if option.in_file]
WORDS += [f"--{option.flag}=".encode() for option in NSQD]
WORDS += [b"[topic a*]", b"[channel a*/b]", b"[nsqd]", b"1h30m", b"0x10", b"1_000", b"true", b"\n"]


def seeds() -> list[bytes]:
    """Return parts of the sample files with their settings uncommented, and other inputs."""
    found = []
    for number, text in enumerate(SAMPLES):
        lines = [line for line in text.split("\n") if not line.startswith("# ")]
        for start in range(0, len(lines), 12):
            part = "\n".join(line.lstrip("#") for line in lines[start : start + 12])
            found.append(bytes([number]) + f"[{TABLES[number].daemon}]\n{part}".encode())
    found.append(
        b"\0[nsqd]\nmsg_timeout = 5s\n[topic a*]\ndurability = os\n[channel a/b]\nrate = 3\n"
    )
    found.append(b'\0verbose = true\nmsg_timeout = "60s"\nmem_queue_size = 10\nx = [1, 2]\n[t]\n')
    found.append(b"\3--msg-timeout=5s\n--verbose\n-worker-id\n3\n--lookupd-tcp-address=a:1")
    found.append(b"\4" + b"1h2m3.5s4ms5us6ns")
    return found


def one(data: bytes) -> None:
    kind, text = data[:1], data[1:]
    if kind == b"\4":
        _duration(text.decode("utf-8", "surrogateescape"))
        return
    try:
        if kind == b"\3":
            words = text.decode("utf-8", "surrogateescape").split("\n")
            values, rest = split_flags(NSQD, words)
            stray_words.check(NSQD, words, rest)
            found = loader.Settings(NSQD, values)
        else:
            found = _file(TABLES[kind[0] % 3] if kind else NSQD, text)
        if found.table is NSQD:
            resolve(found)
        elif found.table is NSQADMIN:
            resolve_admin(found)
    except Stop as stop:
        str(stop).encode("utf-8", "surrogateescape")


def _file(table: OptionTable, content: bytes) -> loader.Settings:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        Path(file.name).write_bytes(content)
        found = loader.Settings(table, {}, configuration_file.read_file(table, file.name))
    for each in found.warnings:
        each.encode("utf-8", "surrogateescape")
    return found


def _duration(text: str) -> None:
    try:
        found = parse_duration(text)
    except ValueError:
        return
    assert parse_duration(format_duration(found)) == found
