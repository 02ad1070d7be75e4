"""policies.json: the topic and channel policies that were set over HTTP.

`SavedPolicies` is the file's content, by topic and by "topic/channel". Calls block, so a process
with a hub makes them in a thread. A damaged file is moved away; invalid entries stay in the file
and are ignored.
"""

import contextlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from nsqcy.config.policies import Version, shown
from nsqcy.formats import POLICIES, FormatError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import is_valid_name
from nsqcy.nsqd.http.policy_values import BadPolicy, keys_of, merged, read
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.options.option import Value
from nsqcy.storage import state_file
from nsqcy.storage.state_file import Found, StateFile

FILE = "policies.json"
MISSING = Version()
UNNAMED = Version("", 1)
"""File of an earlier nsqd."""


class SavedPolicies:
    """The saved values, by topic and by "topic/channel": each key with its JSON value."""

    def __init__(
        self,
        data_path: str,
        said: Mapping[str, Mapping[str, Any]] | None = None,
        version: Version = MISSING,
    ) -> None:
        self.version = version
        self._data_path = data_path
        self._said = {name: dict(values) for name, values in (said or {}).items()}

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {"set": self._said, "version": self.version}

    @classmethod
    def restore(cls, data_path: str, dumped: dict[str, Any]) -> "SavedPolicies":
        return cls(data_path, dumped["set"], Version(*dumped["version"]))

    def names(self, topic: str) -> list[str]:
        """Return the names of the entries of a topic and its channels."""
        return [name for name in self._said if name.partition("/")[0] == topic]

    def change(self, name: str, values: Mapping[str, Any] | None) -> "SavedPolicies":
        """Return the policies after this change. If `values` is None, unset everything."""
        said = dict(self._said)
        left = {} if values is None else merged(said.get(name, {}), values)
        said.pop(name, None)
        if left:
            said[name] = left
        return self._changed(said)

    def recall(self, values: Mapping[str, Mapping[str, Any]]) -> "SavedPolicies":
        """Return the policies with these values for these names.

        `values` has the form of `Policies.recalled`.
        """
        said = dict(self._said)
        for name, each in values.items():
            said.pop(name, None)
            if each:
                keys = keys_of(name)
                said[name] = {key: shown(keys[key], value) for key, value in each.items()}
        return self._changed(said)

    def _changed(self, said: Mapping[str, Mapping[str, Any]]) -> "SavedPolicies":
        file, revision = self.version
        version = Version(file or secrets.token_hex(8), revision + 1)
        return SavedPolicies(self._data_path, said, version)

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
                        events.policy_ignored(lines, FILE, name=name, error=str(bad))
            found[name] = values
        return found

    def write(self) -> None:
        """Write the file to disk; after a crash, either the old or the new file exists. Raises
        OSError."""
        file, revision = self.version
        content = {"version": POLICIES.number, "id": file, "revision": revision, "set": self._said}
        text = json.dumps(content, indent=1) + "\n"
        StateFile(self._data_path, FILE).write(state_file.signed(text.encode()))

    def try_to_write(self) -> OSError | None:
        """Runs in a pool thread. It does not raise, because the pool would print the error."""
        try:
            self.write()
        except OSError as error:
            return error
        return None


def load(data_path: str, lines: Lines) -> SavedPolicies:
    """Read the newest intact version of the file, and move other versions away; empty if there is
    none. Raises FormatError."""
    file = StateFile(data_path, FILE)
    found = _look(file, data_path)
    state_file.report(found, lines)
    for fault in found.faults:
        if not (fault.is_missing or fault.is_unreadable):
            with contextlib.suppress(OSError):  # retried by the next write
                lines.error(f"it was moved to {file.set_aside(fault.path)}")
    if found.value is None:
        return SavedPolicies(data_path)
    if found.faults and not any(fault.is_unreadable for fault in found.faults):
        found.value.try_to_write()
    return found.value


def look(data_path: str) -> Found[SavedPolicies]:
    """Read the file without changing it. Raises FormatError."""
    return _look(StateFile(data_path, FILE), data_path)


def _look(file: StateFile, data_path: str) -> Found[SavedPolicies]:
    return file.look(lambda content: _parse(data_path, file.path, content))


def _parse(data_path: str, path: str, content: bytes) -> SavedPolicies:
    """Parse the content. Raises ValueError if it is not in nsqd's format. Raises FormatError."""
    try:
        found = json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict) or type(found.get("version")) is not int:
        raise ValueError("it has no version")
    if not POLICIES.reads(found["version"]):
        raise FormatError(f"failed to load policies - {path}: {POLICIES.refusal(found['version'])}")
    said = found.get("set")
    if not isinstance(said, dict):
        raise ValueError("it has no policies")
    for name, values in said.items():
        if not all(map(is_valid_name, name.split("/"))) or name.count("/") > 1:
            raise ValueError(f"{json.dumps(name)} is not a valid topic or channel name")
        if not isinstance(values, dict):
            raise ValueError(f"{json.dumps(name)} has no keys")
    file, revision = found.get("id"), found.get("revision")
    if isinstance(file, str) and isinstance(revision, int) and revision > 0:
        return SavedPolicies(data_path, said, Version(file, revision))
    return SavedPolicies(data_path, said, UNNAMED)
