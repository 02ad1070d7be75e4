"""Generated tables in the documentation: their sources, and the command that writes them.

    python -m release.pages      writes all of them, as `make conf` does

A page contains a table between `<!-- begin NAME -->` and `<!-- end NAME -->`. The rest of a page is
written by hand.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from nsqcy import __version__
from nsqcy.capacity import main as capacity
from nsqcy.cli.copies import force
from nsqcy.client.flow import FlowSettings
from nsqcy.client.options import ConnectionOptions, ConsumerOptions, LookupOptions, ProducerOptions
from nsqcy.config.options import OptionTable
from nsqcy.config.sample import PATTERN_EXAMPLES
from nsqcy.doctor import main as doctor
from nsqcy.doctor import report
from nsqcy.logging.events import EVENTS
from nsqcy.metrics.families import BY_DAEMON, Family
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from nsqcy.options.fields import declared
from nsqcy.options.option import Option
from nsqcy.pipeline.__main__ import JOBS, load
from nsqcy.pipeline.options import OUTPUT, SOURCE, SPARK
from nsqcy.spark import options as spark
from nsqcy.tools.nsq_stat import NSQ_STAT
from nsqcy.tools.nsq_to_file import NSQ_TO_FILE
from nsqcy.tools.nsq_to_http import NSQ_TO_HTTP
from nsqcy.tools.nsq_to_nsq import NSQ_TO_NSQ
from nsqcy.tools.tail_options import NSQ_TAIL
from nsqcy.tools.to_nsq import TO_NSQ
from release import command_help, figures, prices

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = Path(__file__).parents[1] / "examples"
TOOLS = (NSQ_STAT, NSQ_TAIL, NSQ_TO_FILE, NSQ_TO_HTTP, NSQ_TO_NSQ, TO_NSQ)
COMMANDS: dict[str, Mapping[str, Iterable[Option]]] = {
    "nsqcy doctor": doctor.SECTIONS,
    "nsqcy capacity": capacity.SECTIONS,
    "nsqcy copies force": force.SECTIONS,
    **{each.daemon: each.sections for each in TOOLS},
}
MARKED = re.compile(r"<!-- begin (?P<name>[^>]+) -->\n.*?<!-- end (?P=name) -->\n", re.DOTALL)

Blocks = Mapping[str, Callable[[], str]]


def main() -> None:
    for page, blocks in PAGES.items():
        path = DOCS / page
        path.write_text(rewritten(path.read_text(), blocks))


def rewritten(text: str, blocks: Blocks) -> str:
    """Return the text of a page with its current blocks. Each block must occur once."""
    names = [found["name"] for found in MARKED.finditer(text)]
    if sorted(names) != sorted(blocks):
        raise ValueError(f"blocks of the page are {names}, expected {list(blocks)}")

    def block(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- begin {name} -->\n\n{blocks[name]()}\n<!-- end {name} -->\n"

    return MARKED.sub(block, text)


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose columns are the words of `head`."""
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return text as code; a line feed would end the table row."""
    return "`{}`".format(text.replace("\n", "\\n")) if text else ""


# --- options ----------------------------------------------------------------------------------


def daemon_options(options: OptionTable) -> str:
    parts = [
        f"### {title}\n\n"
        + table("flag, key, default, meaning", [_daemon_row(options, each) for each in section])
        for title, section in options.sections.items()
    ]
    parts += [
        f"### Sections `[{kind} {PATTERN_EXAMPLES[kind]}]`\n\n"
        + table("key, default, meaning", [_pattern_row(options, each) for each in keys.values()])
        for kind, keys in options.by_pattern.items()
    ]
    return "\n".join(parts)


def _daemon_row(options: OptionTable, option: Option) -> list[str]:
    keys = [option.name] if option.in_file else []
    if option.in_file and option.toml_key != option.name:
        keys.append(f"TOML: {option.toml_key}")
    default = option.default_text or code(option.show(option.default)) or "empty"
    meaning = _meaning(option)
    if option.runtime:
        meaning += "; can be changed at run time"
    kinds = [kind for kind, keys in options.by_pattern.items() if keys.get(option.name) is option]
    if kinds:
        meaning += f"; can be set per {' and '.join(kinds)}"
    if option.kind.many:
        meaning += "; may be given multiple times"
    return [code(f"--{option.flag}"), ", ".join(map(code, keys)) or "–", default, meaning]


def _pattern_row(options: OptionTable, option: Option) -> list[str]:
    """The default of a key that is also a flag is the flag's default."""
    is_flag = option.name in options.by_name
    default = f"--{option.flag}" if is_flag else option.show(option.default)
    return [code(option.name), code(default) or "empty", _meaning(option)]


def _meaning(option: Option) -> str:
    return f"{option.help}; must be {option.rule.phrase}" if option.rule else option.help


def job_options(options: Iterable[Option]) -> str:
    rows = []
    for option in options:
        values = option.kind.values + (", repeatable" if option.kind.many else "")
        rows.append([f"`--{option.flag}`", values, _default(option), option.help])
    return table("option, values, default, meaning", rows)


