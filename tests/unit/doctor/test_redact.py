"""Secrets are removed from texts, whatever their form; other text is unchanged."""

import base64
import json
from urllib.parse import quote

import pytest

from nsqcy.doctor.redact import REMOVED, Redactor, option_value, secrets_of_value
from nsqcy.users.hashes import hash_token

SECRET = "S3cr3t/value+x=="
# The salt is random, but all test processes must collect the same tests.
HASHED = "$scrypt$ln=4,r=8,p=1$qUm9RSllxecjQBXtEWzWMQ$kZptddOsNVQcR8ppugk8VA5mKPuX+C9zJM70b4aG9+U"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: basic {SECRET}",
        f'{{"Authorization": "Bearer {SECRET}"}}',
        f"token={SECRET}",
        f"the token: {SECRET}",
        f'"password": "{SECRET}"',
        f'{{\\"secret\\":\\"{SECRET}\\"}}',
        f"api_key = '{SECRET}'",
        f"Set-Cookie: {SECRET}",
        f"http://anna:{quote(SECRET, '')}@nsq/ping",
        f"http://{quote(SECRET, '')}@nsq/ping",
        f"user:{quote(SECRET, '')}@10.0.0.1:4150",
        f"http://nsq/auth?secret={SECRET}&x={SECRET}",
        f"http://nsq/auth?{SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        str(hash_token(SECRET)),
        HASHED,
    ],
)
def test_a_secret_with_a_known_form(text: str) -> None:
    shown = Redactor().text(f"before {text}\nafter")
    assert REMOVED in shown and shown.startswith("before ") and shown.endswith(("after", REMOVED))
    forms = (SECRET, quote(SECRET, ""), str(hash_token(SECRET)), "$scrypt$ln")
    assert [each for each in forms if each in shown] == []


@pytest.mark.parametrize(
    "form",
    [
        str,
        quote,
        lambda text: quote(text, ""),
        lambda text: json.dumps(f"say {text}"),
        lambda text: base64.b64encode(text.encode()).decode(),
        lambda text: text.encode().hex(),
    ],
)
def test_a_known_value_is_found_anywhere(form: object) -> None:
    assert callable(form)
    written = form('a "word" of 1')
    assert Redactor(['a "word" of 1\n']).text(f"<{written}>").count(REMOVED) == 1


@pytest.mark.parametrize(
    "text",
    [
        'nsqd_channel_depth{topic="orders",channel="billing"} 3',
        "2026/11/20 11:18:31.207514 INFO: TCP: listening on 127.0.0.1:4150",
        '{"hostname":"nsq-1","remote_address":"10.0.0.1:5342","user_agent":"go-nsq/1.1.0"}',
        "http://nsq-1.example.com:4151/stats",
        "lookupd_auth_token_file = [set]",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert Redactor(["", "abc"]).text(text) == text


def test_values_of_options() -> None:
    shown = {
        ("etcd_password_file", "/etc/secret"): "[set]",
        ("tls_key", SECRET): "[set]",
        ("auth_token_file", ""): "",
        ("tcp_address", "0.0.0.0:4150"): "0.0.0.0:4150",
        ("graphite_url", "http://a:b@graphite/x?y#z"): f"http://{REMOVED}@graphite/{REMOVED}",
        ("auth_http_address", "anna:x@host/auth"): f"{REMOVED}@host/{REMOVED}",
        ("etcd_endpoints", "http://a:1,http://b:c@d:2"): f"http://a:1, http://{REMOVED}@d:2",
        ("notification_http_endpoint", "https://hooks/T0/B1"): f"https://hooks/{REMOVED}",
    }
    assert {key: option_value(*key) for key in shown} == shown


def test_parts_of_values_that_are_secrets() -> None:
    found = secrets_of_value("https://anna:password@host/services/T000/B000?key=longer")
    assert found == {"anna:password", "password", "services/T000/B000?key=longer", "longer"}
    assert secrets_of_value("127.0.0.1:4150") == secrets_of_value("http://host/auth") == set()
