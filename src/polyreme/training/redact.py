"""Takes secrets out of what is written to a run folder."""

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "<redacted>"
_NAME = r"passw(?:or)?d|secret|credential|authorization|(?<!eos_)token(?!s|iz)|(?:api|access|private)[_-]?key"
_SECRET_KEY = re.compile(_NAME, re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_ASSIGNED = re.compile(rf"(?im)([\w-]*(?:{_NAME})[\w-]*(?:=|:\s*))[^&\s].*?(?=&|$)")
_OPTION = re.compile(rf"(?i)--?[\w-]*(?:{_NAME})[\w-]*")


def redact(value: Any) -> Any:
    """The same data with values of secret-looking keys, options and assignments, and user parts of URLs, replaced."""
    if isinstance(value, dict):
        return {key: HIDDEN if _SECRET_KEY.search(str(key)) else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _redact_list(value)
    if isinstance(value, str):
        return _ASSIGNED.sub(rf"\1{HIDDEN}", _URL_USER.sub(HIDDEN, value))
    return value


def _redact_list(values: Sequence[Any]) -> list[Any]:
    """Each item by itself, and what follows a bare `--password` as its value."""
    redacted, after_option = [], False
    for value in values:
        redacted.append(HIDDEN if after_option else redact(value))
        after_option = isinstance(value, str) and _OPTION.fullmatch(value) is not None
    return redacted
