"""nsq_to_file: writes messages from topics to files, and finishes each message once its file is
synced.

Owns the flags, topic discovery, and the decision of when to sync files and finish messages.
nsqcy.tools.files owns the files and their repair after a crash.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import re2

from nsqcy import NSQ_VERSION
from nsqcy.client.aio import Consumer
from nsqcy.client.codec import Message, finish
from nsqcy.cluster.http_clients import LookupdClient
from nsqcy.cluster.parallel import ask_all
from nsqcy.cluster.web_client import Terms
from nsqcy.config.durations import MINUTE, SECOND
from nsqcy.config.options import (
    BOOL,
    DURATION,
    INT,
    STRING,
    STRINGS,
    Options,
    Section,
    parse_level,
)
from nsqcy.errors import NsqError, VersionWanted
from nsqcy.logging import logger
from nsqcy.names import is_valid_name
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_lines import ClientLines
from nsqcy.tools.client_options import CONSUMER_OPT, consumer_keywords
from nsqcy.tools.common import Settings, ToolError
from nsqcy.tools.files import names
from nsqcy.tools.files.codecs import Codec, Gzip, Plain, Zstd
from nsqcy.tools.files.disk import Disk
from nsqcy.tools.files.names import FileNames, FormatError
from nsqcy.tools.files.writer import FileInUse, Moment, Rules, TopicFiles
from nsqcy.tools.progress import Progress
from nsqcy.tools.threads import Threads

NAME = "nsq_to_file"


class ToFileOptions(Options, program=NAME):
    """The option values of one nsq_to_file. Durations are int nanoseconds; directories are absolute
    paths."""

    _basic = Section("Basic")
    version = common.VERSION
    log_level = Option("log-level", STRING, "info", "debug, info, warn, error or fatal")
    log_prefix = Option("log-prefix", STRING, f"[{NAME}] ", "prefix of log lines")

    _sources = Section("Sources")
    topic = Option(
        "topic",
        STRINGS,
        (),
        "topic to write to files; default: all topics that nsqlookupds list",
    )
    topic_pattern = Option(
        "topic-pattern", STRING, "", "RE2 expression that topic names must match"
    )
    topic_refresh = Option(
        "topic-refresh", DURATION, MINUTE, "interval between searches for new topics"
    )
    channel = Option("channel", STRING, NAME, "channel name")
    nsqd_tcp_address = common.NSQD_TCP_ADDRESS
    lookupd_http_address = common.LOOKUPD_HTTP_ADDRESS
    max_in_flight = Option(
        "max-in-flight",
        INT,
        200,
        "maximum messages in flight per topic, and maximum messages between syncs",
    )
    consumer_opt = CONSUMER_OPT
    http_client_connect_timeout = common.CONNECT_TIMEOUT
    http_client_request_timeout = common.request_timeout(5 * SECOND)

    _files = Section("Files")
    output_dir = Option("output-dir", STRING, "/tmp", "directory for finished files")
    work_dir = Option(
        "work-dir", STRING, "", "directory for files being written; default: the output-dir"
    )
    datetime_format = Option(
        "datetime-format", STRING, "%Y-%m-%d_%H", "strftime format of <DATETIME>"
    )
    filename_format = Option(
        "filename-format",
        STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "file names, with <TOPIC>, <HOST>, <PID>, <DATETIME> and, if several files can have the "
        "same time, <REV>",
    )
    host_identifier = Option(
        "host-identifier",
        STRING,
        "",
        "<HOST> in file names; may contain <SHORT_HOST> and <HOSTNAME>",
    )
    gzip = Option("gzip", BOOL, False, "compress with gzip")
    gzip_level = Option("gzip-level", INT, 6, "1 (fastest) to 9 (smallest)")
    zstd = Option("zstd", BOOL, False, "compress with zstd")
    zstd_level = Option("zstd-level", INT, 3, "1 (fastest) to 22 (smallest)")
    skip_empty_files = Option("skip-empty-files", BOOL, False, "do not create empty files")
    rotate_size = Option("rotate-size", INT, 0, "maximum bytes per file; 0 for no limit")
    rotate_interval = Option(
        "rotate-interval", DURATION, 0, "maximum time before a file is closed; 0 for no limit"
    )
    sync_interval = Option(
        "sync-interval", DURATION, 30 * SECOND, "time between syncs and checks for rotation"
    )

    def codec(self) -> Codec:
        """A new codec, one per topic, because codecs are not thread-safe."""
        if self.zstd:
            return Zstd(self.zstd_level)
        return Gzip(self.gzip_level) if self.gzip else Plain()


NSQ_TO_FILE = ToFileOptions.table


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_to_file and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    options = resolve(Settings(NSQ_TO_FILE, argv))
    return asyncio.run(Archive(options).run())


def resolve(settings: Settings) -> ToFileOptions:
    """Return the validated options. Raises Stop."""
    if settings.arguments:
        raise ToolError(f"unknown arguments: [{' '.join(settings.arguments)}]")
    options = ToFileOptions(settings.values)
    try:
        parse_level(options.log_level)
    except ValueError:
        raise ToolError("--log-level is invalid") from None
    if settings["version"]:
        raise VersionWanted(f"{NAME} v{NSQ_VERSION}")
    if not options.channel:
        raise ToolError("--channel is required")
    common.require_positive(settings, "http_client_connect_timeout", "http_client_request_timeout")
    common.require_one_source(options.nsqd_tcp_address, options.lookupd_http_address)
    for flag, level, maximum in (
        ("gzip-level", options.gzip_level, 9),
        ("zstd-level", options.zstd_level, 22),
    ):
        if not 1 <= level <= maximum:
            raise ToolError(f"invalid --{flag} value ({level}), should be 1-{maximum}")
    if options.gzip and options.zstd:
        raise ToolError("use --gzip or --zstd not both")
    if not options.topic and not options.topic_pattern:
        raise ToolError("--topic or --topic-pattern required")
    if not options.topic and not options.lookupd_http_address:
        raise ToolError("--lookupd-http-address must be specified when no --topic specified")
    common.require_positive(settings, "topic_refresh", "sync_interval", "max_in_flight")
    output = os.path.realpath(options.output_dir)
    work = os.path.realpath(options.work_dir) if options.work_dir else output
    if _device(work) != _device(output):
        raise ToolError(
            f"--work-dir {work} and --output-dir {output} are on different file systems: "
            "finished files could not be moved; use directories on the same file system"
        )
    return options.replace(output_dir=output, work_dir=work)


def _device(folder: str) -> int:
    """Return the file system that a directory is on, or will be on once it has been created."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.stat(folder).st_dev


