"""AUTH on a daemon without an auth server: the part of section 9.5 that always holds."""

import pytest
from daemon import Nsqd


@pytest.mark.case("C120")
def test_disabled(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.command("AUTH", body=b"secret")
    conn.expect_error("E_AUTH_DISABLED AUTH disabled")


@pytest.mark.case("C121")
@pytest.mark.parametrize("line", [b"AUTH \n", b"AUTH x\n"])
def test_no_parameters_allowed(shared: Nsqd, line: bytes) -> None:
    conn = shared.connect()
    conn.send(line)
    conn.expect_error("E_INVALID AUTH invalid number of parameters")


@pytest.mark.case("C122")
@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "invalid body size 0"),
        (-1, "invalid body size -1"),
        (5242881, "body too big 5242881 > 5242880"),
    ],
)
def test_length_out_of_bounds(shared: Nsqd, length: int, text: str) -> None:
    conn = shared.connect()
    conn.send(b"AUTH\n", length.to_bytes(4, "big", signed=True))
    conn.expect_error(f"E_BAD_BODY AUTH {text}")


@pytest.mark.case("C122")
@pytest.mark.parametrize(
    ("sent", "text"),
    [(b"\0\0", "failed to read body size"), (b"\0\0\0\x09s", "failed to read body")],
)
def test_cut_short(shared: Nsqd, sent: bytes, text: str) -> None:
    conn = shared.connect()
    conn.send(b"AUTH\n", sent)
    conn.half_close()
    conn.expect_error(f"E_BAD_BODY AUTH {text}")


@pytest.mark.case("C127")
def test_not_after_sub(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command("AUTH")
    conn.expect_error("E_INVALID cannot AUTH in current state")
