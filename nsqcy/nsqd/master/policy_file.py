"""policies.json: the topic and channel policies that were set over HTTP.

`SavedPolicies` is the file's content, by topic and by "topic/channel". Calls block, so a process
with a hub makes them in a thread. An unreadable file is set aside; invalid entries stay in the file
and are ignored.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from nsqcy.errors import StartError
from nsqcy.logging.types import Lines
from nsqcy.names import is_valid_name
from nsqcy.nsqd.http.policy_values import BadPolicy, merged, read
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.options.option import Value
from nsqcy.util import files

FILE = "policies.json"
VERSION = 1


class SavedPolicies:
    """The saved values, by topic and by "topic/channel": each key with its JSON value."""

    def __init__(self, data_path: str, said: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._data_path = data_path
        self._said = {name: dict(values) for name, values in (said or {}).items()}

    def names(self, topic: str) -> list[str]:
        """Return the entries of a topic and of its channels."""
        return [name for name in self._said if name.partition("/")[0] == topic]

    def change(self, name: str, values: Mapping[str, Any] | None) -> "SavedPolicies":
        """Return the policies after this change; None unsets everything."""
        said = dict(self._said)
        left = {} if values is None else merged(said.get(name, {}), values)
        said.pop(name, None)
        if left:
            said[name] = left
        return SavedPolicies(self._data_path, said)

    def values(
        self, options: NsqdOptions, lines: Lines | None = None
    ) -> dict[str, dict[str, Value]]:
        """Return all valid entries; `lines` receives a line for each invalid entry."""
        found: dict[str, dict[str, Value]] = {}
        for name, said in self._said.items():
            values = {}
            for key, value in said.items():
                try:
                    values[key] = read(name, key, value, options)
                except BadPolicy as bad:
                    if lines is not None:
                        lines.error(
                            f"{FILE}: {name}: {bad}; the policy stays in the file but is not in"
                            " effect",
                            event="policy_ignored",
                            name=name,
                            error=str(bad),
                        )
            found[name] = values
        return found

    def write(self) -> None:
        """Write the file to disk; after a crash, there is either the old or the new file. Raises
        OSError."""
        content = {"version": VERSION, "set": self._said}
        text = json.dumps(content, indent=1) + "\n"
        files.replace(self._data_path or ".", FILE, text.encode())

    def try_to_write(self) -> OSError | None:
        """Runs in a pool thread. It does not raise, because the pool would print the error."""
        try:
            self.write()
        except OSError as error:
            return error
        return None


def load(data_path: str, lines: Lines) -> SavedPolicies:
    """Read the file; empty if it does not exist or is damaged. Raises StartError."""
    path = os.path.join(data_path, FILE)
    try:
        return look(data_path)
    except ValueError as error:
        aside = _set_aside(path)
        lines.error(
            f"{path} is damaged; policies set over HTTP are not in effect: {error}",
            event="policies_damaged",
            path=path,
            error=str(error),
        )
        lines.error(f"it was set aside as {aside}")
        return SavedPolicies(data_path)


def look(data_path: str) -> SavedPolicies:
    """Read the file without changing it. Raises ValueError if it is damaged."""
    path = os.path.join(data_path, FILE)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return SavedPolicies(data_path)
    except OSError as error:
        raise StartError(f"failed to load policies - {path}: {_reason(error)}") from None
    return SavedPolicies(data_path, _parse(path, content))


def _parse(path: str, content: bytes) -> dict[str, dict[str, Any]]:
    """Parse the content. Raises ValueError if it is not in nsqd's format, and StartError if a later
    version wrote it."""
    try:
        found = json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict) or not isinstance(found.get("version"), int):
        raise ValueError("it has no version")
    if found["version"] > VERSION:
        raise StartError(
            f"failed to load policies - {path} has version {found['version']}, but this nsqd "
            f"reads version {VERSION}: a later nsqd wrote it"
        )
    said = found.get("set")
    if not isinstance(said, dict):
        raise ValueError("it has no policies")
    for name, values in said.items():
        if not all(map(is_valid_name, name.split("/"))) or name.count("/") > 1:
            raise ValueError(f"{json.dumps(name)} is not a valid topic or channel name")
        if not isinstance(values, dict):
            raise ValueError(f"{json.dumps(name)} has no keys")
    return said


def _set_aside(path: str) -> str:
    """Rename the file to an unused name and return that name. Raises StartError."""
    aside = f"{path}.damaged"
    number = 1
    while os.path.exists(aside):
        number += 1
        aside = f"{path}.damaged-{number}"
    try:
        os.rename(path, aside)
        files.sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        raise StartError(
            f"failed to load policies - cannot set {path} aside: {_reason(error)}"
        ) from None
    return aside


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
