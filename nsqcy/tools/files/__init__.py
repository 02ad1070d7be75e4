"""Files of nsq_to_file: names, formats, rotation and repair.

Owns one topic's files from the first open to the move into the output directory, and their repair
after a crash. Independent of NSQ: messages are bytes, and the result is a count of synced messages.

**Complete files.** A message is finished (acknowledged) only after its file has been synced.
Messages that a crash removes from a file are therefore redelivered. A crash may also *leave* a
partial write that was never acknowledged: half a line, half a gzip member. It is truncated before
the file is appended to or moved to the output directory:

- A file being written has a **note**, an extended attribute with its length at the sync before the
  last, its length at the last sync, and the CRC of the bytes between. The note is written before
  the sync, which makes both durable, so it costs no extra sync. After a crash, if the bytes match
  the note, the file is valid up to the second length; otherwise that sync never returned, and the
  file is valid up to the first length. This holds for `kill -9`, a full disk and a power loss, for
  any message content.
- A file may lack a note because another program left it in the work directory, or because the file
  system has no extended attributes. Its content then decides: lines are valid up to the last line
  feed, gzip and zstd files up to the end of the last member that can be decompressed.
- A file being written is locked (`flock`), so that no other process repairs, appends to or moves
  it. The lock is released when the process exits.

At startup, nsq_to_file repairs its topics' files that no process owns, and moves those in its
separate work directory to the output directory. Files are moved by hard link: complete, and never
replacing another file.

names     file names and the patterns that recognise them
codecs    plain, gzip and zstd: members, and the valid length of a file after a crash
disk      all file operations; tests inject failures here
notes     the note
file      one open file
writer    one topic: rotation, opening, syncing, closing and moving, repair
"""
