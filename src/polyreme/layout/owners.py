"""Who owns which interval of which parameter, and the gradient buckets that follow.

Holders may cut a parameter differently (unequal tp). The union of all cuts gives atoms that no holder cuts further;
atoms with the same owners form one bucket, which one reduction sums.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from polyreme.layout.instances import instances
from polyreme.layout.layers import Parameter, Section, parameters
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Shard:
    """Elements [start, stop) of a parameter along `dim`; the whole parameter if `dim` is None."""

    parameter: str
    dim: int | None
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Atom:
    """A shard that every owner holds uncut, and the ranks that own it."""

    shard: Shard
    num_elements: int
    owners: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Atoms with the same owners, in reverse layer order: the order in which their gradients are ready."""

    owners: tuple[int, ...]
    atoms: tuple[Atom, ...]

    @property
    def num_elements(self) -> int:
        """Elements that a reduction of the bucket sums."""
        return sum(atom.num_elements for atom in self.atoms)


def interval(size: int, parts: int, index: int) -> tuple[int, int]:
    """Part `index` of [0, size) cut in `parts` whose sizes differ by at most one, the larger first."""
    base, extra = divmod(size, parts)
    start = index * base + min(index, extra)
    return start, start + base + (index < extra)


def shards(parameter: Parameter, tp: int, index: int) -> tuple[Shard, ...]:
    """What tensor rank `index` of `tp` holds of a parameter: its part of every section, in order."""
    if parameter.tp_dim is None or tp == 1:
        return (Shard(parameter.name, parameter.tp_dim, 0, parameter.length),)
    found, first = [], 0
    for section in parameter.sections or (Section(parameter.length),):
        start, stop = interval(section.length // section.granule, tp, index)
        found.append(
            Shard(parameter.name, parameter.tp_dim, first + start * section.granule, first + stop * section.granule)
        )
        first += section.length
    return tuple(found)


def holders(plan: Plan, model: ModelSpec) -> dict[str, dict[int, tuple[Shard, ...]]]:
    """Parameter name -> rank -> what it holds. A parameter of two layers is held by the ranks of both."""
    found: dict[str, dict[int, tuple[Shard, ...]]] = defaultdict(dict)
    for instance in instances(plan):
        for index, stage in enumerate(instance.pipeline.stages):
            for layer in range(*stage.layers):
                for parameter in parameters(model, layer):
                    for group, ranks in instance.groups(index):
                        for position, rank in enumerate(ranks):
                            found[parameter.name][rank] = shards(parameter, group.tp, position % group.tp)
    return dict(found)


def atoms(plan: Plan, model: ModelSpec) -> tuple[Atom, ...]:
    """All atoms of a plan, in reverse layer order."""
    held, found = holders(plan, model), []
    by_name = {p.name: p for layer in range(plan.num_layers) for p in parameters(model, layer)}
    for name in reversed(by_name):
        parameter, of_ranks = by_name[name], held[name]
        cuts = sorted({edge for each in of_ranks.values() for shard in each for edge in (shard.start, shard.stop)})
        for start, stop in pairwise(cuts):
            owners = tuple(
                sorted(
                    rank for rank, each in of_ranks.items() if any(s.start <= start and stop <= s.stop for s in each)
                )
            )
            elements = parameter.num_elements * (stop - start) // parameter.length
            found.append(Atom(Shard(name, parameter.tp_dim, start, stop), elements, owners))
    return tuple(found)


def buckets(plan: Plan, model: ModelSpec) -> tuple[Bucket, ...]:
    """Gradient buckets of a plan: only atoms with more than one owner need a reduction."""
    grouped: dict[tuple[int, ...], list[Atom]] = defaultdict(list)
    for atom in atoms(plan, model):
        if len(atom.owners) > 1:
            grouped[atom.owners].append(atom)
    return tuple(Bucket(owners, tuple(members)) for owners, members in grouped.items())
