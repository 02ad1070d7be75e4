"""Texts from elsewhere that become one line: in a header, for instance."""


def one_line(text: str, maximum: int) -> str:
    """Return the text with spaces for the characters that cannot be printed, cut off at `maximum`
    bytes of UTF-8."""
    shown = "".join(each if each.isprintable() else " " for each in text[:maximum])
    return shown.encode()[:maximum].decode("utf-8", "ignore")
