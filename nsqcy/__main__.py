"""The `nsqcy` command: version, configuration files, daemons and tools.

Owns the command-line syntax. Imports a program only when it runs it.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from nsqcy import NSQ_VERSION, __version__
from nsqcy.config import files, loader, sample
from nsqcy.config.options import OptionTable
from nsqcy.errors import Stop
from nsqcy.logging.logger import write

USAGE = """\
Usage: nsqcy COMMAND

  version                     print the version
  config sample [DAEMON]      print an INI file with every option and its default
  config check FILE [DAEMON]  read a configuration file as the daemon would
  data import PATH            import NSQ's files in a data path
  data export PATH DIR        export the data path of a stopped nsqd to NSQ's files
  data check PATH             read every message in PATH, and report what nsqd will find at startup
  doctor [FLAGS]              check this host and a cluster, and recommend actions (--help)
  capacity [FLAGS]            compute how many nsqds a load needs, and how large (--help)
  copies status [FLAGS]       show the groups of topics with copies, and what is at risk (--help)
  copies force GROUP [FLAGS]  give up lost copies of a group that no node can own (--help)
  copies repair PATH          accept an etcd that was restored from a backup (--help)
  passwd NAME                 print a user section for --auth-file (--help)
  up [FLAGS]                  run nsqlookupd, nsqd and nsqadmin together (-help)
  nsqd [FLAGS]                run nsqd; -help lists its flags
  nsqlookupd [FLAGS]          run nsqlookupd
  nsqadmin [FLAGS]            run nsqadmin
{tools}
DAEMON is nsqd, nsqlookupd or nsqadmin. Default: the daemon that an INI FILE names, or nsqd.
"""

# A tool is available if its module is installed.
_TOOLS = {
    "nsq_stat": "print the statistics of a channel, one line per interval",
    "nsq_tail": "print the messages of topics",
    "nsq_to_file": "write messages to files",
    "nsq_to_http": "send messages to HTTP servers",
    "nsq_to_nsq": "publish messages to other nsqds",
    "to_nsq": "publish messages from stdin",
}

# The module that contains each daemon's options, and the name of its option table.
_OPTIONS = {
    "nsqd": ("nsqcy.nsqd.options", "NSQD"),
    "nsqlookupd": ("nsqcy.nsqlookupd.options", "NSQLOOKUPD"),
    "nsqadmin": ("nsqcy.nsqadmin.options", "NSQADMIN"),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    match words:
        case ["version" | "-version" | "--version"]:
            write(1, f"nsqcy {__version__} (compatible with NSQ {NSQ_VERSION})\n")
        case ["help" | "-h" | "-help" | "--help"]:
            write(1, usage())
        case ["config", "sample"]:
            write_all(sample.sample(_table("nsqd")))
        case ["config", "sample", daemon] if daemon in _OPTIONS:
            write_all(sample.sample(_table(daemon)))
        case ["config", "check", path]:
            return _check(path)
        case ["config", "check", path, daemon] if daemon in _OPTIONS:
            return _check(path, daemon)
        case ["data", *rest]:
            return int(importlib.import_module("nsqcy.nsqd.data.command").main(rest))
        case ["doctor", *flags]:
            return int(importlib.import_module("nsqcy.doctor.main").main(flags))
        case ["capacity", *flags]:
            return int(importlib.import_module("nsqcy.capacity.main").main(flags))
        case ["copies", *words]:
            return int(importlib.import_module("nsqcy.cli.copies.main").main(words))
        case ["passwd", *words]:
            return int(importlib.import_module("nsqcy.users.passwd").main(words))
        case ["up", *flags]:
            return int(importlib.import_module("nsqcy.cli.up").main(flags))
        case [daemon, *flags] if daemon in _OPTIONS:
            return _run(daemon, f"nsqcy.{daemon}.main", flags)
        case [tool, *flags] if tool in tools():
            return _run(tool, f"nsqcy.tools.{tool}", flags)
        case _:
            what = f"unknown command: {' '.join(words)}\n" if words else ""
            write(2, what + usage())
            return 2
    return 0


def tools() -> list[str]:
    return [name for name in _TOOLS if find_spec(f"nsqcy.tools.{name}")]


def usage() -> str:
    lines = [f"  {f'{name} [FLAGS]':<28}{_TOOLS[name]}\n" for name in tools()]
    return USAGE.format(tools="".join(lines))


def write_all(text: str) -> None:
    """Write the complete text, even to a pipe that accepts it only in parts."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _table(daemon: str) -> OptionTable:
    module, name = _OPTIONS[daemon]
    table = getattr(importlib.import_module(module), name)
    assert isinstance(table, OptionTable)
    return table


def _check(path: str, daemon: str = "") -> int:
    try:
        daemon = daemon or files.daemon_of(files.read_text(path))
        file = files.read_file(_table(daemon), path)
        settings = loader.Settings(_table(daemon), {}, file)
        importlib.import_module(_OPTIONS[daemon][0]).resolve(settings)
    except Stop as stop:
        write(2, f"{stop}\n")
        return 1
    for warning in settings.warnings:
        write(2, f"warning: {warning}\n")
    count = sum(len(section.values) for section in (file, *file.patterns))
    write(1, f"{path}: valid for {daemon}, {count} options set\n")
    return 0


def _run(program: str, module: str, flags: list[str]) -> int:
    sys.argv = [program, *flags]
    code = importlib.import_module(module).main()
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
