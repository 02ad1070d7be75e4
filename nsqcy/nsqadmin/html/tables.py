"""Tables of statistics: sorting, and the columns that several pages have.

Pure.
"""

from collections.abc import Iterable, Sequence

from nsqcy.cluster.latency import Latency
from nsqcy.cluster.stats import AnyFigures, ChannelFigures, ClientStats
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html import formatting
from nsqcy.nsqadmin.html.elements import Cell, Child, Markup, Row, join, tag
from nsqcy.nsqadmin.html.location import Location, Value, slug


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    total: Row = (),
    location: Location | None = None,
) -> Markup:
    """The first column names the row; all others are figures, right-aligned. With a location the
    rows are sorted as it says, and each heading sorts by its column."""
    rows = list(rows)
    headings = [tag("th", each, scope="col") for each in columns]
    if location is not None and rows:
        are_texts = [isinstance(_value(each), str) for each in rows[0]]
        headings = [
            heading(location, each, is_text=is_text)
            for each, is_text in zip(columns, are_texts, strict=True)
        ]
        place = next(
            (n for n, each in enumerate(columns) if slug(each) == location.sorted_by), None
        )
        if place is not None:
            rows = location.arranged(rows, lambda row: _value(row[place]))
    return grid(caption, headings, [line(row) for row in rows], line(total) if total else None)


def grid(
    caption: str, headings: Sequence[Markup], lines: Sequence[Markup], foot: Markup | None = None
) -> Markup:
    """A table of what is drawn already, in a box of its own that scrolls if it is too wide."""
    body = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", headings)),
        tag("tbody", lines),
        tag("tfoot", foot) if foot else None,
    )
    return tag("div", body, class_="table", tabindex=0, role="region", aria_label=caption)


def line(row: Row) -> Markup:
    """The text of the first cell is the name of the row, by which a script knows it again."""
    first, *others = row
    name = _value(first)
    cells = [tag("td", _shown(each)) for each in others]
    key = name if isinstance(name, str) and name else None
    return tag("tr", tag("th", _shown(first), scope="row"), cells, data_key=key)


def heading(location: Location, title: str, *, is_text: bool = False) -> Markup:
    """A column's heading: its link sorts by the column, or reverses the order."""
    name = slug(title)
    if name != location.sorted_by:
        return tag("th", tag("a", title, href=location.link(sort=name)), scope="col")
    other = name if location.is_reversed else f"-{name}"
    return tag(
        "th",
        tag("a", title, href=location.link(sort=other), aria_current="true"),
        scope="col",
        aria_sort="ascending" if is_text != location.is_reversed else "descending",
    )


def _shown(cell: Child | Cell) -> Child:
    return cell.shown if isinstance(cell, Cell) else cell


def _value(cell: Child | Cell) -> Value:
    if isinstance(cell, Cell):
        return cell.value
    return cell if isinstance(cell, str | int) and not isinstance(cell, Markup) else ""


def count(value: int) -> Cell:
    return Cell(formatting.number(value), value)


def paused(stats: AnyFigures) -> Markup:
    return tag("span", "paused", class_="label old") if stats.paused else join()


def depths(stats: AnyFigures) -> list[Child | Cell]:
    """Depth, and where it is."""
    parts = f"{formatting.number(stats.memory_depth)} + {formatting.number(stats.backend_depth)}"
    return [count(stats.depth), Cell(parts, stats.backend_depth)]


DEPTHS = ("Depth", "Memory + Disk")
CHANNEL = (*DEPTHS, "In-Flight", "Deferred", "Requeued", "Timed Out", "Messages", "Connections")


def channel_cells(stats: ChannelFigures) -> list[Child | Cell]:
    counts = (
        stats.in_flight_count,
        stats.deferred_count,
        stats.requeue_count,
        stats.timeout_count,
        stats.message_count,
        stats.client_count,
    )
    return [*depths(stats), *map(count, counts)]


class Times:
    """Columns of latencies: a column for each quantile that any of them has."""

    def __init__(self, latencies: Iterable[Latency | None]) -> None:
        self._quantiles = list(
            dict.fromkeys(
                each.quantile
                for latency in latencies
                for each in (latency and latency.percentiles) or ()
            )
        )

    @property
    def columns(self) -> list[str]:
        return [formatting.percent(each) for each in self._quantiles]

    def cells(self, latency: Latency | None) -> list[Child | Cell]:
        known = {each.quantile: each for each in (latency and latency.percentiles) or ()}
        cells: list[Child | Cell] = []
        for quantile in self._quantiles:
            each = known.get(quantile)
            if each is None:
                cells.append("")
                continue
            span = f"{formatting.duration(each.min)} to {formatting.duration(each.max)}"
            shown = tag("span", formatting.duration(each.average), title=span)
            cells.append(Cell(shown, each.average))
        return cells


def page_links(location: Location, page: int, count: int) -> list[Markup]:
    """Links to the other pages of a list of several."""
    links: list[Child] = []
    if page > 1:
        links.append(tag("a", "‹ Previous", href=location.link(page=str(page - 1)), rel="prev"))
    links.append(tag("span", f"Page {page} of {count}"))
    if page < count:
        links.append(tag("a", "Next ›", href=location.link(page=str(page + 1)), rel="next"))
    return [tag("nav", links, class_="pages", aria_label="Pages of the list")] if count > 1 else []


# Clients of a channel


def connected(client: ClientStats, clients: Clients) -> Cell:
    since = clients.connected(client)
    return Cell(formatting.duration(since), since)


def client_name(client: ClientStats) -> Cell:
    port = client.remote_address.rpartition(":")[2]
    name = f"{client.hostname}:{port}"
    host = client.hostname.lower()
    if client.client_id.lower() not in ("", host, host.partition(".")[0]):
        name += f" ({client.client_id})"
    return Cell(tag("span", name, title=client.remote_address), name)


def client_counts(client: ClientStats) -> list[Cell]:
    counts = (
        client.in_flight_count,
        client.ready_count,
        client.finish_count,
        client.requeue_count,
        client.message_count,
    )
    return [*map(count, counts)]


def attributes(client: ClientStats) -> Markup:
    """What is special about a connection."""
    labels: list[Markup] = []
    if client.sample_rate:
        labels.append(_label(f"Sampled {client.sample_rate}%"))
    if client.tls:
        labels.append(_label("TLS", f"{client.tls_version} {client.tls_cipher_suite}"))
    if client.deflate:
        labels.append(_label("Deflate"))
    if client.snappy:
        labels.append(_label("Snappy"))
    if client.authed:
        labels.append(_identity(client))
    return join(labels)


def _identity(client: ClientStats) -> Markup:
    label = _label("Authed", client.auth_identity)
    if client.auth_identity_url.startswith(("http://", "https://")):
        return tag("a", label, href=client.auth_identity_url)
    return label


def nearness(client: ClientStats, clients: Clients) -> Markup:
    """Where a client is, and whether its node is there too."""
    region, zone = clients.topology(client.node)
    labels = [_label(each) for each in (client.topology_region, client.topology_zone) if each]
    if zone and zone == client.topology_zone:
        labels.append(_label("zoneLocal"))
    elif region and region == client.topology_region:
        labels.append(_label("regionLocal"))
    return join(labels)


def _label(text: str, title: str = "") -> Markup:
    return tag("span", text, class_="label", title=title or None)
