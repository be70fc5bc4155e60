"""HTML and SVG text that is safe by construction: every plain string put into an element is escaped.

Only `Markup` passes as it is, and only `element`, `join` and this module's callers with fixed texts make it.
"""

import html
import json
from collections.abc import Iterable
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | int | Markup
_VOID = frozenset({"meta", "br", "link"})


def escape(text: Content) -> Markup:
    """`text` as HTML; unchanged if it is Markup. What UTF-8 or HTML cannot hold becomes a question mark."""
    if isinstance(text, Markup):
        return text
    clean = str(text).encode("utf-8", "replace").decode().replace("\0", "?")
    return Markup(html.escape(clean, quote=True))


def join(parts: Iterable[Content], separator: str = "") -> Markup:
    """All parts in a row, each escaped unless it is Markup."""
    return Markup(separator.join(escape(part) for part in parts))


def element(name: str, *children: Content, **attributes: Content | None) -> Markup:
    """`<name key="value">children</name>`. In keys `_` stands for `-`, a last `_` is dropped; None leaves one out."""
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def json_block(identifier: str, data: Any) -> Markup:
    """A script element that holds `data` as JSON: no text in it can end the element. ValueError for NaN."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Markup(text), type="application/json", id=identifier)
