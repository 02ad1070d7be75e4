"""Record of a task that ran: its number, and a time in seconds."""

import struct

RECORD = struct.Struct("<Id")
