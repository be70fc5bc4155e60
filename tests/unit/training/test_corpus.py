"""Which bytes a step reads."""

import sys
from pathlib import Path

import pytest

from polyreme.errors import InputError
from polyreme.specs.job import TextData
from polyreme.training.corpus import Corpus, open_corpus


def corpus(tmp_path: Path) -> Corpus:
    for number, text in enumerate(("alpha beta gamma", "x", "short", "a longer document than all the others")):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    return open_corpus(TextData(paths=(".",)), tmp_path)


def test_a_window_stays_inside_its_document_and_counts_what_it_can_predict(tmp_path: Path) -> None:
    found = corpus(tmp_path)
    assert len(found.documents) == 3, "one byte predicts nothing"
    counts = set()
    for sequence in range(500):
        window = found.window(3, 1, sequence, 12)
        content = found.read(window)
        text = found.documents[window.document].path.read_bytes()
        assert content == text[window.start : window.start + window.num_targets + 1]
        assert len(content) == window.num_targets + 1
        assert 1 <= window.num_targets <= 12
        assert window.num_targets == 12 or window.start + len(content) == len(text)
        counts.add(window.num_targets)
    assert len(counts) > 5


def test_every_document_and_position_is_reached(tmp_path: Path) -> None:
    found = corpus(tmp_path)
    places = {(w.document, w.start) for w in (found.window(0, step, 0, 4) for step in range(2000))}
    assert places == {(d, s) for d, document in enumerate(found.documents) for s in range(document.size - 1)}


def test_the_count_of_a_step_is_the_sum_over_its_windows(tmp_path: Path) -> None:
    found = corpus(tmp_path)
    windows = [found.window(5, 2, sequence, 9).num_targets for sequence in range(16)]
    assert found.count_targets(5, 2, 16, 9) == sum(windows)


def test_windows_differ_by_seed_and_step(tmp_path: Path) -> None:
    found = corpus(tmp_path)

    def places(seed: int, step: int) -> list[int]:
        return [found.window(seed, step, sequence, 8).start for sequence in range(30)]

    assert places(0, 0) == places(0, 0)
    assert places(0, 0) != places(1, 0)
    assert places(0, 0) != places(0, 1)


def test_the_digest_changes_with_a_byte(tmp_path: Path) -> None:
    before = corpus(tmp_path).digest
    (tmp_path / "0.txt").write_text("alpha beta gammb", encoding="utf-8")
    assert open_corpus(TextData(paths=(".",)), tmp_path).digest != before


def test_without_paths_the_standard_library_is_read(tmp_path: Path) -> None:
    found = open_corpus(TextData(), tmp_path)
    paths = [document.path for document in found.documents]
    assert len(paths) > 100
    assert all(path.suffix == ".py" or path.suffix in (".txt", ".md", ".rst") for path in paths)
    assert not any("site-packages" in path.parts for path in paths)
    assert sys.version_info >= (3, 11)


def test_missing_and_empty_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.paths\[1\].*nowhere"):
        open_corpus(TextData(paths=(".", "nowhere")), tmp_path)
    with pytest.raises(InputError, match="no text found"):
        open_corpus(TextData(paths=(".",)), tmp_path)


@pytest.mark.parametrize("change", ["gone", "shorter", "a folder"])
def test_a_document_that_changes_while_it_is_read_is_named(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text", encoding="utf-8")
    found = open_corpus(TextData(paths=("a.txt",)), tmp_path)
    path.unlink()
    if change == "shorter":
        path.write_text("some", encoding="utf-8")
    elif change == "a folder":
        path.mkdir()
    expected = "had 9 bytes when it was opened and has 4 now" if change == "shorter" else "cannot be read"
    with pytest.raises(InputError, match=rf"a\.txt: {expected}.*; data may not change"):
        found.read_sequence(0, 0, 0, 1, 8)
    with pytest.raises(InputError, match=rf"a\.txt: {expected}"):
        _ = found.digest
