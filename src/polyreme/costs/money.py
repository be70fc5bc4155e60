"""Dollars and joules of one step on the devices that a plan uses."""

from collections.abc import Iterable

from polyreme.specs.device import DeviceKind
from polyreme.units import HOUR_S


def price_usd_per_s(kinds: Iterable[DeviceKind]) -> float | None:
    """Rent of all devices per second; None if a price is missing."""
    prices = [kind.price_usd_per_hour for kind in kinds]
    return None if any(price is None for price in prices) else sum(price or 0.0 for price in prices) / HOUR_S


def power_w(kinds: Iterable[DeviceKind]) -> float | None:
    """Thermal design power of all devices; None if one is unknown."""
    powers = [kind.tdp_w for kind in kinds]
    return None if any(power is None for power in powers) else sum(power or 0.0 for power in powers)
