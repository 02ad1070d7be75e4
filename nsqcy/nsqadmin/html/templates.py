"""nsqadmin's Jinja2 environment.

Loads, escapes and compiles templates, and provides filters for numbers and times. Text is escaped
by default, an undefined name is an error, and all templates are compiled before the first request.
"""

from functools import cache
from importlib import resources

from jinja2 import DictLoader, Environment, StrictUndefined, select_autoescape

from nsqcy.nsqadmin.html import formatting, message_bodies, tables

_FOLDER = resources.files("nsqcy.nsqadmin") / "templates"


@cache
def environment() -> Environment:
    """Return the environment with every template compiled."""
    sources = {each.name: each.read_text("utf-8") for each in _FOLDER.iterdir() if each.is_file()}
    found = Environment(
        loader=DictLoader(sources),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=-1,
        auto_reload=False,
    )
    found.filters |= {
        "client_name": formatting.client_name,
        "duration": formatting.duration,
        "labelled": tables.labelled,
        "moment": formatting.moment,
        "number": formatting.number,
        "plural": formatting.plural,
        "rate": formatting.rate,
        "share": formatting.share,
        "size": formatting.size,
        "span": formatting.span,
        "visible": message_bodies.visible,
    }
    for name in sources:
        found.get_template(name)
    return found


def render(name: str, /, **values: object) -> bytes:
    """Return a page. Raises jinja2.UndefinedError if a value that the template needs is missing."""
    # Names that are not valid UTF-8 contain surrogates.
    return environment().get_template(name).render(values).encode("utf-8", "replace")
