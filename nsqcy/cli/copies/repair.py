"""`nsqcy copies repair`: makes a node accept the registry in etcd, regardless of its contents.

While other nodes use a registry, a node rejects it if it is a different one, or if it lacks data
that the node has seen. While members are missing, a node does not restore a group in the registry,
because a missing member may know a later value. After this command, the node uses the registry and
restores its groups. A data path written by an older version has no record of its groups: its copies
are compared with those of the other members.
"""

from pathlib import Path

import click

from nsqcy.errors import StartError
from nsqcy.nsqd.copies.copy_files import FOLDER, distrust_copies
from nsqcy.nsqd.copies.node import accept_registry
from nsqcy.process import data_path_lock
from nsqcy.util.standard_streams import show


@click.command()
@click.argument("data_path", type=click.Path(path_type=Path))
def repair(data_path: Path) -> None:
    """Let a stopped nsqd use etcd again.

    For an etcd that has lost its data, was restored from a backup, or was replaced. Stop all nsqds
    in the cluster, run this command for each of them, and start them again. They restore their
    groups in etcd, and do not wait longer than half a minute for nsqds that are missing.
    """
    root = data_path / FOLDER
    if not root.is_dir():
        raise StartError(f"{data_path} has no copies")
    try:
        lock = data_path_lock.lock_data_path(str(data_path), orphans_wait=0)
    except data_path_lock.DataPathError as error:
        raise StartError(str(error)) from None
    with lock:
        try:
            count = 0 if accept_registry(root) else distrust_copies(data_path)
        except OSError as error:
            raise StartError(f"{root}: {error.strerror}") from None
    copies = "1 copy" if count == 1 else f"{count} copies"
    compared = f", and {copies} will be compared with those of other nodes" if count else ""
    show(f"{data_path}: etcd will be accepted at the next start{compared}\n")
