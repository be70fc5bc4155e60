"""Token files of any number and size: sequences tile every stream, and what is held out shares no token."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyreme.errors import InputError
from polyreme.specs.job import TokenData, TokenDtype
from polyreme.training.token_files import TokenRows, open_token_files

EOS = 50_000
FILES = st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), min_size=1, max_size=5)


def write(folder: Path, sizes: list[tuple[int, bool, bool]], dtype: TokenDtype) -> list[list[int]]:
    """Files of (size, as .npy, ended by EOS), in which every other id stands once in all of them; their ids."""
    contents, first = [], 1
    for number, (size, as_npy, ended) in enumerate(sizes):
        ids = list(range(first, first + size)) + [EOS] * ended
        first += size
        contents.append(ids)
        if as_npy:
            np.save(folder / f"{number}.npy", np.array(ids, dtype=np.int64 if number % 2 else np.uint16))
        else:
            (folder / f"{number}.bin").write_bytes(np.array(ids, dtype=dtype).tobytes())
    return contents


def sequences(rows: TokenRows, num_tokens: int) -> list[list[int]]:
    found = [rows.read(row, num_tokens).tolist() for row in range(rows.num_rows(num_tokens))]
    assert rows.count_targets(range(len(found)), num_tokens) == sum(len(tokens) - 1 for tokens in found)
    assert all(2 <= len(tokens) <= num_tokens + 1 for tokens in found)
    return found


@settings(max_examples=120, deadline=None, derandomize=True)
@given(sizes=FILES, dtype=st.sampled_from(TokenDtype), num_tokens=st.integers(1, 20), packed=st.booleans())
def test_sequences_have_every_next_token_of_a_stream_once(
    sizes: list[tuple[int, bool, bool]], dtype: TokenDtype, num_tokens: int, packed: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        contents = write(Path(folder), sizes, dtype)
        streams: list[list[int]] = contents
        if packed:
            streams = [[i for ids in contents if ids for i in (ids if ids[-1] == EOS else [*ids, EOS])]]
        expected = [ids[n : n + num_tokens + 1] for ids in streams for n in range(0, len(ids) - 1, num_tokens)]
        data = TokenData(paths=(".",), dtype=dtype, eos_token=EOS if packed else None)
        if expected:
            assert sequences(open_token_files(data, Path(folder), 60_000, "data"), num_tokens) == expected
        else:
            with pytest.raises(InputError, match="no tokens found"):
                open_token_files(data, Path(folder), 60_000, "data")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes=FILES, num_tokens=st.integers(1, 20), num_held=st.integers(1, 12), packed=st.booleans())
def test_what_is_held_out_shares_no_token_with_the_rest(
    sizes: list[tuple[int, bool, bool]], num_tokens: int, num_held: int, packed: bool
) -> None:
    sizes = [(size + 2, as_npy, ended) for size, as_npy, ended in sizes]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), sizes, TokenDtype.UINT32)
        spec = TokenData(paths=(".",), dtype=TokenDtype.UINT32, eos_token=EOS if packed else None)
        whole = open_token_files(spec, Path(folder), 60_000, "data")
        if whole.num_rows(num_tokens) <= num_held:
            with pytest.raises(InputError, match="too few tokens"):
                whole.hold_out(num_held, num_tokens)
        if whole.num_rows(num_tokens) <= num_held + 1:  # of one sequence more, the rest may be too short to train on
            return
        rest, held = whole.hold_out(num_held, num_tokens)
        assert held.num_rows(num_tokens) == num_held
        kept, kept_out = sequences(rest, num_tokens), sequences(held, num_tokens)
        ids = {i for tokens in kept for i in tokens} - {EOS}
        held_ids = {i for tokens in kept_out for i in tokens} - {EOS}
        assert not ids & held_ids
        assert max(held_ids, default=EOS) > max(ids, default=0), "the last ones are held out"
        seen = {i for row in range(whole.num_rows(num_tokens)) for i in whole.read(row, num_tokens).tolist()} - {EOS}
        assert len(seen - ids - held_ids) <= 1, "one token may be left alone at the cut"
