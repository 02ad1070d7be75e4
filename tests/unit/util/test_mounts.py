"""The file system of a path."""

import pytest

from nsqcy.util.mounts import mount

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
22 21 8:2 / /data\040two rw,noatime - xfs /dev/sdb rw,nobarrier
23 21 8:2 / /data rw - tmpfs none rw
24 21 8:2 / /data rw - nfs4 server:/x rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind", "option"),
    [
        ("/", "ext4", "relatime"),
        ("/database", "ext4", "relatime"),
        ("/data", "nfs4", "rw"),
        ("/data/deep", "nfs4", "rw"),
        ("/data two/x", "xfs", "nobarrier"),
    ],
)
def test_mounts(path: str, kind: str, option: str) -> None:
    found, options = mount(path, MOUNTS)
    assert found == kind and option in options
    assert mount(path, "") == ("", frozenset())
