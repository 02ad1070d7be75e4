"""Regular expressions in RE2's syntax, searched for in names of topics and channels.

An auth server's patterns are written for NSQ, whose expressions are RE2's: what `re` takes more is
refused here, what it reads differently is read RE2's way, and no pattern takes more than time
proportional to its size: `re` could stop a worker for hours over one of twenty characters.

A pattern is a tree whose nodes move sets of positions: from where a match of the node may begin to
where it may end. A set is an int, bit i of it the position before character i.
"""

import re
import string
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

SIZE_MOST = 20_000  # steps of one pattern for one position
REPEATS_MOST = 1000  # RE2's own limit
DEPTH_MOST = 100

WORD = string.ascii_letters + string.digits + "_"
NAME = frozenset(WORD + ".-#")  # what names are made of: nothing else is ever searched in

_POSIX = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "ascii": "".join(map(chr, range(128))),
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": " \t\n\r\f\v",
    "upper": string.ascii_uppercase,
    "word": WORD,
    "xdigit": string.hexdigits,
}
_PERL = {"d": string.digits, "w": WORD, "s": " \t\n\r\f"}
_CATEGORY = re.compile("C[cfos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?")
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_REPEAT = re.compile(r"\{(0|[1-9]\d*)(,(0|[1-9]\d*)?)?\}", re.ASCII)
_GROUP_NAME = re.compile(r"P?<(\w+)>", re.ASCII)
_FLAGS = re.compile(r"([imsU]*)(?:-([imsU]+))?([:)])")
_HEX = re.compile(r"\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{2})")
_OCTAL = re.compile("0[0-7]{0,2}|[1-7][0-7]{1,2}")
_POSIX_CLASS = re.compile(r"\[:(\^?)([a-z]+):\]")


class PatternError(ValueError):
    """A pattern that RE2 does not take, or that is too large."""


class Text:
    """A name as bit sets: where each character is, and where words begin and end."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self.everywhere = (2 << self.length) - 1
        self.at: dict[str, int] = {}
        for position, character in enumerate(text):
            self.at[character] = self.at.get(character, 0) | 1 << position
        words = sum(bits for character, bits in self.at.items() if character in WORD)
        self.boundaries = words ^ words << 1
        self.known: dict[tuple[int, int], int] = {}


class Node:
    __slots__ = ("size",)

    size: int  # steps it takes at most, for each position it begins at

    def step(self, starts: int, text: Text) -> int:
        """Where the node may end, having begun at one of `starts`."""
        raise NotImplementedError


class OneOf(Node):
    """One character of a set."""

    __slots__ = ("characters",)

    def __init__(self, characters: frozenset[str]) -> None:
        self.characters = characters & NAME
        self.size = 1

    def step(self, starts: int, text: Text) -> int:
        here = 0
        for character, bits in text.at.items():
            if character in self.characters:
                here |= bits
        return (starts & here) << 1


class Character(Node):
    """That one."""

    __slots__ = ("character",)

    def __init__(self, character: str) -> None:
        self.character = character
        self.size = 1

    def step(self, starts: int, text: Text) -> int:
        return (starts & text.at.get(self.character, 0)) << 1


CHARACTERS = {character: Character(character) for character in NAME}
IMPOSSIBLE = Character("")


class Where(Node):
    """No character, but only at certain positions."""

    __slots__ = ("allowed",)

    def __init__(self, allowed: Callable[[Text], int]) -> None:
        self.allowed = allowed
        self.size = 1

    def step(self, starts: int, text: Text) -> int:
        return starts & self.allowed(text)


class Chain(Node):
    """One node behind the other; none is the empty pattern."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.size = 1 + sum(node.size for node in nodes)

    def step(self, starts: int, text: Text) -> int:
        for node in self.nodes:
            if not starts:
                break
            starts = node.step(starts, text)
        return starts


class Either(Node):
    """Any of them."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.size = 1 + sum(node.size for node in nodes)

    def step(self, starts: int, text: Text) -> int:
        ends = 0
        for node in self.nodes:
            ends |= node.step(starts, text)
        return ends


class Star(Node):
    """Any number of times. Each position is tried once, however deep stars are nested."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node
        self.size = 1 + node.size

    def step(self, starts: int, text: Text) -> int:
        reached = todo = starts
        while todo:
            start = todo & -todo
            todo ^= start
            key = (id(self), start)
            ends = text.known.get(key)
            if ends is None:
                ends = text.known[key] = self.node.step(start, text)
            todo |= ends & ~reached
            reached |= ends
        return reached


