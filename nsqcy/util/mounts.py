"""Mounted file systems, from /proc/self/mountinfo."""

import re


def mount(path: str, mountinfo: str) -> tuple[str, frozenset[str]]:
    """Return the file system type and the mount options for a path."""
    best, found = "", ("", frozenset[str]())
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 6 or len(kind) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # The last mount at a mount point hides the others.
        if inside and len(point) >= len(best):
            best, found = point, (kind[0], frozenset(f"{fields[5]},{kind[2]}".split(",")))
    return found
