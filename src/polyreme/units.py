"""Units: constants to convert with, and text forms of quantities. Values inside polyreme are bytes and seconds."""

GB = 10**9
GIB = 2**30
MIB = 2**20
MICROSECOND_S = 1e-6
HOUR_S = 3600.0


def format_bytes(num_bytes: float) -> str:
    """`79.3 GB`, decimal units, three significant figures."""
    size = abs(num_bytes)
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{_significant(num_bytes / scale)} {unit}"
    return f"{num_bytes:.0f} B"


def format_time_s(time_s: float) -> str:
    """`12.3 ms`, three significant figures."""
    size = abs(time_s)
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= scale:
            return f"{_significant(time_s / scale)} {unit}"
    return f"{time_s * 1e9:.0f} ns" if time_s else "0 s"


def format_count(count: float) -> str:
    """`8.03 B`, for parameters and tokens."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(count) >= scale:
            return f"{_significant(count / scale)} {unit}"
    return f"{count:.0f}"


def format_percent(fraction: float) -> str:
    """`12.3 %` of a fraction."""
    return f"{100 * fraction:.1f} %"


def _significant(value: float) -> str:
    """Three significant figures without an exponent."""
    size = abs(value)
    decimals = 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:.{decimals}f}"
