"""Names with ranges: `node[0-3]/gpu[0-7]` stands for 32 names, in order; `node[08-10]` keeps the width of its zeros."""

import re
from itertools import product

_RANGE = re.compile(r"\[(\d{1,6})-(\d{1,6})\]", re.ASCII)
MAX_NAMES = 100_000


def expand(name: str) -> list[str]:
    """All names that `name` stands for, the last range running fastest. ValueError if a range is reversed or huge."""
    shown = repr(name if len(name) <= 60 else name[:57] + "...")
    parts: list[list[str]] = []
    position, total = 0, 1
    for match in _RANGE.finditer(name):
        first, last = int(match[1]), int(match[2])
        if last < first:
            raise ValueError(f"range {match[0]} in {shown} runs backwards")
        total *= last - first + 1
        if total > MAX_NAMES:
            raise ValueError(f"{shown} stands for more than {MAX_NAMES} names")
        parts.append([name[position : match.start()]])
        width = len(match[1]) if match[1].startswith("0") else 1
        parts.append([f"{number:0{width}}" for number in range(first, last + 1)])
        position = match.end()
    parts.append([name[position:]])
    if any(bracket in "".join(fixed) for fixed in parts[::2] for bracket in "[]"):
        raise ValueError(f"{shown} has a bracket that is no range; a range is written [0-7]")
    return ["".join(chosen) for chosen in product(*parts)]
