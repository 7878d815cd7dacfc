"""Numbers print honestly, text is escaped, tables are accessible."""

import pytest

from ectype.report.markup import NOTHING, Column, Html, bound, fixed, missing, number, percent, table


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, NOTHING),
        (float("nan"), NOTHING),
        (float("inf"), NOTHING),
        (0.0, "0"),
        (0, "0"),
        (1234567, "1,234,567"),
        (-5, "−5"),
        (2.34567, "2.35"),
        (0.0123456, "0.0123"),
        (-0.0123456, "−0.0123"),
        (123.456, "123"),
        (1.5e-7, '<span class="number">1.50×10<sup>−7</sup></span>'),
        (-3.14159e9, '<span class="number">−3.14×10<sup>9</sup></span>'),
    ],
)
def test_numbers(value: float | None, printed: str) -> None:
    assert number(value) == printed


@pytest.mark.parametrize(
    ("value", "printed"),
    [(1e-5, "1×10<sup>−5</sup>"), (2.4e-6, "2.4×10<sup>−6</sup>"), (0.05, "0.05"), (0.12345, "0.123"), (0.0, "0")],
)
def test_tolerances_are_round(value: float, printed: str) -> None:
    assert printed in bound(value)


def test_only_all_is_a_hundred_per_cent() -> None:
    assert percent(1.0) == "100\u00a0%"
    assert percent(0.999999) == "99.99\u00a0%"
    assert percent(0.9875, 1) == "98.7\u00a0%"
    assert percent(None) == NOTHING


def test_fixed_decimals() -> None:
    assert fixed(2.7, 4) == "2.7000"
    assert fixed(-0.00001, 6) == "−0.000010"
    assert fixed(float("nan"), 2) == NOTHING


def test_tables_escape_text_name_their_rows_and_have_a_caption() -> None:
    markup = table("A <caption>", [Column("name"), Column("size", "number")], [["<b>", 3], [Html("<i>x</i>"), None]])
    assert "<caption>A &lt;caption&gt;</caption>" in markup
    assert '<th scope="row" class="text"><div>&lt;b&gt;</div></th>' in markup
    assert "<i>x</i>" in markup
    assert '<th scope="col" class="number">size</th>' in markup
    assert 'tabindex="0" role="region"' in markup


def test_missing_input_is_said_plainly_with_its_command() -> None:
    assert missing("Nothing <here>.", "ectype evaluate") == (
        '<p class="missing"><strong>Nothing &lt;here&gt;.</strong> '
        "<span>Make it with <code>ectype evaluate</code>.</span></p>"
    )
