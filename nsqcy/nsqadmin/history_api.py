"""The past as JSON: `/api/history`."""

from typing import Any

from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.errors import HttpError
from nsqcy.http.router import Request, Route
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.history_rings import METRICS
from nsqcy.nsqadmin.plots import FRAME, FRAMES
from nsqcy.nsqadmin.surroundings import Surroundings, readable

Json = dict[str, Any]


def history(api: Surroundings, request: Request) -> Json:
    plots, params = api.plots(request), request.params
    kept = plots.history
    if kept is None:
        raise HttpError(404, "HISTORY_OFF")
    subject = Subject(*(readable(params.get(name, "")) for name in ("node", "topic", "channel")))
    if subject == Subject():
        return {
            "interval": kept.step,
            "length": kept.length,
            "series": kept.series,
            "series_most": kept.most,
            "bytes": kept.series * kept.bytes_each,
        }
    if bool(subject.node) == bool(subject.topic) or (subject.channel and not subject.topic):
        raise HttpError(400, "INVALID_ARG_SUBJECT")
    window = kept.read(subject, plots.now, _seconds(params.get("range"), kept.length))
    if window is None:
        raise HttpError(404, "HISTORY_NOT_FOUND")
    return {
        "start": round(window.start + plots.since_epoch, 3),
        "step": window.step,
        "metrics": {name: [*map(_number, window.columns[name])] for name in METRICS},
    }


def _seconds(text: str | None, most: float) -> float:
    if text is None:
        return min(FRAMES[FRAME], most)
    try:
        seconds = parse_duration(text) / SECOND
    except ValueError:
        raise HttpError(400, "INVALID_ARG_RANGE") from None
    if not 0 < seconds <= most:
        raise HttpError(400, "INVALID_ARG_RANGE")
    return seconds


def _number(value: float) -> float | None:
    """Of single precision no more digits are true."""
    return None if value != value else float(f"{value:.7g}")


ROUTES = (Route("GET", "/api/history", history),)
