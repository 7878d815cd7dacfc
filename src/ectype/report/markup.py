"""The report's HTML by the piece: numbers, tables, figures, notes. Text in, markup out; every text is escaped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

Tone = Literal["good", "bad", "open", "none"]
NOTHING = '<span class="nothing" title="no number">–</span>'
_SIGNS = {
    "good": "M4 12.5 9.5 18 20 6.5",
    "bad": "M6 6 18 18 M18 6 6 18",
    "open": "M8.5 8.8a3.6 3.6 0 1 1 5.3 3.2c-1.3.8-1.8 1.4-1.8 2.9 M12 18.6v.1",
    "none": "M6 12h12",
}


@dataclass(frozen=True)
class Html:
    """Text that is markup already."""

    text: str


Cell = Html | str | int | float | None
"""A table cell; a string is text and is escaped."""


@dataclass(frozen=True)
class Column:
    """A table column: its head, and whether numbers stand in it (aligned right, figures of one width)."""

    title: str
    kind: Literal["text", "number"] = "text"


@dataclass(frozen=True)
class Part:
    """A section of the page: its anchor and short name for the navigation, its markup, and the plots it places."""

    anchor: str
    name: str
    markup: str
    figures: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def html(value: Cell) -> str:
    """Markup of a cell: text escaped, numbers as `number` prints them."""
    if isinstance(value, Html):
        return value.text
    return escape(value) if isinstance(value, str) else number(value)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits; far from 1 as a power of ten; a dash for none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or (value == int(value) and 10**digits <= abs(value) < 1e6):
        return f"{int(value):,}".replace("-", "−")
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}".replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return (
        f'<span class="number">{mantissa.replace("-", "−")}×10<sup>{str(int(exponent)).replace("-", "−")}</sup></span>'
    )


def bound(value: float | None) -> str:
    """A round number, such as a tolerance: up to three significant digits, without trailing zeros."""
    if value is None or not math.isfinite(value):
        return NOTHING
    digits = next(digits for digits in (1, 2, 3) if digits == 3 or float(f"{value:.{digits - 1}e}") == value)
    return number(value, digits)


def fixed(value: float | None, decimals: int) -> str:
    """A number with a fixed count of decimals, for columns that are read downwards."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.{decimals}f}".replace("-", "−")


def percent(share: float | None, decimals: int = 2) -> str:
    """A share of one as per cent; 1 is "100 %", without decimals that suggest rounding."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return (
        "100\u00a0%" if share == 1 else f"{math.floor(share * 10 ** (decimals + 2)) / 10**decimals:.{decimals}f}\u00a0%"
    )


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, stack: bool = False) -> str:
    """A captioned table whose first column names the row.

    On a narrow page it scrolls sideways, or with `stack` each row becomes a card of name-value pairs.
    """

    def cell(column: Column, value: Cell, first: bool) -> str:
        tag, scope = ("th", ' scope="row"') if first else ("td", "")
        head = f' data-head="{escape(column.title)}"' if stack else ""
        return f'<{tag}{scope} class="{column.kind}"{head}><div>{html(value)}</div></{tag}>'

    head = "".join(f'<th scope="col" class="{column.kind}">{escape(column.title)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(cell(c, v, i == 0) for i, (c, v) in enumerate(zip(columns, row, strict=True))) + "</tr>"
        for row in rows
    )
    kind = "stack" if stack else "scroll"
    return (
        f'<div class="table {kind}" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(name: str, title: str, described: str, details: str = "", above: str = "") -> str:
    """The place of plot `name`, its title and what it shows in words.

    Args:
        details: its numbers as a table, folded away below it.
        above: controls, between the words and the plot.
    """
    numbers = f"<details><summary>The numbers</summary>{details}</details>" if details else ""
    spoken = escape(f"{title}. {described}")
    return (
        f'<figure class="plot"><figcaption><h3>{escape(title)}</h3><p>{escape(described)}</p></figcaption>{above}'
        f'<div class="canvas" data-figure="{escape(name)}" role="img" aria-label="{spoken}"></div>{numbers}</figure>'
    )


def section(anchor: str, title: str, lead: str, *parts: str) -> str:
    """A headed section with a lead sentence."""
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title"><h2 id="{anchor}-title">{escape(title)}</h2>'
        f'<p class="lead">{escape(lead)}</p>{"".join(parts)}</section>'
    )


def missing(what: str, command: str | None = None) -> str:
    """Say plainly that an input is not there, and which command makes it."""
    mend = f" <span>Make it with <code>{escape(command)}</code>.</span>" if command else ""
    return f'<p class="missing"><strong>{escape(what)}</strong>{mend}</p>'


def definitions(pairs: Sequence[tuple[Cell, Cell]]) -> str:
    """Names and values in two columns."""
    rows = "".join(f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="pairs">{rows}</dl>'


def code(text: Any) -> Html:
    """Text in the fixed-width face."""
    return Html(f"<code>{escape(str(text))}</code>")


def icon(tone: Tone) -> str:
    """The sign of a tone; its meaning always stands beside it in words."""
    return (
        '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="3" stroke-linecap="round" '
        f'stroke-linejoin="round" aria-hidden="true"><path d="{_SIGNS[tone]}"/></svg>'
    )


def chip(tone: Tone, text: str) -> Html:
    """A small label with the sign of its tone."""
    return Html(f'<span class="chip {tone}">{icon(tone)}{escape(text)}</span>')
