"""Picks the driver of a device; says clearly when there is none here."""

from polyreme.catalog.fleet import Device, Fleet
from polyreme.drivers.base import DeviceDriver
from polyreme.drivers.cpu import CpuDriver
from polyreme.drivers.emulated import EmulatedDriver, core_fractions
from polyreme.errors import InputError

AVAILABLE = ("cpu", "emulated")
BACKENDS = {"cpu": "gloo", "emulated": "gloo", "null": "gloo", "cuda": "nccl", "ascend": "hccl"}
"""c10d backend of each driver's tensors: devices of one backend can sum among themselves."""
HOST_MEMORY = frozenset({"cpu", "emulated", "null"})
"""Drivers whose tensors lie in the host's memory."""


def make_driver(device: Device, fleet: Fleet, num_cores: int, *, in_lab: bool = False) -> DeviceDriver:
    """Driver of `device`. InputError if its kind cannot run here. Emulated speeds are scaled over the whole fleet.

    In a lab the kernel slows a device, so that an emulated one runs like a processor.
    """
    kind = device.kind
    if kind.driver == "cpu" or (in_lab and kind.driver == "emulated"):
        return CpuDriver(kind.memory_bytes)
    if kind.driver == "emulated":
        return EmulatedDriver(kind.memory_bytes, emulated_fractions(fleet, num_cores)[kind.name])
    raise InputError.single(
        device.name,
        f"driver {kind.driver!r} of {kind.name} cannot run yet",
        fix=f"drivers that run: {', '.join(AVAILABLE)}; planning and simulation work for every device",
    )


def emulated_fractions(fleet: Fleet, num_cores: int) -> dict[str, float]:
    """Core fraction of each emulated kind of the fleet, by kind name."""
    emulated = [device.kind for device in fleet.devices if device.kind.speed is not None]
    if not emulated:
        return {}
    fractions = core_fractions([kind.speed or 1.0 for kind in emulated], num_cores)
    return {kind.name: fraction for kind, fraction in zip(emulated, fractions, strict=True)}
