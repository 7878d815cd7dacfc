"""What the compiler's refusals say."""

import pytest

from ectype.plan.build import refused_bytes


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("Ran out of memory in memory space hbm. Used 120.50G of 95.74G hbm. Exceeded by 24.77G.", 120.5 * 2**30),
        (
            "Ran out of memory on HBM, the total memory required for HLO temporaries (6.25T) exceeds available HBM "
            "(95.74G).",
            6.25 * 2**40,
        ),
        ("Ran out of something else", None),
    ],
)
def test_the_size_of_a_refused_program(message, size):
    assert refused_bytes(message) == size
