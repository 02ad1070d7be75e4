"""Policy changes, which are saved to disk first, then sent to every worker, including workers that
start later.

Owns this order; policy_file owns the file format.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore

from nsqcy.errors import NotWritten
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.master import policy_file
from nsqcy.nsqd.master.workers import Workers
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_messages.to_worker import PoliciesChanged, TakeRecalledPolicies


class PolicyStore:
    """Topic and channel policies that were set over HTTP."""

    def __init__(
        self,
        saved: policy_file.SavedPolicies,
        workers: Workers,
        context: dict[str, Any],
        log: Lines,
    ) -> None:
        """context: boot data for workers."""
        self._saved = saved
        self._workers = workers
        self._context = context
        self._log = log
        self._lock = BoundedSemaphore()
        self._topics_are_loaded = False

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return self._saved.dump()

    def restore(self) -> None:
        """Continue with the saved policies of the previous version."""
        self._topics_are_loaded = True

    @property
    def is_changing(self) -> bool:
        """Whether a change is being written, or sent to the workers."""
        return bool(self._lock.locked())

    def set(self, name: str, values: Mapping[str, Any] | None) -> None:
        """Set values for a topic or for `topic/channel`, or unset all of them (None).

        Returns when they are on disk and in all workers. If it raises NotWritten, nothing has
        changed.
        """
        with self._lock:
            self._keep(self._saved.change(name, values), [name])

    def forget(self, topic: str, channel: str) -> None:
        """Drop the policies of a deleted topic and its channels, or of one channel."""
        with self._lock:
            name = f"{topic}/{channel}"
            names = [each for each in self._saved.names(topic) if not channel or each == name]
            saved = self._saved
            for each in names:
                saved = saved.change(each, None)
            if names:
                self._keep(saved, names)

    def recall(self) -> None:
        """Save the policies that are in topics' journals but missing from the saved policies. All
        topics must be loaded: if only some of the policies were saved, the others would no longer
        be considered missing.

        The owners of the topics already apply them. If the write fails, the next change saves
        them, or the next start finds them again.
        """
        self._topics_are_loaded = True
        with self._lock:
            values: dict[str, dict[str, Any]] = {}
            for answer in self._workers.gather(TakeRecalledPolicies()).values():
                values |= {} if isinstance(answer, Exception) else answer
            if values:
                self._saved = self._saved.recall(values)
                with contextlib.suppress(NotWritten):
                    self._keep(self._saved, list(values))

    def recalled(self) -> None:
        """Handle a worker's report of policies that only its journals contain. Never blocks."""
        if self._topics_are_loaded:
            gevent.spawn(self.recall)

    def _keep(self, saved: policy_file.SavedPolicies, names: list[str]) -> None:
        error: OSError | None = gevent.get_hub().threadpool.apply(saved.try_to_write)
        if error is not None:
            events.policies_failed(self._log, error=str(error))
            raise NotWritten
        self._saved = saved
        values = saved.values(NsqdOptions.restore(self._context["options"]))
        self._context["policies"] |= {"set": values, "version": saved.version}
        changed = {name: values.get(name, {}) for name in names}
        self._workers.gather(PoliciesChanged(changed, saved.version))
