"""Checks for a data path and its disk: pure functions of a host's facts."""

from collections.abc import Iterator

from nsqcy.doctor.checks import Check, size
from nsqcy.doctor.facts import Disk, Host
from nsqcy.doctor.findings import Finding, error, note, ok, warning

FREE_SHARE = 0.1  # minimum free share of a disk
MIN_FREE = 1 << 30
SLOW_SYNC, VERY_SLOW_SYNC = 0.020, 0.200  # seconds

DURABLE_KINDS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"}
)
VOLATILE_KINDS = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
REMOTE_KINDS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "virtiofs")
)
WITHOUT_BARRIERS = frozenset({"nobarrier", "barrier=0"})


def data_path(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    if disk.error:
        yield error(disk.error, "create it, or set a different --data-path")
    elif disk.write_error:
        text = f"{disk.path} is not writable: {disk.write_error}"
        yield error(
            text, "change its owner to the user that nsqd runs as, and run doctor as that user"
        )
    else:
        yield ok(f"{disk.path} is writable")


def file_system(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    yield from _kind(disk, host.wanted.durable)
    if "ro" in disk.mount_options:
        text = f"{disk.path} is mounted read-only"
        yield error(text, "check dmesg for the reason, then mount -o remount,rw")
    if disk.mount_options & WITHOUT_BARRIERS:
        text = f"{disk.path} is mounted without barriers: a sync does not reach the disk"
        yield error(text, "remove nobarrier from its mount options")
    if "sync" in disk.mount_options:
        text = f"{disk.path} is mounted with `sync`: each write waits for the disk"
        yield warning(text, "remove the option: nsqd syncs its files itself")


def _kind(disk: Disk, durable: bool) -> Iterator[Finding]:
    where = f"{disk.path} is on {disk.kind or 'a file system of unknown kind'}"
    if disk.kind in VOLATILE_KINDS:
        text = f"{where}, which is in memory: messages do not survive a reboot"
        say = error if durable else warning
        yield say(text, "put the data path on a disk")
    elif disk.kind in REMOTE_KINDS:
        text = f"{where}: locks and syncs are only as reliable as the file server"
        yield warning(text, "put the data path on a local disk")
    elif disk.kind == "overlay":
        text = f"{where}: files are deleted with the container"
        yield warning(text, "mount a volume at the data path")
    elif disk.kind in DURABLE_KINDS:
        yield ok(f"{where}, on which synced data survives a crash")
    else:
        yield note(f"{where}: doctor does not know whether synced data survives a crash")


def disk_space(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    free = f"{size(disk.bytes_free)} of {size(disk.bytes_all)} is free on {disk.path}"
    minimum = host.wanted.min_free_disk
    if minimum and disk.bytes_free < minimum:
        text = f"{free}, less than --min-free-disk: publishes that need disk space are refused"
        yield error(text, "free disk space, or consume channels with a backlog")
    elif disk.bytes_free < min(MIN_FREE, FREE_SHARE * disk.bytes_all):
        advice = "free disk space; set --min-free-disk to refuse publishes before the disk is full"
        yield error(free, advice)
    elif disk.bytes_free < FREE_SHARE * disk.bytes_all:
        yield warning(free, "free disk space before the disk is full")
    else:
        yield ok(free)
    if disk.files_all and disk.files_free < FREE_SHARE * disk.files_all:
        text = f"{disk.files_free} of {disk.files_all} inodes are free on {disk.path}"
        yield warning(text, "each topic uses inodes: find the directory with the most files")


def disk_latency(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    middle, longest = sorted(disk.syncs)[len(disk.syncs) // 2], max(disk.syncs)
    typical, worst = milliseconds(middle), milliseconds(longest)
    text = f"a small write typically syncs in {typical}, at worst in {worst}"
    advice = "a publish to a topic with durability fsync waits for a sync; see docs/DURABILITY.md"
    if middle > VERY_SLOW_SYNC:
        yield warning(text, advice)
    elif middle > SLOW_SYNC:
        yield note(text, advice)
    else:
        yield ok(text)


def _disk(host: Host) -> Disk:
    assert host.disk is not None
    return host.disk


def _has_disk(host: Host) -> bool:
    return host.disk is not None and not host.disk.error


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


CHECKS = (
    Check(
        "data-path",
        "whether the data path exists and is writable",
        "",
        data_path,
        lambda host: host.disk,
    ),
    Check(
        "file-system",
        "the file system: whether it is in memory, remote or a container layer, and whether it is"
        " mounted read-only, without barriers, or with `sync`",
        "",
        file_system,
        _has_disk,
    ),
    Check(
        "disk-space",
        f"free space below {FREE_SHARE:.0%} or `--min-free-disk`; free inodes",
        "",
        disk_space,
        _has_disk,
    ),
    Check(
        "disk-latency",
        f"how long a small write to a temporary file and its sync take (a note above"
        f" {SLOW_SYNC * 1e3:.0f} ms, a warning above {VERY_SLOW_SYNC * 1e3:.0f} ms)",
        "",
        disk_latency,
        lambda host: host.disk and host.disk.syncs,
    ),
)
