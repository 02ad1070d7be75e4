"""Workers' requests, which are executed in the master or forwarded to another worker.

Owns the path between workers. `verbs` and `reports` define the master's actions.
"""

from typing import Any

from nsqcy.logging.types import Lines
from nsqcy.nsqd import process_calls
from nsqcy.nsqd.master.workers import Workers
from nsqcy.nsqd.process_messages.master_verbs import MasterSide, MasterVerb
from nsqcy.nsqd.process_messages.reports import WorkerReport
from nsqcy.nsqd.process_messages.to_worker import AdoptSession
from nsqcy.process import ancillary
from nsqcy.process.control import Answer, ChannelClosed, Request

FORWARD_LIMIT = 60.0  # maximum seconds for one worker to answer another; callers set shorter limits


class WorkerRequests:
    """`workers.Requests`."""

    def __init__(self, workers: Workers, side: MasterSide, log: Lines) -> None:
        self._workers = workers
        self._side = side
        self._log = log

    def called(self, index: int, request: Request) -> Any:
        return self._serve(request) if request.to is None else self._forward(index, request)

    def notified(self, index: int, request: Request) -> None:
        try:
            self._serve(request)
        except ValueError as error:
            self._log.error(f"worker {index}: {request.method}: {error}")

    def _serve(self, request: Request) -> Answer:
        return process_calls.serve(request, (MasterVerb, self._side), (WorkerReport, self._side))

    def _forward(self, index: int, request: Request) -> Answer:
        handle = self._workers.get(request.to)
        if handle is None:
            ancillary.close_all(request.fds)
            raise ChannelClosed(f"worker {request.to} is not up")
        answer = handle.channel.call(
            request.method, FORWARD_LIMIT, blob=request.blob, fds=request.fds, **request.args
        )
        sender = self._workers.get(index)
        if request.method == AdoptSession.__name__ and sender is not None:
            sender.migrated(-1)
            handle.migrated(1)
        return answer
