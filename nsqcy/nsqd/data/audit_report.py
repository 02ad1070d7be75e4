"""What was found in a topic, as lines for people."""

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
    """A heading, then files, channels and what a start does, each on a line that is indented."""
    yield (
        f"{found.topic}: {found.records} records, {_seqs(found.first_seq, found.next_seq - 1)},"
        f" {found.bytes} bytes in {len(found.segments)} segments"
    )
    for segment in found.segments:
        yield from _segment(segment)
    yield f"  journal: {_journal(found.journal)}"
    for damage in found.journal.damages if found.journal else ():
        yield f"    {_damage(damage)}"
    for name in found.leftovers:
        yield f"  {name}: was never finished; a start writes over it"
    for name in found.unknown:
        yield f"  {name}: not nsqd's, and left alone"
    if found.gaps:
        yield f"  in no file: {_gaps(found)}"
    if found.depth:
        lost = f"; of these lost: {found.lost}" if found.lost else ""
        yield f"  for no channel yet: {found.depth} messages{lost}"
    for channel in found.channels:
        yield f"  channel {channel.channel}: {_channel(channel)}"
    yield from _start(found)


def _segment(segment: SegmentFound) -> Iterator[str]:
    seqs = "nothing that counts"
    if segment.first_seq is not None and segment.last_seq is not None:
        seqs = f"{segment.records} records, {_seqs(segment.first_seq, segment.last_seq)}"
    footer = "" if segment.footer else ", no footer: a start reads it through"
    yield f"  {segment.file}: {segment.bytes} bytes, {seqs}{footer}"
    for damage in segment.damages:
        yield f"    {_damage(damage)}"
    for text in segment.disagreements:
        yield f"    {text}"
    for first, last in segment.superseded:
        yield f"    {_seqs(first, last)}: a newer segment has them, or some of them, too"


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
        return "there is none"
    entries = "1 entry" if found.used == 1 else f"{found.used} entries"
    if found.used != found.entries:
        entries = f"{found.used} of {found.entries} entries that are understood"
    end = "of a clean exit" if found.clean else "not of a clean exit"
    return f"{found.bytes} bytes, {entries}, {end}"


def _channel(found: ChannelFound) -> str:
    parts = [f"depth {found.depth}, deferred {found.deferred}"]
    if found.again:
        parts.append(f"of these delivered before: {found.again}")
    if found.lost:
        parts.append(f"of these lost: {found.lost}")
    if found.missing:
        parts.append(f"beside these in no file: {found.missing}")
    if found.beyond:
        parts.append(f"the journal is {found.beyond} records ahead of the files")
    return "; ".join(parts)


def _gaps(found: TopicFound) -> str:
    told = [_range(each) for each in found.gaps[:GAPS_TOLD]]
    more = len(found.gaps) - len(told) + found.gaps_more
    return "seqs " + ", ".join(told) + (f" and {more} more stretches" if more else "")


def _start(found: TopicFound) -> Iterator[str]:
    unlinked = [each.file for each in found.segments if each.unlinked]
    for name in unlinked:
        yield f"  a start removes {name}: nobody needs what is in it"
    if found.segments and found.log_id is None:
        yield "  a start gives the log a new log_id: something may be lost"
    if found.segments and found.journal is None:
        yield "  a start delivers everything to every channel: no journal says what is finished"
    elif found.journal is not None and not found.journal_is_last:
        yield "  a start delivers again what was finished after the journal was written"


def _range(each: Range) -> str:
    first, last = each
    return f"{first}" if first == last else f"{first} to {last}"


def _seqs(first: int, last: int) -> str:
    if last < first:
        return "no seqs"
    return f"seq {first}" if first == last else f"seqs {first} to {last}"
