"""Where a context ends, what is cut off, and how documents become windows."""

import pytest

from ectype.errors import EctypeError
from ectype.tasks.requests import (
    ScoringRequest,
    cut_at,
    encode_pair,
    fit,
    generation_ended,
    rolling_requests,
    stop_texts,
)

PREFIX = 99


def _encode(text, special=None):
    """Characters as ids, but for `bc` and for a space with the character behind it, which are one id each."""
    ids, place = [], 0
    while place < len(text):
        size = 2 if text[place : place + 2] == "bc" or (text[place] == " " and place + 1 < len(text)) else 1
        ids.append(hash_of(text[place : place + size]))
        place += size
    return ids


def hash_of(piece):
    return int.from_bytes(piece.encode(), "big")


def test_spaces_behind_a_context_belong_to_the_continuation():
    """C50: `The answer is ` and `7` are split before the space, so that ` 7` is one token."""
    context, continuation = encode_pair("The answer is ", "7", _encode, PREFIX)
    assert context == _encode("The answer is")
    assert continuation == [hash_of(" 7")]


def test_a_token_over_the_boundary_counts_as_context():
    """C50: `ab` alone has two tokens, `abc` two as well: the split at two leaves the continuation without one."""
    assert _encode("ab") == [hash_of("a"), hash_of("b")]
    assert _encode("abc") == [hash_of("a"), hash_of("bc")]
    with pytest.raises(EctypeError, match="no token of the continuation is left"):
        encode_pair("ab", "c", _encode, PREFIX)
    assert encode_pair("ab", "cd", _encode, PREFIX) == (_encode("ab"), [hash_of("d")])


def test_an_empty_context_is_the_prefix():
    assert encode_pair("", "xy", _encode, PREFIX) == ([PREFIX], _encode("xy"))
    assert encode_pair("", "xy", _encode, hash_of("x")) == ([hash_of("x")], [hash_of("y")])


@pytest.mark.parametrize(("context", "continuation"), [("", ""), ("  ", "x"), ("x", "")])
def test_pairs_with_nothing_to_score_are_refused(context, continuation):
    with pytest.raises(EctypeError, match="no token of the"):
        encode_pair(context, continuation, _encode, PREFIX)


def test_too_long_a_context_loses_its_beginning():
    assert fit([1, 2, 3, 4], [5, 6], 4) == ScoringRequest((2, 3, 4, 5), (5, 6))
    assert fit([1, 2, 3], [5, 6], 4) == ScoringRequest((1, 2, 3, 5), (5, 6))
    assert fit([1], [5, 6], 4) == ScoringRequest((1, 5), (5, 6))
    with pytest.raises(EctypeError, match="a continuation of 5 tokens"):
        fit([1], [5] * 5, 4)


def test_rolling_windows_score_each_token_once():
    """C48: ten tokens in windows of four, by the example that lm-evaluation-harness documents."""
    requests = rolling_requests(range(10), PREFIX, 4)
    assert [request.inputs for request in requests] == [(PREFIX, 0, 1, 2), (3, 4, 5, 6), (5, 6, 7, 8)]
    assert [request.targets for request in requests] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    for length in range(13):
        scored = [target for request in rolling_requests(range(length), PREFIX, 4) for target in request.targets]
        assert scored == list(range(length))


def test_stop_texts_and_the_end_of_text_end_a_generation():
    stops = stop_texts(["\n\n", "Q:"], "<end>")
    assert (stops, stop_texts("x", "<end>"), stop_texts(None, "")) == (["\n\n", "Q:", "<end>"], ["x", "<end>"], [])
    assert cut_at("a Q: b\n\nc", stops) == "a "
    ended = generation_ended(lambda ids: "".join(map(chr, ids)), 0, stops)
    assert [ended(ids) for ids in ([65], [65, 0], [*map(ord, "a\n\nb")])] == [False, True, True]
