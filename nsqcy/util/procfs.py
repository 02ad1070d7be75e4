"""Files that the kernel makes up: read whole, and nothing where one cannot be read.

Knows nothing of what they say.
"""


def read(path: str) -> str:
    """The text of a file; "" if it is not there, or not for us."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def number(path: str) -> int | None:
    """None if a file is not one whole number, not negative."""
    text = read(path).strip()
    return int(text) if text.isdecimal() else None


def command_line(process: int | str = "self") -> str:
    """The words of a process, each but the last followed by NUL."""
    return read(f"/proc/{process}/cmdline").rstrip("\0")
