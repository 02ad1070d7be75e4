"""Small files that survive a power loss: directories synced, files replaced whole.

Calls block; who has a hub makes them off it. Knows nothing of what the files hold.
"""

import os


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power loss. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(directory: str, name: str, content: bytes) -> None:
    """Put `content` in the place of a file, which is then its owner's alone to read. A crash leaves
    the old or the new one. Raises OSError."""
    temporary = os.path.join(directory, name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, os.path.join(directory, name))
    sync_directory(directory)