class Repeat(Node):
    """At least `least` times, and at most `most`."""

    __slots__ = ("least", "most", "node")

    def __init__(self, node: Node, least: int, most: int) -> None:
        self.node = node
        self.least, self.most = least, most
        self.size = 1 + node.size * max(most, 1)

    def step(self, starts: int, text: Text) -> int:
        for _ in range(self.least):
            starts = self.node.step(starts, text)
        ends = starts
        for _ in range(self.most - self.least):
            starts = self.node.step(starts, text) & ~ends
            if not starts:
                break
            ends |= starts
        return ends


class Pattern(NamedTuple):
    """An expression that was read."""

    tree: Node

    @property
    def size(self) -> int:
        return self.tree.size

    def found_in(self, name: Text) -> bool:
        """Whether it matches anywhere in a name."""
        return self.tree.step(name.everywhere, name) != 0


def compile(pattern: str) -> Pattern:
    """Read a pattern; raises PatternError, whose text does not repeat it."""
    return Pattern(_Parser(pattern).parse())


def _closure(character: str) -> frozenset[str]:
    """A character and those that differ from it in case only."""
    cases = {character, character.lower(), character.upper()}
    return frozenset(cases | {each.swapcase() for each in cases if len(each) == 1})


def _property(name: str) -> frozenset[str]:
    """The characters of names that have a Unicode property."""
    if name == "Any":
        return NAME
    if name == "Latin":
        return frozenset(string.ascii_letters)
    if name == "Common":
        return NAME - frozenset(string.ascii_letters)
    if not _CATEGORY.fullmatch(name):
        raise PatternError("unknown character class")
    return frozenset(each for each in NAME if unicodedata.category(each).startswith(name))


# What a range can hold that matters: names, and what folds to a letter of theirs.
_RELEVANT = NAME.union(*map(_closure, "\u017f\u212a"))


