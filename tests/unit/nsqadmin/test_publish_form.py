"""The publish form's texts."""

import pytest

from nsqcy.errors import HttpError
from nsqcy.nsqadmin.views.publish import read


def test_a_form_becomes_a_message() -> None:
    fields = {"body": "a\r\nü", "defer": "1.5", "headers": "trace: 4b f9\r\n\r\nEmpty:"}
    found = read(fields)
    assert found.body == b"a\n\xc3\xbc"
    assert found.defer == "1500"
    assert found.headers == {"trace": "4b f9", "Empty": ""}
    assert read({"body": "a"}) == (b"a", "", {})


@pytest.mark.parametrize(
    "fields",
    [
        {"defer": "soon"},
        {"defer": "Infinity"},
        {"headers": "no colon"},
        {"headers": "a b: c"},
        {"headers": "a: \x01"},
        {"headers": "a: ü"},
    ],
)
def test_what_cannot_be_sent_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(HttpError, match="invalid"):
        read({"body": "a"} | fields)
