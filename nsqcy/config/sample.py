"""Sample configuration file: every option with its default, as INI."""

from collections.abc import Iterator

from nsqcy.config.options import OptionTable
from nsqcy.options.option import Option

PATTERN_EXAMPLES = {"topic": "orders.*", "channel": "orders.*/billing"}

_SAMPLE_HEAD = """\
# Every {daemon} option, with its default. Written by `nsqcy config sample`.
#
# An option on the command line (--{flag}={value}) overrides this file. A line that starts
# with # is a comment; anywhere else # ; and % are ordinary characters. Quotes around a value keep
# leading and trailing blanks. A duration is a number with a unit: 250ms, 2s, 1.5h30m.

[{daemon}]
"""


_PATTERN_SAMPLE_HEAD = """\
# --- Topics and channels by name ---
#
# A section sets the keys below for the topics or channels whose names match its pattern. * matches
# anything, ? one character, [abc] one of these characters, [!abc] any other character. If several
# sections match, the last one wins for each key. Keys not set in any section have the values above.
#"""


def sample(table: OptionTable) -> str:
    """Return an INI file with every option, commented out, at its default."""
    example = next(option for option in table if option.in_file)
    lines = [
        _SAMPLE_HEAD.format(
            daemon=table.daemon, flag=example.flag, value=example.show(example.default)
        )
    ]
    for title, options in table.sections.items():
        lines += [f"# --- {title} ---", ""]
        for option in options:
            if option.in_file:
                lines += [f"# {_comment(option)}", f"#{_setting(option)}", ""]
    if table.by_pattern:
        lines += [_PATTERN_SAMPLE_HEAD, *_pattern_sample(table), ""]
    return "\n".join(lines)


def _pattern_sample(table: OptionTable) -> Iterator[str]:
    for kind, options in table.by_pattern.items():
        yield f"#   [{kind} {PATTERN_EXAMPLES[kind]}]"
        for option in options.values():
            yield f"#   {option.name} = {option.show(option.example)}"


def _comment(option: Option) -> str:
    notes = []
    if option.rule:
        notes.append(f"must be {option.rule.phrase}")
    if option.default_text:
        notes.append(f"default: {option.default_text}")
    return f"{option.help} ({'; '.join(notes)})" if notes else option.help


def _setting(option: Option) -> str:
    # Machine-dependent defaults are replaced with an example.
    value = option.example if option.default_text else option.default
    return f"{option.name} = {option.show(value)}".rstrip()
