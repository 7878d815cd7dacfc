"""Few shapes, and an order that the order of requests does not reach."""

import random

import pytest

from ectype.tasks.batching import batches, filled_up, length_ladder, padded_length


@pytest.mark.parametrize(("max_length", "lengths"), [(4, 1), (16, 1), (256, 15), (2048, 27), (8192, 35), (65536, 47)])
def test_the_ladder_has_few_rungs(max_length, lengths):
    ladder = length_ladder(max_length)
    assert (len(ladder), ladder[-1]) == (lengths, max_length)
    assert ladder == sorted(set(ladder))
    assert all(padded_length(tokens, ladder) - tokens <= max(15, tokens / 4) for tokens in range(1, max_length + 1))


def test_batches_hold_every_row_once_and_do_not_depend_on_order():
    ladder = length_ladder(100)
    rows = [tuple(random.Random(row).choices(range(9), k=1 + row * 7 % 100)) for row in range(40)]
    shuffled = random.Random(1).sample(rows, len(rows))
    made, again = [[(length, [own[i] for i in members]) for length, members in batches(own, ladder, 3)]
                   for own in (rows, shuffled)]  # fmt: skip
    assert made == again
    assert sorted(row for _, members in made for row in members) == sorted(rows)
    assert all(len(members) <= 3 and len(members[0]) <= length for length, members in made)
    assert filled_up([(1, 2)], 4, 2).tolist() == [[1, 2, 0, 0], [0, 0, 0, 0]]
