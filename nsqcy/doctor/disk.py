"""The checks of a data path and the disk it is on: pure functions of a host's facts."""

from collections.abc import Iterator

from nsqcy.doctor.checks import Check, size
from nsqcy.doctor.facts import Disk, Host
from nsqcy.doctor.findings import Finding, note, ok, problem, warning

FREE_SHARE = 0.1  # of a disk
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
        yield problem(disk.error, "make it, or name another one with --data-path")
    elif disk.write_error:
        text = f"{disk.path} cannot be written to: {disk.write_error}"
        yield problem(
            text, "it has to belong to the user that nsqd runs as; run doctor as that user"
        )
    else:
        yield ok(f"{disk.path} can be written to")


def file_system(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    yield from _kind(disk, host.wanted.durable)
    if "ro" in disk.mount_options:
        yield problem(f"{disk.path} is mounted read-only", "mount -o remount,rw, and ask dmesg why")
    if disk.mount_options & WITHOUT_BARRIERS:
        text = f"{disk.path} is mounted without barriers: a sync does not reach the disk"
        yield problem(text, "take nobarrier out of its mount options")
    if "sync" in disk.mount_options:
        text = f"{disk.path} is mounted with `sync`: each write waits for the disk"
        yield warning(text, "take it out; nsqd syncs what has to be")


def _kind(disk: Disk, durable: bool) -> Iterator[Finding]:
    where = f"{disk.path} is on {disk.kind or 'a file system of unknown kind'}"
    if disk.kind in VOLATILE_KINDS:
        text = f"{where}, which is memory: messages do not survive a restart of the machine"
        say = problem if durable else warning
        yield say(text, "put the data path on a disk")
    elif disk.kind in REMOTE_KINDS:
        text = f"{where}: locks and syncs are worth what the server makes of them"
        yield warning(text, "put the data path on a local disk")
    elif disk.kind == "overlay":
        text = f"{where}: what a container writes goes when the container goes"
        yield warning(text, "mount a volume at the data path")
    elif disk.kind in DURABLE_KINDS:
        yield ok(f"{where}, which keeps what is synced")
    else:
        yield note(f"{where}: how it keeps what is synced is not known here")


def disk_space(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    free = f"{size(disk.bytes_free)} of {size(disk.bytes_all)} are free at {disk.path}"
    minimum = host.wanted.min_free_disk
    if minimum and disk.bytes_free < minimum:
        text = f"{free}, fewer than --min-free-disk: publishes that would be written are refused"
        yield problem(text, "make room, or let channels with a backlog be consumed")
    elif disk.bytes_free < min(MIN_FREE, FREE_SHARE * disk.bytes_all):
        yield problem(free, "make room, and set --min-free-disk to have publishes refused in time")
    elif disk.bytes_free < FREE_SHARE * disk.bytes_all:
        yield warning(free, "make room before it is full")
    else:
        yield ok(free)
    if disk.files_all and disk.files_free < FREE_SHARE * disk.files_all:
        text = f"{disk.files_free} of {disk.files_all} inodes are free at {disk.path}"
        yield warning(text, "each topic takes some: look for what has so many files")


def disk_latency(host: Host) -> Iterator[Finding]:
    disk = _disk(host)
    middle, longest = sorted(disk.syncs)[len(disk.syncs) // 2], max(disk.syncs)
    text = f"a small write is synced in {milliseconds(middle)}, {milliseconds(longest)} at most"
    advice = (
        "topics of class fsync publish at most so often for each who waits; see docs/DURABILITY.md"
    )
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
        "whether it is there, and a file can be written in it",
        "",
        data_path,
        lambda host: host.disk,
    ),
    Check(
        "file-system",
        "the kind it is of: memory, a server's, a container's layer; mounted read-only, without"
        " barriers, with `sync`",
        "",
        file_system,
        _has_disk,
    ),
    Check(
        "disk-space",
        f"what is free: less than {FREE_SHARE:.0%}, or than `--min-free-disk`; inodes",
        "",
        disk_space,
        _has_disk,
    ),
    Check(
        "disk-latency",
        f"how long a small write and its sync take, of a file that is removed again (more than"
        f" {SLOW_SYNC * 1e3:.0f} ms, {VERY_SLOW_SYNC * 1e3:.0f} ms)",
        "",
        disk_latency,
        lambda host: host.disk and host.disk.syncs,
    ),
)
