"""The files nsq_to_file writes: their names, what is in them, when they change, and their life.

Owns one topic's files from the first open to the move into the output folder, and what a crash
leaves of them. Knows no NSQ: messages are bytes that come in and a count of those that are safe.

**Complete files.** A message is finished (acknowledged) only after the file that holds it was
synced, so whatever a crash takes from a file comes again. What a crash may *leave* is a part of
something that was never acknowledged: half a line, half a gzip member. It is cut off before
anything else is written to that file, and before it goes to the output folder:

- While a file is being written it carries a **note**, an extended attribute: how long it was at the
  last but one sync, how long at the last, and the CRC of what is between. The note is written
  before the sync, which makes both durable at once; so it costs no sync of its own. After a crash,
  if what the note speaks of is there, the file is good up to its second length, and up to its first
  otherwise, as that sync has never returned. This holds for `kill -9`, a full disk and a power
  loss, and whatever bytes messages have.
- A file without a note, because another program left it in the work folder or the file system has
  no extended attributes, is judged by its content: lines are good up to the last line feed, gzip
  and zstd files up to the end of the last member that can be decompressed.
- A file being written is locked (`flock`), so nobody repairs, appends to or moves a file that
  another living process writes. The lock ends with the process.

A start repairs the files of its topic that have no owner any more, and moves those in a work folder
of its own to the output folder. Files get there by a hard link, whole and never over another.

names     file names and the patterns that recognise them
codecs    plain, gzip and zstd: members, and the sound length of what a crash left
disk      every file call, and so the place where tests let them fail
notes     the note
file      one open file
writer    one topic: rotation, opening, syncing, closing and moving, repair
"""
