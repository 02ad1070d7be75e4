"""The language check finds known faults in prose, and nothing in code."""

import pytest

from release.language import MAX_WORDS, comments, judge, markdown


@pytest.mark.parametrize(
    "text",
    [
        "A lock that nobody holds.",
        "A segment of which much is read.",
        "Whoever connects gets it.",
        "It lets go of the block.",
        "The master is told of it.",
        "Wait so many seconds.",
        "What is asked of a topic every worker knows.",
        "It works. What is left is dropped.",
        "It holds however many there are.",
        "The page needs a login.",
        "word " * (MAX_WORDS + 1),
    ],
)
def test_patterns_are_found(text: str) -> None:
    assert len(list(judge(text))) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "Each worker holds the policies of all topics.",
        "What happens to a message that fails?",
        "The option `nobody` and [a page](what/nobody.md).",
        "There are so many that a page has only some.",
        "`/login` and nsqadmin's /login/callback.",
        "| " + " | ".join(["a short cell"] * MAX_WORDS) + " |",
        "first   the first of two columns\n" * MAX_WORDS,
    ],
)
def test_plain_text_passes(text: str) -> None:
    assert list(judge(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "An nsqd that proved itself.",
        "A disk that comes back from a copy.",
        "The process exits by itself.",
        "It is mended from another copy.",
    ],
)
def test_patterns_of_sources(text: str) -> None:
    assert len(list(judge(text, is_source=True))) == 1
    assert list(judge(text)) == []


def test_code_blocks_of_a_page_are_skipped() -> None:
    ((line, prose),) = markdown("one\n```sh\nnobody\n```\nnobody\n")
    assert [(line + at, found) for at, found, _ in judge(prose)] == [(5, "nobody")]


def test_docstrings_and_comments_are_read_and_strings_are_not() -> None:
    code = 'value = "nobody"  # no one\n\n\n# Nobody\n# knows.\n'
    text = f'"""Nobody."""\n\n{code}def f():\n    """What."""\n'
    assert sorted(comments(text)) == [
        (1, "Nobody."),
        (3, "no one"),
        (6, "Nobody\nknows."),
        (9, "What."),
    ]
