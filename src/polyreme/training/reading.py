"""Bytes of a data file, or an error that says what became of the file.

Files are opened for each read and not mapped: cutting a mapped file short ends the process that reads it by a signal.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyreme.errors import InputError

_RESTORE = "data may not change while it is trained on: restore it and train again"
_BLOCK_BYTES = 2**20


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the operating system refuses inside into an InputError about `path`."""
    try:
        yield
    except OSError as error:
        named = error.filename or path
        raise InputError.single(str(named), f"cannot be read: {error.strerror or error}", fix=_RESTORE) from None


def read_bytes(path: Path, start: int, count: int, file_bytes: int) -> bytes:
    """Bytes [start, start + count) of a file that had `file_bytes` when it was found. InputError if it has not now."""
    with explained(path), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        content = os.pread(file.fileno(), count, start) if size == file_bytes else b""
        while 0 < len(content) < count:  # the system may give less than asked for; nothing means the end
            more = os.pread(file.fileno(), count - len(content), start + len(content))
            if not more:
                break
            content += more
    if size != file_bytes or len(content) != count:
        raise InputError.single(
            str(path), f"had {file_bytes} bytes when it was opened and has {size} now", fix=_RESTORE
        )
    return content


def read_blocks(path: Path, start: int, stop: int, file_bytes: int) -> Iterator[bytes]:
    """Bytes [start, stop) of a file, a little at a time."""
    for place in range(start, stop, _BLOCK_BYTES):
        yield read_bytes(path, place, min(_BLOCK_BYTES, stop - place), file_bytes)
