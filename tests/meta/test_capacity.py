"""The figures packaged with `nsqcy capacity` are the measurements in the documents."""

from loadtest.bench import measured


def test_figures_are_those_of_the_documents() -> None:
    assert measured.TARGET.read_text() == measured.text(), "run `make conf`"
