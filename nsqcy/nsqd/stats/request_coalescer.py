"""Request coalescer: concurrent callers with the same request share one answer.

The work for an answer begins after the request, so the answer reflects everything that happened
before it. Work runs in rounds, at most one at a time for the same request.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import gevent
from gevent.event import AsyncResult

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class RequestCoalescer(Generic[Question, Answer]):
    """Runs `work`, which may block. Callers that make the same request while a round is running
    share the next round."""

    def __init__(self, work: Callable[[Question], Answer]) -> None:
        self._work = work
        self._next: dict[Question, AsyncResult] = {}  # rounds that have not begun yet
        self._running: set[Question] = set()

    def ask(self, question: Question) -> Answer:
        """Wait for the next round for this request. Raises any exception that `work` raises."""
        result = self._next.get(question)
        if result is None:
            result = self._next[question] = AsyncResult()
            if question not in self._running:
                self._running.add(question)
                gevent.spawn(self._run, question)
        answer: Answer = result.get()
        return answer

    def _run(self, question: Question) -> None:
        while question in self._next:
            result = self._next.pop(question)
            try:
                result.set(self._work(question))
            except Exception as error:  # the callers receive the error
                result.set_exception(error)
        self._running.discard(question)
