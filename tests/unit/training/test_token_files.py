"""Token files that are not what they should be, or cease to be."""

from pathlib import Path

import numpy as np
import pytest

from polyreme.errors import InputError
from polyreme.specs.job import TokenData, TokenDtype
from polyreme.training.token_files import TokenRows, open_token_files

VOCAB = 1000


def opened(folder: Path, *paths: str, dtype: TokenDtype = TokenDtype.UINT16, eos_token: int | None = None) -> TokenRows:
    return open_token_files(TokenData(paths=paths or (".",), dtype=dtype, eos_token=eos_token), folder, VOCAB, "data")


def write(path: Path, ids: "np.typing.ArrayLike", dtype: str = "<u2") -> None:
    path.write_bytes(np.asarray(ids).astype(dtype).tobytes())


def test_an_id_outside_the_vocabulary_is_named_with_file_and_place(tmp_path: Path) -> None:
    ids = list(range(100))
    ids[57] = VOCAB
    write(tmp_path / "a.bin", ids)
    rows = opened(tmp_path)
    assert len(rows.read(0, 50)) == 51
    with pytest.raises(InputError, match=r"a\.bin: token 57 \(byte 114\) is 1000; the model has vocab_size 1000"):
        rows.read(1, 50)
    np.save(tmp_path / "b.npy", np.array([3, 4, -1, 5]))
    with pytest.raises(InputError, match=r"b\.npy: token 2 \(byte \d+\) is -1"):
        opened(tmp_path, "b.npy").read(0, 8)


@pytest.mark.parametrize("change", ["shorter", "longer", "gone", "a folder"])
def test_a_file_that_changes_is_named(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write(path, range(100))
    rows = opened(tmp_path)
    assert rows.read(0, 10).tolist() == list(range(11))
    if change in ("shorter", "longer"):
        write(path, range(60 if change == "shorter" else 200))
    else:
        path.unlink()
    if change == "a folder":
        path.mkdir()
    expected = r"had 200 bytes .* and has \d+ now" if change in ("shorter", "longer") else "cannot be read: "
    with pytest.raises(InputError, match=rf"a\.bin: {expected}.*restore it"):
        rows.read(0, 10)
    with pytest.raises(InputError, match=r"a\.bin"):
        _ = rows.digest


def test_paths_that_hold_no_tokens_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", range(10))
    with pytest.raises(InputError, match=r"data\.paths\[1\]: .*nowhere does not exist"):
        opened(tmp_path, "a.bin", "nowhere")
    with pytest.raises(InputError, match=r"a\.bin is named twice"):
        opened(tmp_path, ".", "a.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no tokens found in .*empty"):
        opened(tmp_path, "empty")


def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "odd.bin", range(5))
    with pytest.raises(InputError, match=r"odd\.bin: has 10 bytes, which is no whole number of uint32"):
        opened(tmp_path, "odd.bin", dtype=TokenDtype.UINT32)
    (tmp_path / "text.npy").write_text("not numpy", encoding="utf-8")
    with pytest.raises(InputError, match=r"text\.npy: is not a \.npy file"):
        opened(tmp_path, "text.npy")
    np.save(tmp_path / "square.npy", np.zeros((3, 3), dtype=np.uint16))
    with pytest.raises(InputError, match=r"square\.npy: holds uint16 of shape \(3, 3\)"):
        opened(tmp_path, "square.npy")
    np.save(tmp_path / "floats.npy", np.zeros(9))
    with pytest.raises(InputError, match=r"floats\.npy: holds float64"):
        opened(tmp_path, "floats.npy")
    np.save(tmp_path / "cut.npy", np.zeros(99, dtype=np.uint16))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-7])
    with pytest.raises(InputError, match=r"cut\.npy: is cut short: its header tells of 99 tokens"):
        opened(tmp_path, "cut.npy")


def test_big_endian_npy_is_read_as_its_header_says(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(40, dtype=">i4"))
    assert opened(tmp_path).read(1, 10).tolist() == list(range(10, 21))


def test_the_digest_changes_with_an_id_and_with_what_separates_documents(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", range(100))
    before = opened(tmp_path).digest
    assert opened(tmp_path).digest == before
    assert opened(tmp_path, eos_token=99).digest != before
    write(tmp_path / "a.bin", [*range(50), 51, *range(51, 100)])
    assert opened(tmp_path).digest != before


def test_the_digest_of_a_large_file_reads_a_part_of_it_and_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        file.truncate(4 * 2**30)  # takes no room on the disk
    (file_,) = opened(tmp_path).files
    read = [len(content) for content in file_.read_samples()]
    assert sum(read) == 2**24
    digests = {opened(tmp_path).digest}
    for place in (0, 4 * 2**30 - 2):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\x07\x00")
        digests.add(opened(tmp_path).digest)
    assert len(digests) == 3
