"""Which transport an edge takes: both ends come to the same answer from plan and cluster alone."""

import sys

from polyreme.catalog.fleet import Device
from polyreme.drivers.choose import CAPABILITIES
from polyreme.errors import InputError
from polyreme.specs.fields import Transport


def choose_transport(source: Device, target: Device, setting: Transport | None = None) -> Transport:
    """The plan's setting where it gives one, else the fastest that both devices have. InputError if it cannot be.

    Devices that live in host memory share it inside a node; devices of one c10d backend send directly; all others go
    through the host.
    """
    kinds = source.kind.driver, target.kind.driver
    able = [CAPABILITIES[kind] for kind in kinds]
    shared = source.node == target.node and all(one.host_memory for one in able) and sys.platform == "linux"
    direct = able[0].backend == able[1].backend
    if setting is Transport.SHM and not shared:
        problem = f"transport shm between {source.name} and {target.name}: they share no memory"
        raise InputError.single("plan", problem, path="edges", fix="use staged, or leave the edge out")
    if setting is Transport.C10D and not direct:
        problem = f"transport c10d between {source.name} and {target.name}: {kinds[0]} and {kinds[1]} share no backend"
        raise InputError.single("plan", problem, path="edges", fix="use staged, or leave the edge out")
    if setting is not None:
        return setting
    return Transport.SHM if shared else Transport.C10D if direct else Transport.STAGED
