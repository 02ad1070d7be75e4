"""conf/*.ini match the option tables."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqcy.config import configuration_file, loader
from nsqcy.config.options import Options, OptionTable
from nsqcy.config.sample import sample
from nsqcy.nsqadmin import options as nsqadmin
from nsqcy.nsqd import options as nsqd
from nsqcy.nsqlookupd import options as nsqlookupd
from nsqcy.options.option import Option

ROOT = Path(__file__).parents[3]
TABLES = [nsqd.NSQD, nsqlookupd.NSQLOOKUPD, nsqadmin.NSQADMIN]
RESOLVE: dict[str, Callable[[loader.Settings], Options]] = {
    "nsqd": nsqd.resolve,
    "nsqlookupd": nsqlookupd.resolve,
    "nsqadmin": nsqadmin.resolve,
}

each_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.daemon)


def sample_file(table: OptionTable) -> Path:
    return ROOT / f"conf/{table.daemon}.ini"


@each_table
def test_the_sample_file_is_the_tables(table: OptionTable) -> None:
    assert sample_file(table).read_text() == sample(table), "run `make conf`"


@each_table
def test_the_sample_file_loads_and_sets_nothing(table: OptionTable) -> None:
    file = configuration_file.read_file(table, str(sample_file(table)))
    assert file.values == {}
    assert file.warnings == []


@each_table
def test_the_sample_file_holds_every_option_at_its_default(
    table: OptionTable, tmp_path: Path
) -> None:
    text = sample_file(table).read_text()
    path = tmp_path / "sample.ini"
    path.write_text(re.sub(r"(?m)^#(\w+ =)", r"\1", text))
    file = configuration_file.read_file(table, str(path))
    assert file.values.keys() == {option.name for option in table if option.in_file}
    for option in table:
        if option.in_file and not option.default_text:
            assert file.values[option.name] == option.default, option.name
    RESOLVE[table.daemon](loader.Settings(table, {}, file))


@each_table
def test_the_sample_file_is_no_wider_than_a_screen(table: OptionTable) -> None:
    assert all(len(line) <= 130 for line in sample(table).splitlines())


@pytest.mark.parametrize(
    "option", [option for table in TABLES for option in table], ids=lambda option: option.flag
)
def test_every_option_is_explained(option: Option) -> None:
    assert option.help
    assert not option.help.endswith(".")
    assert "`" not in option.help  # Go's usage text would interpret it as the name of the value
    if option.default_text:
        assert type(option.example) is type(option.default)
