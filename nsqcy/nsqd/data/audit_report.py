"""Formats a topic's audit as text lines."""

from collections.abc import Iterator

from nsqcy.nsqd.data.audit import (
    ChannelFound,
    Damage,
    JournalFound,
    Range,
    SegmentFound,
    TopicFound,
)

GAPS_TOLD = 10


def lines(found: TopicFound) -> Iterator[str]:
    """Yield a heading, then indented lines for files, channels and the effects of starting nsqd."""
    yield (
        f"{found.topic}: {found.records} records, {_seqs(found.first_seq, found.next_seq - 1)},"
        f" {found.bytes} bytes; segments: {len(found.segments)}"
    )
    for segment in found.segments:
        yield from _segment(segment)
    yield f"  journal: {_journal(found.journal)}"
    for damage in found.journal.damages if found.journal else ():
        yield f"    {_damage(damage)}"
    for name in found.leftovers:
        yield f"  {name}: incomplete; nsqd overwrites it"
    for name in found.unknown:
        yield f"  {name}: not an nsqd file; ignored"
    if found.gaps:
        yield f"  not on disk: {_gaps(found)}"
    if found.depth:
        lost = f", {found.lost} of them lost" if found.lost else ""
        yield f"  not yet copied to channels: {found.depth} messages{lost}"
    for channel in found.channels:
        yield f"  channel {channel.channel}: {_channel(channel)}"
    yield from _start(found)


def _segment(segment: SegmentFound) -> Iterator[str]:
    seqs = "no usable records"
    if segment.first_seq is not None and segment.last_seq is not None:
        seqs = f"{segment.records} records, {_seqs(segment.first_seq, segment.last_seq)}"
    footer = "" if segment.footer else ", no footer: nsqd scans it at startup"
    yield f"  {segment.file}: {segment.bytes} bytes, {seqs}{footer}"
    for damage in segment.damages:
        yield f"    {_damage(damage)}"
    for text in segment.disagreements:
        yield f"    {text}"
    for first, last in segment.superseded:
        yield f"    {_seqs(first, last)}: at least partly duplicated in a newer segment"


def _damage(damage: Damage) -> str:
    text = f"at {damage.offset}: {damage.text}"
    if damage.first_seq is None and damage.last_seq is None:
        return text
    if damage.last_seq is None:
        return f"{text}, from seq {damage.first_seq} on"
    if damage.first_seq is None:
        return f"{text}, up to seq {damage.last_seq}"
    return f"{text}, {_seqs(damage.first_seq, damage.last_seq)}"


def _journal(found: JournalFound | None) -> str:
    if found is None:
        return "none"
    entries = "1 entry" if found.used == 1 else f"{found.used} entries"
    if found.used != found.entries:
        entries = f"{found.used} of {found.entries} entries valid"
    end = "written by a clean exit" if found.clean else "not written by a clean exit"
    return f"{found.bytes} bytes, {entries}, {end}"


def _channel(found: ChannelFound) -> str:
    parts = [f"depth {found.depth}, deferred {found.deferred}"]
    if found.again:
        parts.append(f"{found.again} of them already delivered")
    if found.lost:
        parts.append(f"{found.lost} of them lost")
    if found.missing:
        parts.append(f"{found.missing} more are not on disk")
    if found.beyond:
        parts.append(f"the journal is {found.beyond} records ahead of the files")
    return "; ".join(parts)


def _gaps(found: TopicFound) -> str:
    told = [_range(each) for each in found.gaps[:GAPS_TOLD]]
    more = len(found.gaps) - len(told) + found.gaps_more
    return "seqs " + ", ".join(told) + (f" and {more} more ranges" if more else "")


def _start(found: TopicFound) -> Iterator[str]:
    unlinked = [each.file for each in found.segments if each.unlinked]
    for name in unlinked:
        yield f"  nsqd will delete {name} at startup: no channel needs it"
    if found.segments and found.log_id is None:
        yield "  nsqd will assign a new log_id at startup: messages may be lost"
    if found.segments and found.journal is None:
        yield "  nsqd will deliver all messages to every channel: the journal is missing"
    elif found.journal is not None and not found.journal_is_last:
        yield "  nsqd will redeliver messages that were finished after the last journal write"


def _range(each: Range) -> str:
    first, last = each
    return f"{first}" if first == last else f"{first} to {last}"


def _seqs(first: int, last: int) -> str:
    if last < first:
        return "no seqs"
    return f"seq {first}" if first == last else f"seqs {first} to {last}"
