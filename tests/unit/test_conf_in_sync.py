"""conf/nsqd.ini and docs/CONFIG.md are what the option table says."""

import re
from pathlib import Path

import pytest

from nsqcy import config
from nsqcy.nsqd.options import NSQD, resolve

ROOT = Path(__file__).parents[2]


def test_the_sample_file_is_the_tables() -> None:
    text = (ROOT / "conf/nsqd.ini").read_text()
    assert text == config.sample(NSQD), "run `make conf`"


def test_the_documentation_is_the_tables() -> None:
    text = (ROOT / "docs/CONFIG.md").read_text()
    assert text == config.docs([NSQD]), "run `make conf`"


def test_the_sample_file_loads_and_sets_nothing() -> None:
    file = config.read_file(NSQD, str(ROOT / "conf/nsqd.ini"))
    assert file.values == {}
    assert file.warnings == []


def test_the_sample_file_holds_every_option_at_its_default(tmp_path: Path) -> None:
    text = (ROOT / "conf/nsqd.ini").read_text()
    path = tmp_path / "nsqd.ini"
    path.write_text(re.sub(r"(?m)^#(\w+ =)", r"\1", text))
    file = config.read_file(NSQD, str(path))
    assert file.values.keys() == {option.name for option in NSQD if option.in_file}
    for option in NSQD:
        if option.in_file and not option.default_text:
            assert file.values[option.name] == option.default, option.name
    resolve(config.Settings(NSQD, {}, file))


def test_the_sample_file_is_no_wider_than_a_screen() -> None:
    assert all(len(line) <= 130 for line in config.sample(NSQD).splitlines())


@pytest.mark.parametrize("option", list(NSQD), ids=lambda option: option.flag)
def test_every_option_is_explained(option: config.Option) -> None:
    assert option.help
    assert not option.help.endswith(".")
    assert "`" not in option.help  # Go's usage would take it for the name of the value
    if option.default_text:
        assert type(option.example) is type(option.default)
