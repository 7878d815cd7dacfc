"""One self-contained HTML page: template, style, script and Plotly inlined. Reads package files only."""

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from ectype.report.markup import Part

_HERE = Path(__file__).parent


def page(title: str, heading: str, subtitle: str, footer: str, parts: Sequence[Part]) -> str:
    """The whole page.

    Args:
        title: of the browser's window.
        heading, subtitle, footer: text, escaped here.
        parts: sections in order.
    """
    drawn = {name: figure for part in parts for name, figure in part.figures.items()}
    links = "".join(f'<li><a href="#{part.anchor}">{escape(part.name)}</a></li>' for part in parts)
    fields = {
        "title": escape(title),
        "heading": escape(heading),
        "subtitle": escape(subtitle),
        "footer": escape(footer),
        "navigation": links,
        "sections": "\n".join(part.markup for part in parts),
        "style": (_HERE / "style.css").read_text(encoding="utf-8"),
        "plots": (_HERE / "plots.js").read_text(encoding="utf-8"),
        "controls": (_HERE / "controls.js").read_text(encoding="utf-8"),
        "plotly": _plotly_script(),
        "figures": json.dumps(drawn, allow_nan=False).replace("<", "\\u003c"),
    }
    head, *rest = (_HERE / "template.html").read_text(encoding="utf-8").split("{{")
    for piece in rest:
        name, _, text = piece.partition("}}")
        head += fields[name] + text
    return head


def _plotly_script() -> str:
    """Plotly's JavaScript as its Python package ships it (MIT licence, notice at its head)."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
