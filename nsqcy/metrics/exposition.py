"""Text exposition of metrics, in the format that a client accepts, written by prometheus_client.

Independent of particular metrics: it handles families from the table. Importing this module is slow
and takes megabytes of memory.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, generate_latest, gzip_accepted
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from nsqcy.metrics.families import Family

MAX_ACCEPT = 1000  # maximum characters of a header to read
_END = b"# EOF\n"

# Different escapings of unusual names. nsqcy's names are the same in each escaping.
_ESCAPING = re.compile("(escaping=)(dots|values)")


class Form(NamedTuple):
    """Format that a client accepts."""

    content_type: str
    gzip: bool

    @property
    def is_openmetrics(self) -> bool:
        return self.content_type.startswith("application/openmetrics-text")


def choose(accept: str, accept_encoding: str) -> Form:
    """Return the format for these two headers: OpenMetrics if the client requests it, otherwise the
    text format."""
    _, content_type = choose_encoder(accept[:MAX_ACCEPT])
    content_type = _ESCAPING.sub(rf"\1{UNDERSCORES}", content_type)
    return Form(content_type, gzip_accepted(accept_encoding[:MAX_ACCEPT]))


def write(form: Form, metrics: Iterable[Metric]) -> bytes:
    """Return metrics in that format, uncompressed, including the end marker."""
    return _generate(form.is_openmetrics, Collected(metrics))


def _generate(openmetrics: bool, collected: Collector) -> bytes:
    # No name needs escaping; this value skips it.
    generate = generate_openmetrics if openmetrics else generate_latest
    return generate(collected, escaping=ALLOWUTF8)


class Collected(Collector):
    """Metrics that have already been collected."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def metric(family: Family, samples: Iterable[tuple[Sequence[str], float]] = ()) -> Metric:
    """Return a family with these samples. Each sample consists of label values and a number."""
    found = Metric(family.name, family.help, family.kind)
    for values, number in samples:
        labels = dict(zip(family.labels, values, strict=True))
        found.add_sample(family.sample, labels, number)
    return found


def histogram(
    family: Family,
    bounds: Sequence[float],
    samples: Iterable[tuple[Sequence[str], Sequence[float], float]],
) -> Metric:
    """Return a histogram from the counts between the bounds and the sum of all values."""
    found = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    ends = [*map(repr, bounds), "+Inf"]
    for values, counts, total in samples:
        buckets = list(zip(ends, accumulate(counts), strict=True))
        found.add_metric(values, buckets, total)
    return found


def heading(family: Family, openmetrics: bool) -> bytes:
    """Return the lines before a family's samples."""
    return _generate(openmetrics, Collected([metric(family)])).removesuffix(_END)


def lines(found: Metric) -> bytes:
    """Return a family's sample lines, without the lines before them; they are the same in both
    formats."""
    text = _generate(False, Collected([found]))
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
