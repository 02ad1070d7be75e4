"""Filter of the messages page."""

import pytest

from nsqcy.nsqadmin.message_filter import matches, parse

BODY = b'{"customer": {"id": 17, "name": "Anna"}, "items": [{"sku": "mug"}], "paid": true}'


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("", "", True),
        ("ANNA", "", True),
        ("0a1b", "", True),
        ("trace", "", True),
        ("4bf9", "", True),
        ("bert", "", False),
        ("", "customer.id", True),
        ("", "$.customer.id = 17", True),
        ("", "customer.id=18", False),
        ("", 'customer.name = "Anna"', True),
        ("", "items[0].sku = mug", True),
        ("", "items[1].sku", False),
        ("", "items.sku", False),
        ("", "paid = true", True),
        ("", "customer.name =", False),
        ("anna", "customer.id = 18", False),
    ],
)
def test_filter(text: str, path: str, expected: bool) -> None:
    wanted = parse(text, path)
    assert matches(wanted, "0a1b", {"trace": "4bf9"}, BODY) is expected


def test_bodies_other_than_json_have_no_values() -> None:
    wanted = parse("", "a")
    for body in (b"", b"a", b"\xff", b"[" * 100_000, b"1"):
        assert not matches(wanted, "", {}, body)


@pytest.mark.parametrize("path", ["a[", "a..b", "[x]", "= 1", "a b"])
def test_invalid_paths(path: str) -> None:
    with pytest.raises(ValueError, match="invalid JSON path"):
        parse("", path)
