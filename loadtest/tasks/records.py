"""What each task writes when it runs: its number, and a time in seconds."""

import struct

RECORD = struct.Struct("<Id")
