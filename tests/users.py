"""Files of users for tests: who there is, with which token, and what each may do."""

from pathlib import Path

from nsqcy.users.hashes import hash_token


def token(name: str) -> str:
    """A user's token; no other text is like it."""
    return f"token-of-{name}"


def section(name: str, *, with_token: bool = True, **settings: str) -> str:
    lines = [f"[user {name}]", *(f"{key} = {value}" for key, value in settings.items())]
    if with_token:
        lines.append(f"token = {hash_token(token(name))}")
    return "\n".join([*lines, ""])


def write(path: Path, *sections: str) -> Path:
    path.write_text("".join(sections))
    path.chmod(0o600)
    return path


def bearer(name: str) -> dict[str, str]:
    """The header that says who sends a request."""
    return {"Authorization": f"Bearer {token(name)}"}