class _Parser:
    """Recursive descent; one method for each level of RE2's grammar."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.fold = False  # whether case matters not
        self.names: set[str] = set()

    def parse(self) -> Node:
        tree = self.alternatives()
        if self.at < len(self.pattern):
            raise PatternError("unexpected )")
        return tree

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.at += len(text) * found
        return found

    def next(self, what: str) -> str:
        if self.at >= len(self.pattern):
            raise PatternError(f"missing {what}")
        self.at += 1
        return self.pattern[self.at - 1]

    def alternatives(self) -> Node:
        nodes = [self.chain()]
        while self.take("|"):
            nodes.append(self.chain())
        return self.bounded(Either(nodes)) if len(nodes) > 1 else nodes[0]

    def bounded(self, node: Node) -> Node:
        if node.size > SIZE_MOST:
            raise PatternError("the expression is too large")
        return node

    def chain(self) -> Node:
        nodes: list[Node] = []
        while self.at < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            if self.take(r"\Q"):
                literal, _, _ = self.pattern[self.at :].partition(r"\E")
                self.at = min(self.at + len(literal) + 2, len(self.pattern))
                nodes += map(self.character, literal)
                if literal:
                    nodes[-1] = self.repeated(nodes[-1])
            elif node := self.atom():
                nodes.append(self.repeated(node))
            elif self.repetition():
                raise PatternError("missing argument to repetition operator")
        return self.bounded(Chain(nodes)) if len(nodes) != 1 else nodes[0]

    def repetition(self) -> tuple[int, int | None] | None:
        """A repetition operator here: (at least, at most), None for no end."""
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(operator):
                return bounds
        found = _REPEAT.match(self.pattern, self.at)
        if found is None:
            return None
        self.at = found.end()
        if max(len(found[1]), len(found[3] or "")) > 4:
            raise PatternError("invalid repeat count")
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if least > REPEATS_MOST or (most is not None and not least <= most <= REPEATS_MOST):
            raise PatternError("invalid repeat count")
        return least, most

    def repeated(self, node: Node) -> Node:
        bounds = self.repetition()
        if bounds is None:
            return node
        self.take("?")  # not greedy: the same names match
        if self.repetition():
            raise PatternError("invalid nested repetition operator")
        least, most = bounds
        if most is not None:
            return self.bounded(Repeat(node, least, most))
        star = Star(node)
        return self.bounded(Chain([Repeat(node, least, least), star]) if least else star)

    def atom(self) -> Node | None:
        """One thing that can be repeated; None where there is none, such as behind flags."""
        if self.repetition_here():
            return None
        character = self.next("character")
        if character == "(":
            return self.group()
        if character == "[":
            return self.bracket()
        if character == ".":
            return OneOf(NAME)
        if character == "^":
            return Where(lambda text: 1)
        if character == "$":
            return Where(lambda text: 1 << text.length)
        if character == "\\":
            return self.escape()
        return self.character(character)

    def repetition_here(self) -> bool:
        at = self.at
        found = self.repetition() is not None
        self.at = at
        return found

    def character(self, character: str) -> Node:
        if self.fold:
            return OneOf(_closure(character))
        return CHARACTERS.get(character, IMPOSSIBLE)

    def group(self) -> Node | None:
        """A group behind its `(`; None if it only sets flags for what follows."""
        outer = self.fold
        if self.take("?"):
            name = _GROUP_NAME.match(self.pattern, self.at)
            flags = _FLAGS.match(self.pattern, self.at)
            if name and name[1] not in self.names:
                self.names.add(name[1])
                self.at = name.end()
            elif flags:
                self.at = flags.end()
                self.fold = (outer or "i" in flags[1]) and "i" not in (flags[2] or "")
                if flags[3] == ")":
                    return None
            else:
                raise PatternError("invalid or unsupported (? syntax")
        self.depth += 1
        if self.depth > DEPTH_MOST:
            raise PatternError("the expression nests too deeply")
        inner = self.alternatives()
        self.depth -= 1
        if not self.take(")"):
            raise PatternError("missing closing )")
        self.fold = outer
        return inner

    def escape(self) -> Node:
        character = self.next("character behind \\")
        if character == "A":
            return Where(lambda text: 1)
        if character == "z":
            return Where(lambda text: 1 << text.length)
        if character == "b":
            return Where(lambda text: text.boundaries)
        if character == "B":
            return Where(lambda text: text.everywhere & ~text.boundaries)
        found = self.character_class(character)
        if found is not None:
            return OneOf(found)
        return self.character(self.escaped(character))

    def character_class(self, character: str) -> frozenset[str] | None:
        """`\\d` and its kind, `\\pL` and `\\p{Greek}`; None if the escape is none of them."""
        if character in "pP":
            name = self.next("property")
            if name == "{":
                name, closed, _ = self.pattern[self.at :].partition("}")
                if not closed:
                    raise PatternError("missing }")
                self.at += len(name) + 1
            negated = (character == "P") != name.startswith("^")
            found = _property(name.removeprefix("^"))
        elif character.lower() in _PERL:
            negated = character.isupper()
            found = frozenset(_PERL[character.lower()])
        else:
            return None
        if self.fold:
            found = frozenset().union(*map(_closure, found))
        return NAME - found if negated else found

    def escaped(self, character: str) -> str:
        """The one character an escape stands for."""
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            found = _HEX.match(self.pattern, self.at)
            code = int(found[1] or found[2], 16) if found else 0x110000
            if not found or code > 0x10FFFF:
                raise PatternError("invalid escape")
            self.at = found.end()
            return chr(code)
        octal = _OCTAL.match(self.pattern, self.at - 1)
        if octal:
            self.at = octal.end()
            return chr(int(octal[0], 8))
        if ord(character) < 0x80 and not character.isalnum():
            return character
        raise PatternError("invalid escape")

    def bracket(self) -> Node:
        """A class of characters, behind its `[`."""
        negated = self.take("^")
        found: set[str] = set()
        first = True
        while first or not self.peek("]"):
            first = False
            found |= self.member()
        self.at += 1
        characters = frozenset(found)
        if self.fold:
            characters = frozenset().union(*map(_closure, characters))
        return OneOf(NAME - characters if negated else characters)

    def member(self) -> frozenset[str]:
        """One character, range or class inside of brackets."""
        posix = _POSIX_CLASS.match(self.pattern, self.at)
        if posix:
            if posix[2] not in _POSIX:
                raise PatternError("unknown character class")
            self.at = posix.end()
            found = frozenset(_POSIX[posix[2]])
            return NAME - found if posix[1] else found
        low = self.next("closing ]")
        if low == "\\":
            escape = self.next("closing ]")
            named = self.character_class(escape)
            if named is not None:
                return named
            low = self.escaped(escape)
        if not self.peek("-") or self.pattern.startswith("-]", self.at):
            return frozenset(low)
        self.at += 1
        high = self.next("closing ]")
        if high == "\\":
            high = self.escaped(self.next("closing ]"))
        if high < low:
            raise PatternError("invalid character class range")
        return frozenset(each for each in _RELEVANT if low <= each <= high)