# --- all topics ---------------------------------------------------------------------------------


class Archive:
    """All topics of one nsq_to_file, from discovery to the end."""

    def __init__(self, options: ToFileOptions) -> None:
        self._options = options
        self._keywords = {
            # Retry writing a message indefinitely.
            **consumer_keywords(options.consumer_opt, max_tries=0),
            "max_in_flight": options.max_in_flight,
            "user_agent": common.user_agent(NAME),
        }
        self._pattern = _compiled(options.topic_pattern)
        self._host = names.host(options.host_identifier, socket.gethostname())
        self._progress = Progress(None)
        self._log = Log(options.log_prefix, parse_level(options.log_level), self._progress)
        self._client_lines = Lines(self._progress)
        self._topics: dict[str, Topic] = {}
        self._passed_over: set[str] = set()
        try:
            self._lookupds = self._lookupd_clients()
            self._files("topic")  # checks the formats, which are the same for all topics
        except (FormatError, ValueError) as error:
            raise ToolError(str(error)) from None

    async def run(self) -> int:
        """Run until a signal or a failure. Return the exit code."""
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._client_lines.attach()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        discovering = loop.create_task(self._discover())
        discovering.add_done_callback(self._ended)
        await self._stopping.wait()
        discovering.cancel()
        await self._close()
        self._progress.close()
        self._client_lines.detach()
        if isinstance(self._failure, OSError | FileInUse):
            return 1  # the failure is already logged
        if self._failure is not None:
            raise self._failure
        return 0

    def _hang_up(self) -> None:
        for topic in self._topics.values():
            topic.hang_up()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop everything after any failure."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._stopping.set()

    async def _close(self) -> None:
        """Close all topics. If there was no failure, sync and finish their messages first."""
        graceful = self._failure is None
        closing = [topic.close(graceful=graceful) for topic in self._topics.values()]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                self._failure = self._failure or result

    # -- topic discovery

    async def _discover(self) -> None:
        options = self._options
        for name in dict.fromkeys(options.topic):
            if not self._matches(name):
                self._log.warn(
                    f"skipping topic {name} (doesn't match pattern {options.topic_pattern})"
                )
                continue
            try:
                self._add(name)
            except (NsqError, ValueError) as error:
                raise ToolError(f"couldn't create logger for new topic {name}: {error}") from None
        threads = Threads()
        while not options.topic:
            for name in await threads.call(self._known_topics):
                self._meet(name)
            await asyncio.sleep(options.topic_refresh / SECOND)

    def _matches(self, name: str) -> bool:
        return self._pattern is None or self._pattern.search(name) is not None

    def _meet(self, name: str) -> None:
        """Add a topic that an nsqlookupd lists, if it matches the pattern."""
        if name in self._topics or name in self._passed_over:
            return
        if not self._matches(name):
            self._passed_over.add(name)
            pattern = self._options.topic_pattern
            self._log.warn(f"skipping topic {name} (doesn't match pattern {pattern})")
            return
        try:
            self._add(name)
        except (NsqError, ValueError) as error:
            self._log.error(f"couldn't create logger for new topic {name}: {error}")

    def _lookupd_clients(self) -> dict[str, LookupdClient]:
        """Return a client for each nsqlookupd. Raises ValueError for an invalid address."""
        options = self._options
        terms = Terms(
            connect_timeout=options.http_client_connect_timeout / SECOND,
            request_timeout=options.http_client_request_timeout / SECOND,
            user_agent=common.user_agent(NAME),
        )
        addresses = options.lookupd_http_address
        return {each: LookupdClient.from_url(each, terms=terms) for each in addresses}

    def _known_topics(self) -> list[str]:
        """Return the topics from all nsqlookupds that answer. Runs in a thread."""

        def ask(address: str) -> list[str]:
            topics = self._lookupds[address].topics().get("topics")
            found = topics if isinstance(topics, list) else []
            return [each for each in found if isinstance(each, str)]

        limit = self._options.http_client_request_timeout / SECOND
        outcome = ask_all(list(self._lookupds), ask, limit)
        for address, error in outcome.errors.items():
            self._log.error(f"could not retrieve topic list: {address}: {error}")
        return sorted({name for found in outcome.values.values() for name in found})

    def _add(self, name: str) -> None:
        """Start a topic. Raises NsqError or ValueError if the topic is invalid."""
        if not is_valid_name(name):
            raise ValueError("invalid topic name")
        options = self._options
        consumer = Consumer(
            name,
            options.channel,
            options.nsqd_tcp_address,
            options.lookupd_http_address,
            name=f"{name}/{options.channel}",
            **self._keywords,
        )
        self._client_lines.introduce(consumer.core.name)
        topic = Topic(consumer, self._files(name), options, self._log, self._progress)
        self._topics[name] = topic
        topic.start(self._ended)

    def _files(self, topic: str) -> TopicFiles:
        """Return a topic's files. Raises FormatError."""
        options = self._options
        rules = Rules(
            output_dir=options.output_dir,
            work_dir=options.work_dir,
            codec=options.codec(),
            rotate_size=options.rotate_size,
            rotate_interval=options.rotate_interval,
            skip_empty=options.skip_empty_files,
            buffer=options.max_in_flight,
        )
        file_names = FileNames(
            options.filename_format,
            options.datetime_format,
            topic=topic,
            host=self._host,
            revisions=rules.revisions,
            suffix=rules.codec.suffix,
        )
        label = f"[{topic}/{options.channel}]"
        return TopicFiles(label, file_names, rules, Disk(), self._log)


