"""Conversion of untrusted texts to one line, for example for a header."""


def one_line(text: str, maximum: int) -> str:
    """Return the text with unprintable characters replaced with spaces, truncated to `maximum`
    bytes of UTF-8."""
    shown = "".join(each if each.isprintable() else " " for each in text[:maximum])
    return shown.encode()[:maximum].decode("utf-8", "ignore")
