"""docs/INSTALL.md; tests/daemon/test_nodes.py runs its commands for systemd."""

import re

from support.distribution_files import ROOT

PAGE = (ROOT / "docs" / "INSTALL.md").read_text()


def test_what_it_says_of_time_and_paths_is_so() -> None:
    assert "docker stop -t 620" in PAGE
    assert "docker stop -t 620" in (ROOT / "Dockerfile").read_text()
    for path in re.findall(r"`(conf/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path