def _compiled(pattern: str) -> Any:
    if not pattern:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ToolError(f"--topic-pattern is invalid: {text}") from None


# --- one topic ----------------------------------------------------------------------------------


class Topic:
    """Writes one topic's messages, and finishes those that are synced."""

    def __init__(
        self,
        consumer: Consumer,
        files: TopicFiles,
        options: ToFileOptions,
        lines: logger.Log,
        progress: Progress,
    ) -> None:
        self._consumer = consumer
        self._files = files
        self._label = f"[{consumer.core.name}]"
        self._maximum = options.max_in_flight
        self._interval = options.sync_interval / SECOND
        self._log = lines
        self._progress = progress
        self._waiting: deque[Message] = deque()  # written, not yet synced
        self._finished = 0
        self._hung_up = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, ended: Callable[[asyncio.Task[None]], object]) -> None:
        """Start the topic's task; `ended` is called when it ends."""
        self._loop = asyncio.get_running_loop()
        self._threads = Threads()  # a separate thread, so that a slow disk delays only this topic
        self._woken = self._loop.create_future()
        task = self._loop.create_task(self._run())
        task.add_done_callback(ended)
        self._tasks.append(task)

    def hang_up(self) -> None:
        """Close the file and open a new one."""
        self._hung_up = True
        if not self._woken.done():
            self._woken.set_result(None)

    async def close(self, *, graceful: bool) -> None:
        """Stop accepting messages. graceful: sync and finish those already accepted."""
        closing = asyncio.ensure_future(self._consumer.close(graceful=graceful))
        await asyncio.gather(closing, *self._tasks)

    async def _run(self) -> None:
        try:
            await self._threads.call(self._files.start)
            await self._consumer.start()
            await self._write_all()
        except (OSError, FileInUse) as error:
            self._log.fatal(f"{self._label} {_reason(error)}")
            raise

    async def _write_all(self) -> None:
        batches = self._consumer.batches(self._maximum)
        coming: asyncio.Future[list[Message] | None] | None = None
        tick_at = self._loop.time() + self._interval
        ended = False
        while not ended:
            coming = coming or asyncio.ensure_future(anext(batches, None))
            await asyncio.wait(
                (coming, self._woken),
                timeout=max(0.0, tick_at - self._loop.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            messages: list[Message] = []
            if coming.done():
                messages = coming.result() or []
                ended = not messages
                coming = None
            hung_up, self._hung_up = self._hung_up, False
            if self._woken.done():
                self._woken = self._loop.create_future()
            tick = self._loop.time() >= tick_at
            if tick:
                tick_at = self._loop.time() + self._interval
            await self._write(messages, tick=tick, close=hung_up or ended)

    async def _write(self, messages: list[Message], *, tick: bool, close: bool) -> None:
        bodies = [message.body for message in messages]
        self._waiting += messages
        starved = self._consumer.is_starved
        now = Moment(time.time(), time.monotonic_ns())
        await self._threads.call(self._work, bodies, now, starved, tick, close)
        self._finish()
        self._progress.add(sum(map(len, bodies)) + len(bodies), len(bodies))

    def _work(
        self, bodies: list[bytes], now: Moment, starved: bool, tick: bool, close: bool
    ) -> None:
        """Do the blocking file work. Runs in the topic's thread."""
        files = self._files
        files.write(bodies, now)
        if tick:
            files.tick(now)
        if close:
            files.finish()
        elif starved:
            files.sync()

    def _finish(self) -> None:
        """Finish the synced messages, with one write per nsqd."""
        safe = [self._waiting.popleft() for _ in range(self._files.synced - self._finished)]
        self._finished += len(safe)
        finish(safe)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"ERROR:{where} {error.strerror}"
    return f"ERROR: {error}"


# --- lines on stderr ----------------------------------------------------------------------------


class Log(logger.Log):
    """Log that keeps its lines apart from the progress bar."""

    __slots__ = ("_progress",)

    def __init__(self, prefix: str, level: int, progress: Progress) -> None:
        super().__init__(prefix, level)
        self._progress = progress

    def _write(self, level: int, text: str, fields: dict[str, object]) -> None:
        with self._progress.aside():
            super()._write(level, text, fields)


class Lines(ClientLines):
    """Client log lines, kept apart from the progress bar."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        with self._progress.aside():
            super().emit(record)


if __name__ == "__main__":
    sys.exit(main())
