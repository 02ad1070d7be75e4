"""Small files of daemons (nsqd.dat, policies.json, nsqadmin's users): each is read, or refused with
an error text. Reading a file and writing it again does not change its meaning.

The first byte of an input selects the file.
"""

import json
import shutil
import tempfile
from pathlib import Path

from nsqcy.config.loader import Settings
from nsqcy.errors import ConfigError, StartError
from nsqcy.names import is_valid_name
from nsqcy.nsqd.master import metadata, policy_file
from nsqcy.nsqd.options import NSQD, resolve
from nsqcy.users import file as users
from nsqcy.users.hashes import hash_password, hash_token
from support.worker_core import Log

COVERS = ["nsqd/master/metadata.py", "nsqd/master/policy_file.py", "nsqd/http/policy_values.py"]
COVERS += ["users/file.py", "users/hashes.py"]
WORDS = [b'"topics":', b'"channels":', b'"name":', b'"paused":', b'"version":', b'"set":', b"null"]
WORDS += [b'"retention_time"', b'"durability"', b'"rate"', b"[user a]", b"role = view", b"[user.a]"]
WORDS += [
    b"password = ",
    b"token = ",
    b"$scrypt$ln=15,r=8,p=1$",
    b"$sha256$",
    b"\\ud800",
    b'"t/c":',
]
OPTIONS = resolve(Settings(NSQD, {}))


def seeds() -> list[bytes]:
    topics = [
        {"name": "t", "paused": True, "channels": [{"name": "c", "paused": False}]},
        {"name": "bad name", "paused": False, "channels": None},
    ]
    said = {
        "t": {"durability": "fsync", "retention_time": "1h"},
        "t/c": {"rate": 5, "max_attempts": 3},
    }
    password, token = hash_password("secret", 10), hash_token("token")
    ini = f"# users\n[user a]\nrole = view\npassword = {password}\n"
    ini += f"[user b]\nrole=operate\ntoken = {token}\n"
    toml = f'[user.a]\nrole = "view"\npassword = "{password}"\n'
    toml += f'[user."b"]\nrole = "operate"\ntoken = "{token}"\n'
    return [
        b"\0" + json.dumps({"topics": topics, "version": "1.3.0"}).encode(),
        b"\1" + json.dumps({"version": 1, "set": said}).encode(),
        b"\2" + ini.encode(),
        b"\2" + toml.encode(),
    ]


def one(data: bytes) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        for kind, read in enumerate((read_metadata, read_policies, read_users)):
            if data[:1] == bytes([kind]):
                read(folder, data[1:])
    finally:
        shutil.rmtree(folder)


def read_metadata(folder: Path, content: bytes) -> None:
    (folder / metadata.FILE).write_bytes(content)
    try:
        found = metadata.load(str(folder), Log())
    except StartError as error:
        str(error).encode("utf-8", "surrogateescape")
        return
    written = metadata.dump(found)
    (folder / metadata.FILE).write_bytes(written)
    assert metadata.dump(metadata.load(str(folder), Log())) == written
    assert all(is_valid_name(name) for topic in found for name in found.pairs(topic)[0][:1])


def read_policies(folder: Path, content: bytes) -> None:
    (folder / policy_file.FILE).write_bytes(content)
    try:
        found = policy_file.load(str(folder), Log())
    except StartError as error:
        str(error).encode()
        return
    lines = Log()
    values = found.values(OPTIONS, lines)
    "".join(lines.lines).encode()
    found.write()
    written = policy_file.look(str(folder)).value
    assert written is not None and written.values(OPTIONS) == values


def read_users(folder: Path, content: bytes) -> None:
    try:
        found = users.parse("users", content.decode("utf-8", "replace"))
    except ConfigError as error:
        str(error).encode("utf-8", "surrogateescape")
        return
    for each in found.values():
        if each.password and each.password.log_cost * each.password.blocks < 100:
            each.password.is_of("secret")
        assert each.password or each.token
