"""Held-out text: no byte that training can draw, and about as much as said, whatever the documents are."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from polyreme.errors import InputError
from polyreme.specs.job import TextData
from polyreme.training.corpus import HELD_OUT_FRACTION, Corpus, FixedWindows, open_corpus


def spans(corpus: Corpus) -> set[tuple[Path, int]]:
    """(file, byte) of all documents."""
    return {(d.path.resolve(), d.start + place) for d in corpus.documents for place in range(d.size)}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(2, 300) | st.integers(2, 9), min_size=1, max_size=30), twice=st.booleans())
def test_training_and_held_out_text_share_no_byte(sizes: list[int], twice: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(sizes):
            (Path(folder) / f"{number}.txt").write_bytes(bytes(size))
        whole = open_corpus(TextData(paths=(".", "0.txt") if twice else (".",)), Path(folder))
        try:
            rest, held = whole.hold_out()
        except InputError:
            assert max(sizes) < 4
            return
        assert not spans(rest) & spans(held)
        assert spans(rest) | spans(held) == spans(whole)
        assert 2 <= len(spans(held)) <= max(2, HELD_OUT_FRACTION * sum(sizes))
        moved = [corpus.documents for corpus in open_corpus(TextData(paths=(folder,)), Path("/")).hold_out()]
        assert twice or moved == [rest.documents, held.documents]
        for place in range(50):
            first, second = rest.window(1, place, 0, 16), held.window(1, place, 0, 16)
            assert rest.documents[first.document].size > first.start + first.num_targets
            assert held.documents[second.document].size > second.start + second.num_targets
            assert len(held.read(second)) == second.num_targets + 1


def test_what_is_evaluated_is_the_same_under_every_seed_and_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 20)
    _, held = open_corpus(TextData(paths=(".",)), tmp_path).hold_out()
    source = FixedWindows(held, 10)
    one = [source.read_sequence(1, step, s, 4, 16).tolist() for step in range(3) for s in range(4)]
    assert one == [source.read_sequence(2, 0, s, 12, 16).tolist() for s in range(12)]
    assert one[10:] == [[], []]
    assert len({tuple(tokens) for tokens in one[:10]}) > 5
    assert source.count_targets(1, 2, 4, 16) == sum(len(tokens) - 1 for tokens in one[8:10])
    assert source.count_targets(1, 3, 4, 16) == 0
