"""Requests of workers: answered here, or passed on to another worker.

Owns which part of the master a request is for. Knows what none of them does.
"""

from typing import Any

from nsqcy.logging.types import Lines
from nsqcy.nsqd.master.topic_registry import TopicRegistry
from nsqcy.nsqd.master.verbs import MasterSide, MasterVerb
from nsqcy.nsqd.master.workers import Workers
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.stats.gathering import Gathering
from nsqcy.nsqd.stats.metrics import Metrics
from nsqcy.process import ancillary
from nsqcy.process.control import Answer, ChannelClosed, Request

FORWARD_LIMIT = 60.0  # seconds a worker may take to answer another; callers set less


class WorkerRequests:
    """`workers.Requests`."""

    def __init__(
        self,
        workers: Workers,
        topics: TopicRegistry,
        stats: Gathering,
        metrics: Metrics,
        side: MasterSide,
        log: Lines,
    ) -> None:
        self._workers = workers
        self._topics = topics
        self._stats = stats
        self._metrics = metrics
        self._side = side
        self._log = log

    def called(self, index: int, request: Request) -> Any:
        if request.to is not None:
            return self._forward(request)
        args = request.args
        match request.method:
            case "place":
                return self._topics.place(args["topic"])
            case "stats":
                return Answer(blob=self._stats.page(Query(**args)))
            case "metrics":
                return self._metrics.page(**args)
            case "topic_created":
                changed = self._topics.topic_created(index, **args)
            case "channel_created":
                changed = self._topics.channel_created(**args)
            case "topic_deleted":
                changed = self._topics.topic_deleted(**args)
            case "channel_deleted":
                changed = self._topics.channel_deleted(**args)
            case "topic_paused":
                changed = self._topics.picture.pause_topic(**args)
            case "channel_paused":
                changed = self._topics.picture.pause_channel(**args)
            case _:
                return self._run(request)
        if changed:
            self._topics.save(args["topic"], args.get("channel", ""))
        return changed

    def notified(self, index: int, request: Request) -> None:
        if request.to is not None:
            self._pass_on(request)
            return
        args = request.args
        match request.method:
            case "topic_created":
                changed = self._topics.topic_created(index, **args)
            case "channel_created":
                changed = self._topics.channel_created(**args)
            case _:
                ancillary.close_all(request.fds)
                self._log.error(f"worker {index}: the master has no method {request.method}")
                return
        if changed:
            self._topics.save_soon(args["topic"], args.get("channel", ""))

    def _run(self, request: Request) -> Answer:
        try:
            verb: MasterVerb[Any] = MasterVerb.decode(request)
        except ValueError:
            ancillary.close_all(request.fds)
            raise
        return verb.serve(self._side)

    def _forward(self, request: Request) -> Answer:
        handle = self._workers.get(request.to)
        if handle is None:
            ancillary.close_all(request.fds)
            raise ChannelClosed(f"worker {request.to} is not up")
        return handle.channel.call(
            request.method, FORWARD_LIMIT, blob=request.blob, fds=request.fds, **request.args
        )

    def _pass_on(self, request: Request) -> None:
        handle = self._workers.get(request.to)
        if handle is None:
            ancillary.close_all(request.fds)
        else:
            handle.channel.notify(
                request.method, blob=request.blob, fds=request.fds, **request.args
            )
