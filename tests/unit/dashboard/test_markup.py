"""Markup: plain text never becomes an element."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreme.dashboard.markup import Markup, element, escape, join, json_block

HOSTILE = st.text(st.sampled_from(list("<>&\"'/!-scriptSTYLE]\x00\ud800\u2028 =")), max_size=30)


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(text: str) -> Collector:
    collector = Collector()
    collector.feed(text)
    collector.close()
    return collector


@given(HOSTILE, HOSTILE)
def test_text_in_children_and_attributes_adds_no_element(child: str, attribute: str) -> None:
    page = parse(element("p", child, title=attribute))
    clean = attribute.encode("utf-8", "replace").decode().replace("\0", "?")
    assert page.tags == ["p"]
    assert page.attributes == [("title", clean)]
    assert page.text == child.encode("utf-8", "replace").decode().replace("\0", "?")


@given(HOSTILE)
def test_json_block_holds_any_text_and_stays_one_element(text: str) -> None:
    block = json_block("d", {"text": text})
    page = parse(block)
    assert page.tags == ["script"]
    assert json.loads(page.text) == {"text": text}
    assert not set("<>&") & set(page.text)


def test_json_block_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_block("d", {"loss": float("nan")})


def test_markup_passes_as_it_is_and_text_does_not() -> None:
    assert join([Markup("<b></b>"), "<b>"], " & ") == "<b></b> & &lt;b&gt;"
    assert escape(escape("&")) == "&amp;"


def test_attribute_names_and_left_out_values() -> None:
    assert element("i", class_="x", aria_label="y", title=None) == '<i class="x" aria-label="y"></i>'
    assert element("br") == "<br>"
