"""Picks the driver of a device; says clearly when there is none here."""

from collections.abc import Sequence

from polyreme.catalog.fleet import Device, Fleet
from polyreme.drivers.base import Capabilities, DeviceDriver
from polyreme.drivers.cpu import CpuDriver
from polyreme.drivers.cuda import CudaDriver
from polyreme.drivers.emulated import EmulatedDriver, core_fractions
from polyreme.errors import InputError
from polyreme.specs.fields import Precision

_ALL = frozenset({Precision.FP64, Precision.FP32, Precision.BF16, Precision.FP16})
_HOST = Capabilities(backend="gloo", host_memory=True, asynchronous=False, precisions=_ALL)
CAPABILITIES = {
    "cpu": _HOST,
    "emulated": _HOST,
    "null": _HOST,
    "cuda": Capabilities(backend="nccl", host_memory=False, asynchronous=True, precisions=_ALL),
}
"""Every driver that can run, with what its devices can do."""


def make_driver(device: Device, fleet: Fleet, num_cores: int, *, in_lab: bool = False) -> DeviceDriver:
    """Driver of `device`. InputError if its kind cannot run here. Emulated speeds are scaled over the whole fleet.

    In a lab the kernel slows a device, so that an emulated one runs like a processor.
    """
    kind = device.kind
    if kind.driver == "cpu" or (in_lab and kind.driver == "emulated"):
        return CpuDriver(kind.memory_bytes)
    if kind.driver == "emulated":
        return EmulatedDriver(kind.memory_bytes, emulated_fractions(fleet, num_cores)[kind.name])
    if kind.driver == "cuda":
        return CudaDriver(kind.memory_bytes, local_index(device, fleet))
    raise InputError.single(
        device.name,
        f"driver {kind.driver!r} of {kind.name} cannot run yet",
        fix=f"drivers that run: {', '.join(sorted(CAPABILITIES))}; planning and simulation work for every device",
    )


def default_backend(drivers: Sequence[str]) -> str:
    """What a run's process group is made with: the devices' backend, and gloo beside it for what lies on the host."""
    found = sorted({(CAPABILITIES[driver].backend, CAPABILITIES[driver].host_memory) for driver in drivers})
    device = [backend for backend, on_host in found if not on_host]
    return f"cpu:gloo,cuda:{device[0]}" if device else "gloo"


def local_index(device: Device, fleet: Fleet) -> int:
    """Number of a device among those of its driver on its node, in the order of the cluster file."""
    alike = [one.name for one in fleet.devices if (one.node, one.kind.driver) == (device.node, device.kind.driver)]
    return alike.index(device.name)


def emulated_fractions(fleet: Fleet, num_cores: int) -> dict[str, float]:
    """Core fraction of each emulated kind of the fleet, by kind name."""
    emulated = [device.kind for device in fleet.devices if device.kind.speed is not None]
    if not emulated:
        return {}
    fractions = core_fractions([kind.speed or 1.0 for kind in emulated], num_cores)
    return {kind.name: fraction for kind, fraction in zip(emulated, fractions, strict=True)}