def own_options(job: str) -> str:
    shared = {option.flag for option in (*OUTPUT, *SOURCE, *SPARK)}
    return job_options(option for option in load(job).OPTIONS if option.flag not in shared)


def spark_options() -> str:
    rows = []
    for option in spark.TABLE:
        values = option.kind.values + (f", {option.rule.text}" if option.rule else "")
        rows.append([f"`{option.flag}`", values, _default(option), option.used, option.help])
    return table("option, values, default, used by, meaning", rows)


def client_options() -> str:
    parts = {
        "connections": ConnectionOptions,
        "consumers": ConsumerOptions,
        "flow control of consumers": FlowSettings,
        "lookupds": LookupOptions,
        "producers": ProducerOptions,
    }
    rows = [
        [
            subject,
            code(each.name),
            code(str(each.default).replace(__version__, "VERSION")),
            each.help,
        ]
        for subject, part in parts.items()
        for each in declared(part)
    ]
    return table("for, option, default, meaning", rows)


def _default(option: Option) -> str:
    return "" if option.default is None else code(option.show(option.default))


# --- metrics, events --------------------------------------------------------------------------


def metrics(families: Iterable[Family]) -> str:
    rows = [
        [f"`{each.sample}`", each.kind, ", ".join(map(code, each.labels)), each.help]
        for each in families
    ]
    return table("metric, kind, labels, meaning", rows)


def events() -> str:
    rows = [
        [code(each.name), each.level, each.of, code(each.text), fields, each.meaning]
        for each in EVENTS
        for fields in [", ".join(map(code, each.fields))]
    ]
    return table("event, level, daemon, text, fields, meaning", rows)


# --- examples, commands -----------------------------------------------------------------------


def example(name: str) -> str:
    return f"```python example\n{(EXAMPLES / name).read_text()}```\n"


def command(sections: Mapping[str, Iterable[Option]]) -> str:
    """Return the tables of a command's options, by section."""
    parts = []
    for title, section in sections.items():
        rows = [
            [f"`--{each.flag}`", each.kind.values, _default(each), _meaning(each)]
            for each in section
        ]
        parts.append(f"**{title}**\n\n" + table("flag, values, default, meaning", rows))
    return "\n".join(parts)


def examples(*names: str) -> Blocks:
    return {f"example {name}": partial(example, name) for name in names}


def recorded(*names: str) -> Blocks:
    return {f"figures of {name}": partial(figures.recorded, name) for name in names}


PAGES: dict[str, Blocks] = {
    "../README.md": {"comparison": figures.comparison},
    "CLIENT.md": {"options": client_options, **recorded("clients")},
    "CONFIG.md": {
        f"options of {each.daemon}": partial(daemon_options, each)
        for each in (NSQD, NSQLOOKUPD, NSQADMIN)
    },
    "DOCTOR.md": {"checks": report.table},
    "DURABILITY.md": {"prices of the classes": prices.of_classes},
    "LOGS.md": {"events": events},
    "METRICS.md": {
        f"metrics of {daemon}": partial(metrics, families) for daemon, families in BY_DAEMON.items()
    },
    "PIPELINE.md": {
        "options of all": partial(job_options, OUTPUT),
        "options of source": partial(job_options, SOURCE),
        "options of spark": partial(job_options, SPARK),
        **{f"options of {job}": partial(own_options, job) for job in JOBS},
    },
    "PERFORMANCE.md": {"microseconds": figures.microseconds, **recorded("sizes")},
    "REPLICATION.md": {"prices of copies": prices.of_copies},
    "SPARK.md": {"options": spark_options, **recorded("spark")},
    "guides/celery.md": {
        **examples("celery_app.py"),
        **recorded("celery tasks", "celery kills", "celery etas"),
    },
    "guides/dramatiq.md": examples("dramatiq_app.py"),
    "guides/taskiq.md": examples("taskiq_app.py"),
    "guides/faststream.md": examples("faststream_app.py"),
    "guides/dead-letters.md": examples("dead_letters.py"),
    "guides/delays.md": examples("delays.py"),
    "guides/django.md": examples("django_app.py"),
    "guides/fastapi.md": examples("fastapi_app.py"),
    "guides/flask.md": examples("flask_app.py"),
    "guides/from-other-brokers.md": {"safer publishes": figures.on_disk},
    "guides/patterns.md": examples(
        "request_reply.py",
        "cron.py",
        "fairness.py",
        "order.py",
        "several_topics.py",
        "priorities.py",
        "idempotency.py",
    ),
    "guides/many-tenants.md": examples("tenant_mailer.py"),
    "guides/ordered-processing.md": examples("account_events.py"),
    "guides/priorities.md": examples("urgent_first.py"),
    "guides/publishing-once.md": examples("webhooks.py"),
    "guides/tracing.md": examples("traced_worker.py"),
    "guides/worker.md": examples("worker.py", "async_worker.py"),
    "reference/commands.md": {
        "commands of a cluster": command_help.markdown,
        **{f"options of {name}": partial(command, sections) for name, sections in COMMANDS.items()},
    },
}

if __name__ == "__main__":
    main()
