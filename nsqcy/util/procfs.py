"""Reads small files in /proc and /sys; unreadable files are treated as empty."""


def read(path: str) -> str:
    """Return the text of a file; "" if it is missing or not readable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def number(path: str) -> int | None:
    """Return the number in a file; None if the content is not a single non-negative integer."""
    text = read(path).strip()
    return int(text) if text.isdecimal() else None


def command_line(process: int | str = "self") -> str:
    """Return a process's command line, with a NUL between arguments."""
    return read(f"/proc/{process}/cmdline").rstrip("\0")
