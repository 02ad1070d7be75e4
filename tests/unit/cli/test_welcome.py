"""The text that `nsqcy up` shows."""

from nsqcy.cli import welcome

LOOKUPD = {"TCP": "0.0.0.0:4160", "HTTP": "0.0.0.0:4161"}


def test_it_shows_the_daemons_and_commands_that_can_be_typed() -> None:
    nsqd = {"TCP": "[::]:1", "HTTP": "[::]:2"}
    assert "  nsqd:       TCP on [::]:1, HTTP on [::]:2, data in data\n" in welcome.daemons(
        nsqd, "data", LOOKUPD
    )
    text = welcome.commands(nsqd, LOOKUPD)
    assert "    export NSQCY_NSQD_HTTP_ADDRESS=[::1]:2\n    nsqcy pub greetings hello\n" in text
    assert "'http://127.0.0.1:4161/lookup?topic=greetings'" in text


def test_the_usual_port_needs_no_variable() -> None:
    text = welcome.commands({"TCP": "127.0.0.1:4150", "HTTP": "127.0.0.1:4151"}, LOOKUPD)
    assert "NSQCY" not in text


def test_without_an_http_port_there_are_no_requests() -> None:
    assert "curl" not in welcome.commands({"TCP": "127.0.0.1:1"}, LOOKUPD)
    assert "curl" not in welcome.commands({"TCP": "/a", "HTTP": "/b"}, LOOKUPD)


def test_nsqadmin_has_a_line_if_it_runs() -> None:
    assert welcome.admin("http://[::1]:3/") == "  nsqadmin:   http://[::1]:3/\n"
    assert welcome.admin("") == ""


def test_the_demo_ends_with_the_page() -> None:
    url = "http://127.0.0.1:4171/"
    text = welcome.demo(url, is_temporary=True)
    assert text.splitlines()[-1].endswith(url)
    assert "deletes all messages" in text and "saves" not in text
    assert "saves all messages" in welcome.demo(url, is_temporary=False)
    assert "nsqadmin" not in welcome.demo("", is_temporary=True)
