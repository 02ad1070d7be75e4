"""Lines of numbers as paths of SVG, and the scales that they are drawn by.

Pure. What is not known is a gap. A drawing stretches to the box it is shown in: its lines are of
the same width whatever that is, and texts stand beside it, as those would stretch as well.
"""

from collections.abc import Iterable, Sequence

_STEPS = (1.0, 2.0, 5.0, 10.0)


def top_of(values: Iterable[float], least: float) -> float:
    """Where the scale of these numbers ends: a round number that none of them is above."""
    most = max((each for each in values if each == each), default=0.0)
    if most <= least:
        return least
    unit = 1.0
    while unit * 10 < most:
        unit *= 10
    while unit > most:
        unit /= 10
    return next(unit * step for step in _STEPS if unit * step >= most * 0.999999)


def path(values: Sequence[float], top: float, width: int, height: int) -> str:
    """The d of a path from left to right, 0 at the bottom. A number between two gaps is a dot."""
    pieces: list[str] = []
    scale = height / top
    stride = width / max(1, len(values) - 1)
    is_open = False
    for place, value in enumerate(values):
        if value != value:
            is_open = False
            continue
        x, y = round(place * stride), height - round(min(value, top) * scale)
        if is_open:
            pieces.append(f"L{x} {y}")
        else:
            pieces.append(f"M{x} {y}h0")  # a line of no length has its round ends
            is_open = True
    return "".join(pieces)
