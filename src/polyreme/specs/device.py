"""What one kind of device and one kind of link can do: the figures that plans and simulations are computed from."""

from polyreme.specs.fields import NonNegativeFloat, PositiveFloat, Precision, Text, spec


@spec
class LinkKind:
    """A link modelled as latency + bytes / bandwidth, one direction."""

    name: Text
    bandwidth_bytes_per_s: PositiveFloat
    latency_s: NonNegativeFloat


@spec
class DeviceKind:
    """One kind of device.

    `peak_flops_per_s` is the dense peak by precision; `matmul_flops_per_s` the best matmul measured, where known.
    `speed` belongs to driver `emulated`: a relative speed, scaled by the launcher so that all fit the cores here.
    """

    name: Text
    driver: Text
    memory_bytes: PositiveFloat
    peak_flops_per_s: dict[Precision, PositiveFloat] | None = None
    matmul_flops_per_s: dict[Precision, PositiveFloat] | None = None
    memory_bandwidth_bytes_per_s: PositiveFloat | None = None
    link: LinkKind | None = None
    tdp_w: PositiveFloat | None = None
    price_usd_per_hour: NonNegativeFloat | None = None
    speed: PositiveFloat | None = None

    def __post_init__(self) -> None:
        if (self.driver == "emulated") != (self.speed is not None):
            raise ValueError("speed and driver emulated belong together: give both or neither")

    def runs(self, precision: Precision) -> bool:
        """Whether the device computes in `precision`: CPU-backed kinds fp32 and fp64, others what has a peak."""
        if self.driver in ("cpu", "emulated"):
            return precision in (Precision.FP32, Precision.FP64)
        return self.peak_flops_per_s is not None and precision in self.peak_flops_per_s
