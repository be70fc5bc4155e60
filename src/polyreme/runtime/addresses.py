"""Where the processes of a run on one machine find each other, and where each of them sits."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Rendezvous address and own network interface of a worker; in a lab also its namespace and its device's groups.

    `interface` None: the loopback interface of the platform.
    """

    address: str = LOOPBACK
    interface: str | None = None
    namespace: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def in_lab(self) -> bool:
        """Whether the kernel limits the device, so that no driver has to."""
        return bool(self.groups)
