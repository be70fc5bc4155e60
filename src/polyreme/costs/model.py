"""The cost model of one job: every figure that a planner or simulator asks for, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyreme.catalog.fleet import Device, Fleet
from polyreme.costs.comm import boundary_bytes
from polyreme.costs.compute import LayerTime, layer_time
from polyreme.costs.memory import activation_bytes, context_bytes, stage_parameters, state_bytes
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Precision, Recompute
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import StageTime
from polyreme.specs.profile import ProfileSpec


@dataclass(frozen=True)
class CostModel:
    """Costs of `model` on `fleet` at one sequence length and precision; a profile replaces estimates where it can."""

    model: ModelSpec
    fleet: Fleet
    precision: Precision
    tokens_per_sequence: int
    profile: ProfileSpec | None = None
    _times: dict[tuple[str, int, int], LayerTime] = field(default_factory=dict)

    def layer(self, kind: DeviceKind, layer: int, sequences: int) -> LayerTime:
        """Time of one layer for a microbatch. InputError if nothing is known about the kind."""
        last = self.model.num_layers + 1
        representative = layer if layer in (0, last) else 1  # all blocks are alike
        key = (kind.name, representative, sequences)
        if key not in self._times:
            self._times[key] = layer_time(
                self.model, representative, kind, self.precision, sequences, self.tokens_per_sequence, self.profile
            )
        return self._times[key]

    def stage_time(self, kind: DeviceKind, layers: range, sequences: int) -> StageTime:
        """Time of a layer range for one microbatch."""
        times = [self.layer(kind, layer, sequences) for layer in layers]
        return StageTime(
            f=sum(time.forward_s for time in times),
            i=sum(time.input_gradient_s for time in times),
            w=sum(time.weight_gradient_s for time in times),
        )

    def update_s(self, kind: DeviceKind, layers: range) -> float:
        """Seconds of the optimizer's step over a layer range."""
        return sum(self.layer(kind, layer, 1).update_s for layer in layers)

    def interval(self, kinds: Sequence[DeviceKind]) -> tuple[float, float]:
        """Factors (low, high) around a predicted time on these kinds: those of the least certain one."""
        times = [self.layer(kind, layer, 1) for kind in kinds for layer in (0, 1, self.model.num_layers + 1)]
        return min(time.low for time in times), max(time.high for time in times)

    def stage_memory(self, kind: DeviceKind, layers: Sequence[int], sequences: int, in_flight: int) -> dict[str, float]:
        """Bytes by part on a device that has the stage to itself, `in_flight` microbatches' activations held."""
        parts = state_bytes(stage_parameters(self.model, layers), self.precision)
        kept = self.kept_bytes(kind, layers, sequences)
        return {**parts, "activations": kept * in_flight, "context": context_bytes(kind)}

    def kept_bytes(
        self,
        kind: DeviceKind,
        layers: Sequence[int],
        sequences: int,
        tp: int = 1,
        recompute: Recompute = Recompute.NONE,
    ) -> float:
        """Bytes that one rank keeps of a microbatch from its forward through `layers` to its backward."""
        shape = (sequences, self.tokens_per_sequence, kind, self.profile)
        return sum(
            activation_bytes(self.model, layer, self.precision, *shape, tp=tp, recompute=recompute) for layer in layers
        )

    def link(self, source: Device, target: Device) -> LinkKind | None:
        """The link between two devices, None if messages cannot go both ways."""
        there, back = self.fleet.link(source, target), self.fleet.link(target, source)
        if there is None or back is None:
            return None
        return there if there.bandwidth_bytes_per_s <= back.bandwidth_bytes_per_s else back

    def boundary_bytes(self, sequences: int, num_tokens: int | None = None) -> float:
        """Bytes of one message between stages; all tokens of its sequences unless `num_tokens` is given."""
        return boundary_bytes(self.model, self.precision, sequences, num_tokens or self.tokens_per_sequence)
