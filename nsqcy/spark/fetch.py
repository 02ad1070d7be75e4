"""The executor side of reading: the rows of one range, from the nsqd that has them."""

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from nsqcy.spark.column_blocks import Block, Decoder, wanted
from nsqcy.spark.errors import (
    CorruptBlock,
    DataLoss,
    LogGone,
    LogRange,
    LogUnknown,
    NoTopic,
    Refused,
    Unreachable,
)
from nsqcy.spark.log_client import Connection
from nsqcy.spark.offsets import Range
from nsqcy.spark.options import Options

LOG = logging.getLogger("nsqcy.spark")


def read_range(
    options: Options, schema: pa.Schema, part: Range, address: str
) -> Iterator[pa.RecordBatch]:
    """Yield every row in the range, once and in order, or raise an error."""
    fetcher = Fetcher(options, schema, part, address)
    try:
        yield from fetcher.batches()
    finally:
        fetcher.close()


class Fetcher:
    """Reads blocks one after another; requests the next block before returning the previous one."""

    def __init__(self, options: Options, schema: pa.Schema, part: Range, address: str) -> None:
        self._options = options
        self._part = part
        self._address = address
        self._columns = wanted(schema.names)
        self._decoder = Decoder(schema, part.topic, address, part.log_id)
        self._connection: Connection | None = None
        self._asked: int | None = None  # the seq at which the next response begins

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._asked = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        seq = self._part.start
        while seq < self._part.end:
            try:
                block = self._block(seq)
            except LogGone as gone:
                text = f"it was removed by retention; the first available seq is {gone.first_seq}"
                seq = self._lost(seq, gone.first_seq, text)
                continue
            except LogRange as short:
                text = f"the log ends before seq {short.next_seq}"
                seq = self._lost(seq, self._part.end, text)
                continue
            except (LogUnknown, NoTopic) as unknown:
                seq = self._lost(seq, self._part.end, str(unknown.args[0]))
                continue
            seq = block.end
            if seq < self._part.end:
                self._ask_ahead(seq)
            yield self._rows(block)

    def _block(self, seq: int) -> Block:
        """Return the block that begins at this seq. Retries after errors that may be temporary."""
        failures = 0
        corrupt = False
        while True:
            try:
                self._ask(seq)
                assert self._connection is not None
                block = self._decoder.parse(self._connection.answer())
                if block.base_seq != seq or block.end > self._part.end:
                    raise CorruptBlock("the block contains records other than those requested")
                self._asked = None
                return block
            except LogGone as gone:
                self._asked = None
                if gone.first_seq <= seq:
                    raise Refused(f"{gone.args[0]}, but does not send seq {seq}") from None
                raise
            except Unreachable as error:
                self.close()
                failures += 1
                if failures > self._options.retries:
                    raise Unreachable(
                        f"{error.args[0]}; reading {self._part}, at seq {seq}"
                    ) from None
                time.sleep(self._options.retry_interval)
            except CorruptBlock as error:
                self.close()
                if corrupt:
                    raise CorruptBlock(
                        f"nsqd {self._address} sent a corrupt block twice (reading {self._part}, "
                        f"at seq {seq}): {error.args[0]}"
                    ) from None
                corrupt = True
            except (LogRange, LogUnknown, NoTopic):
                self._asked = None
                raise

    def _ask(self, seq: int) -> None:
        if self._connection is not None and self._asked == seq:
            return
        if self._connection is None:
            self._connection = Connection(self._address, self._options.access)
        part = self._part
        maximum = self._options.fetch_bytes
        self._connection.ask_block(part.topic, part.log_id, seq, part.end, maximum, self._columns)
        self._asked = seq

    def _ask_ahead(self, seq: int) -> None:
        try:
            self._ask(seq)
        except Unreachable:
            self.close()  # the block is requested again when it is needed

    def _rows(self, block: Block) -> pa.RecordBatch:
        rows = self._decoder.rows(block)
        if not block.damaged:
            return rows
        intact = self._decoder.intact(block)
        bad = block.base_seq + intact.index(False).as_py()
        count = block.count - intact.true_count
        self._lose(f"{count} records from seq {bad} are damaged on its disk")
        return rows.filter(intact)

    def _lost(self, seq: int, until: int, why: str) -> int:
        """Handle lost rows before `until`: continue there if that is allowed."""
        self._lose(f"seq {seq} cannot be read: {why}")
        return until

    def _lose(self, why: str) -> None:
        text = f"rows are lost: {self._part} on nsqd {self._address}: {why}"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; set failOnDataLoss=false to continue without them")
        LOG.warning("nsq: %s", text)
