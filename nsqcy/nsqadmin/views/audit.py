"""Page of the latest actions.

Pure: maps entries to template values.
"""

from collections.abc import Sequence

from nsqcy.nsqadmin.audit import DONE, MAX_ENTRIES, Entry
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.tables import Columns, table, unsorted

_TITLES = ("Time", "User", "Address", "Action", "Topic", "Channel", "Key", "Node", "Result")
_COLUMNS: Columns[Entry] = [(title, unsorted) for title in _TITLES]


def page(entries: Sequence[Entry]) -> View:
    values = {"entries": table("Actions", _COLUMNS, entries), "maximum": MAX_ENTRIES, "done": DONE}
    return View("audit.html", values)
