"""The /metrics page of a single-process daemon: the daemon's own figures, HTTP metrics and process
metrics.

prometheus_client is slow to import and uses megabytes of memory.
"""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import ProcessCollector

from nsqcy import NSQ_VERSION, __version__
from nsqcy.commit import commit
from nsqcy.http.parser import Reply
from nsqcy.http.request_counts import Requests
from nsqcy.metrics.exposition import choose, histogram, metric, write
from nsqcy.metrics.families import REQUEST_BOUNDS, Family, OfHttp

_PROCESS = ProcessCollector(registry=None)

Samples = Iterable[tuple[Sequence[str], float]]


def page(
    accept: str,
    figures: Mapping[Family, Samples],
    http: OfHttp,
    requests: Requests,
    connections: Mapping[str, int],
) -> Reply:
    """Render the page in the accepted format. `figures` are the metrics specific to this daemon."""
    form = choose(accept, "")
    answers = [
        ([method, route, str(status)], count)
        for (method, route, status), count in list(requests.answers.items())
    ]
    times = [(labels, each.counts, each.seconds) for labels, each in list(requests.times.items())]
    metrics = [
        *(metric(family, samples) for family, samples in figures.items()),
        metric(http.answers, answers),
        histogram(http.times, REQUEST_BOUNDS, times),
        metric(http.connections, (([kind], count) for kind, count in connections.items())),
        metric(http.build, [([__version__, NSQ_VERSION, commit()], 1)]),
        *_PROCESS.collect(),
    ]
    return Reply(200, write(form, metrics), form.content_type, nsq=False, logged=False)
