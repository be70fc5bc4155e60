"""Takes secrets out of what is written to a run folder."""

import re
from typing import Any

HIDDEN = "<redacted>"
_SECRET_KEY = re.compile(r"password|passwd|secret|token$|api_?key|credential|authorization", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_OPTION = re.compile(r"(?i)^(--?[\w-]*(?:password|secret|token|api-?key)[\w-]*=).+")


def redact(value: Any) -> Any:
    """The same data with values of secret-looking keys, and user parts of URLs, replaced."""
    if isinstance(value, dict):
        return {key: HIDDEN if _SECRET_KEY.search(str(key)) else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _OPTION.sub(rf"\1{HIDDEN}", _URL_USER.sub(HIDDEN, value))
    return value
