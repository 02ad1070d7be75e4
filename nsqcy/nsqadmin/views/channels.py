"""Page of the channels of all topics. Pure: maps fetched data to template values."""

from collections.abc import Mapping
from dataclasses import replace

from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.cluster.summaries import Origins
from nsqcy.nsqadmin.html import attention
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.paging import part
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.html.tables import CHANNEL, Columns, rates, table
from nsqcy.nsqadmin.views.topics import channel_subject, signs_of_channel


def channels(
    topics: Mapping[str, TopicStats],
    origins: Origins,
    omitted: int,
    location: Location,
    plots: Plots,
) -> View:
    """Return the list of channels whose names contain `q`, sorted by name or by `sort`. topics: the
    busiest, summed over the nodes. omitted: number of other topics."""
    found = [each for stats in topics.values() for each in stats.channels.values()]
    found.sort(key=lambda each: (each.topic, each.name))
    signs = {
        _name(each): signs_of_channel(topics[each.topic], each, plots, origins.get(each.topic, ()))
        for each in found
    }
    wanted = location.params.get("q", "").casefold()
    columns: Columns[ChannelStats] = [
        ("Channel", _name),
        (attention.TITLE, lambda row: attention.weight(signs[_name(row)])),
        *rates(plots, channel_subject, "in", "out"),
        *CHANNEL,
    ]
    rows = [each for each in found if wanted in _name(each).casefold()]
    listed = table("Channels", columns, rows, location)
    shown = part(location, listed.rows)
    values = {
        "channels": len(found),
        "omitted": omitted,
        "with_signs": sum(map(bool, signs.values())),
        "is_critical": attention.is_critical(signs.values()),
        "listed": replace(listed, rows=shown.rows, names=[_name(each) for each in shown.rows]),
        "name": _name,
        "signs": signs,
        "page": shown.page,
        "last": shown.last,
        "subject": channel_subject,
        "location": location,
        "plots": plots,
    }
    return View("channels.html", values)


def _name(stats: ChannelStats) -> str:
    return f"{stats.topic}/{stats.name}"
