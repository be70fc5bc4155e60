"""The catalogue's own data files, as device and link kinds."""

from polyreme.specs.device import DeviceKind, LinkKind


def device_kinds() -> dict[str, DeviceKind]:
    """All devices of the catalogue by name."""
    return {}


def link_kinds() -> dict[str, LinkKind]:
    """All links of the catalogue by name."""
    return {}
