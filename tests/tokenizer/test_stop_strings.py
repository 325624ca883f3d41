"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.tokenizer import StopStrings

SHORT = st.text("ab\n", min_size=1, max_size=4)


def _naive(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end, stop string) of the match that is complete first, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@given(st.lists(st.text("ab\n", max_size=5), max_size=12), st.lists(SHORT, max_size=4), st.booleans())
def test_any_chunking_equals_a_search_of_the_whole_text(pieces: list[str], stops: list[str], include: bool):
    text = "".join(pieces)
    expected = _naive(text, stops)
    watch, shown, found, read = StopStrings(stops, include), "", None, ""
    for piece in pieces:
        emitted, found = watch.push(piece)
        read, shown = read + piece, shown + emitted
        if found is not None:
            break
        assert read.startswith(shown)
        held = len(read) - len(shown)
        # What is held back could still become a stop string; nothing else is.
        assert held == max((k for k in range(len(read) + 1) if _may_begin(read[len(read) - k :], stops)), default=0)
    if expected is None:
        assert found is None
        assert shown + watch.finish() == text
    else:
        end, stop = expected
        assert found == stop
        assert shown == text[: end if include else end - len(stop)]
        assert watch.finish() == ""


def _may_begin(tail: str, stops: list[str]) -> bool:
    return any(stop.startswith(tail) and stop != tail for stop in stops)


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.integers(0, 8), st.lists(SHORT, min_size=1, max_size=3))
def test_unarmed_text_never_stops_but_may_begin_a_stop_string(pieces: list[str], unarmed: int, stops: list[str]):
    watch, shown, found = StopStrings(stops), "", None
    for i, piece in enumerate(pieces):
        emitted, found = watch.push(piece, armed=i >= unarmed)
        shown += emitted
        if found is not None:
            break
    text, skipped = "".join(pieces), len("".join(pieces[:unarmed]))
    ends = [end for end in range(skipped + 1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if ends:
        stop = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        assert (found, shown) == (stop, text[: ends[0] - len(stop)])
    else:
        assert (found, shown + watch.finish()) == (None, text)


def test_straddling_pieces():
    watch = StopStrings(["###", "</s>"])
    assert watch.push("one #") == ("one ", None)
    assert watch.push("# two <") == ("## two ", None)
    assert watch.push("/s") == ("", None)
    assert watch.push("> three") == ("", "</s>")
    assert watch.push("more") == ("", "</s>")
    assert watch.finish() == ""


def test_the_stop_string_is_kept_on_request():
    watch = StopStrings(["END"], include=True)
    assert watch.push("the EN") == ("the ", None)
    assert watch.push("D.") == ("END", "END")


def test_the_longest_of_two_that_end_together():
    assert StopStrings(["b", "ab"]).push("xab") == ("x", "ab")


def test_no_stop_strings():
    assert StopStrings([]).push("text") == ("text", None)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="every stop string must be a non-empty string"):
        StopStrings(["a", ""])


def test_a_long_stop_string_on_a_text_that_nearly_matches():
    """Linear time: each character is read once, however much of the stop string has matched."""
    watch = StopStrings(["a" * 1000 + "b"] + ["a" * n + "c" for n in range(30)])
    shown = "".join(watch.push("a" * 100)[0] for _ in range(200))
    assert len(shown) == 200 * 100 - 1000
    assert watch.push("b") == ("", "a" * 1000 + "b")
