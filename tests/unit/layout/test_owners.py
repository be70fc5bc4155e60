"""Atoms cover every parameter exactly once, buckets name the right owners, transfers cover every sequence once."""

import itertools
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polyreme.layout.boundaries import Box, boxes, transfers
from polyreme.layout.instances import instances, stages_of
from polyreme.layout.layers import num_layers, parameter_count, parameters
from polyreme.layout.owners import Atom, atoms, buckets, holders, interval, shards
from polyreme.specs.fields import Precision, ScheduleName
from polyreme.specs.job import Batch
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import Group, Inputs, Pipeline, Plan, Predicted, Schedule, Stage, StageTime

LLAMA = ModelSpec(
    name="llama",
    family=ModelFamily.LLAMA,
    num_layers=3,
    hidden_size=24,
    num_heads=4,
    num_kv_heads=2,
    ffn_hidden_size=40,
    vocab_size=30,
    tied_embedding=True,
)
GPT = ModelSpec(
    name="gpt",
    family=ModelFamily.GPT,
    num_layers=3,
    hidden_size=24,
    num_heads=4,
    ffn_hidden_size=96,
    vocab_size=31,
    max_sequence_length=16,
)
MODELS = st.sampled_from([LLAMA, GPT])


@st.composite
def plans(draw: Any) -> Plan:
    """Plans of a five-layer model: pipelines of unequal depth, groups of unequal tp, cp and share."""
    pipelines, base, total = [], 0, 0
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        sequences, width, stages = draw(st.integers(1, 6)), 0, []
        cuts = [0, *sorted(draw(st.sets(st.integers(1, 4), max_size=3))), 5]
        for start, stop in itertools.pairwise(cuts):
            shares = [0, *sorted(draw(st.sets(st.integers(1, sequences), max_size=3)) - {sequences}), sequences]
            groups = []
            for first, last in itertools.pairwise(shares):
                tp, cp = draw(st.integers(1, 4)), draw(st.integers(1, 2))
                ranks = tuple(range(width, width + tp * cp))
                groups.append(Group(ranks=ranks, tp=tp, cp=cp, sequences=last - first))
                width += tp * cp
            time = StageTime(f=1, i=1, w=1)
            stages.append(Stage(layers=(start, stop), groups=tuple(groups), precision=Precision.FP32, time_s=time))
        copies, microbatches = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        pipelines.append(
            Pipeline(
                name=name,
                microbatches=microbatches,
                microbatch_sequences=sequences,
                base_ranks=tuple(base + copy * width for copy in range(copies)),
                schedule=Schedule(name=ScheduleName.GPIPE),
                stages=tuple(stages),
            )
        )
        base += copies * width
        total += copies * microbatches * sequences
    return Plan(
        created_by="test",
        inputs=Inputs(model="m", cluster="c", job="j"),
        batch=Batch(sequences=total, tokens_per_sequence=8),
        workers=tuple(f"w{rank}" for rank in range(base)),
        pipelines=tuple(pipelines),
        predicted=Predicted(step_time_s=(1, 1, 1)),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), model=MODELS)
def test_atoms_cover_every_parameter_exactly_once(plan: Plan, model: ModelSpec) -> None:
    shapes = {p.name: p for layer in range(num_layers(model)) for p in parameters(model, layer)}
    by_name: dict[str, list[Atom]] = defaultdict(list)
    for atom in atoms(plan, model):
        by_name[atom.shard.parameter].append(atom)
    assert set(by_name) == set(shapes)
    for name, members in by_name.items():
        length = shapes[name].shape[shapes[name].tp_dim or 0]
        assert sorted(i for a in members for i in range(a.shard.start, a.shard.stop)) == list(range(length))
        assert all(atom.owners for atom in members)
    assert sum(atom.num_elements for atom in atoms(plan, model)) == parameter_count(model)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), model=MODELS)
def test_a_rank_owns_the_atoms_of_its_own_layers_and_shards_and_no_others(plan: Plan, model: ModelSpec) -> None:
    held = holders(plan, model)
    owned: Counter[int] = Counter()
    for atom in atoms(plan, model):
        for rank in atom.owners:
            owned[rank] += atom.num_elements
        for rank, parts in held[atom.shard.parameter].items():
            inside = [part for part in parts if part.start <= atom.shard.start < part.stop]
            assert len(inside) == (rank in atom.owners)
            assert all(atom.shard.stop <= part.stop for part in inside)
    for rank in range(len(plan.workers)):
        ((instance, index),) = stages_of(plan, rank)
        stage = instance.pipeline.stages[index]
        group, ranks = next(pair for pair in instance.groups(index) if rank in pair[1])
        part = ranks.index(rank) % group.tp
        layers = [p for layer in range(*stage.layers) for p in parameters(model, layer)]
        expected = 0
        for parameter in {p.name: p for p in layers}.values():
            lengths = [each.stop - each.start for each in shards(parameter, group.tp, part)]
            expected += parameter.num_elements // parameter.length * sum(lengths)
        assert owned[rank] == expected


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), model=MODELS)
def test_buckets_hold_exactly_the_shared_atoms_by_owners(plan: Plan, model: ModelSpec) -> None:
    found = buckets(plan, model)
    assert len({bucket.owners for bucket in found}) == len(found)
    assert all(atom.owners == bucket.owners for bucket in found for atom in bucket.atoms)
    shared = [atom for atom in atoms(plan, model) if len(atom.owners) > 1]
    assert sorted(map(repr, shared)) == sorted(repr(atom) for bucket in found for atom in bucket.atoms)
    assert sum(bucket.num_elements for bucket in found) == sum(atom.num_elements for atom in shared)


@given(model=MODELS, tp=st.integers(1, 4))
def test_shards_cut_whole_heads_and_cover_every_parameter_once(model: ModelSpec, tp: int) -> None:
    for layer in range(num_layers(model)):
        for parameter in parameters(model, layer):
            held = [part for index in range(tp) for part in shards(parameter, tp, index)]
            elements = sorted(i for part in held for i in range(part.start, part.stop))
            assert elements == sorted(list(range(parameter.length)) * (tp if parameter.tp_dim is None else 1))
    shared = model.num_heads // model.kv_heads
    query, key_value = model.num_heads * model.head_width, model.kv_heads * model.head_width
    name = "attn.c_attn.weight" if model is GPT else "self_attn.q_proj.weight"
    (attention,) = [p for p in parameters(model, 1) if p.name.endswith(name)]
    tp = min(tp, model.kv_heads)
    for index in range(tp):
        parts = shards(attention, tp, index)
        assert (parts[0].stop - parts[0].start) % (shared * model.head_width) == 0
        if model is GPT and tp > 1:
            lengths = [part.stop - part.start for part in parts]
            assert lengths == [lengths[1] * shared, lengths[1], lengths[1]]
            assert [part.start for part in parts[1:]] == [
                query + parts[0].start // shared,
                query + key_value + parts[0].start // shared,
            ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), num_tokens=st.integers(1, 9))
def test_transfers_cover_each_token_of_each_sequence_exactly_once(plan: Plan, num_tokens: int) -> None:
    for instance in instances(plan):
        sequences = instance.pipeline.microbatch_sequences
        every = sorted((number, token) for number in range(sequences) for token in range(num_tokens))
        for stage in range(instance.num_stages - 1):
            crossing = transfers(instance, stage, num_tokens)
            assert sorted(point for transfer in crossing for point in points(transfer.box)) == every
            for side, ends in ((stage, [t.source for t in crossing]), (stage + 1, [t.target for t in crossing])):
                held = boxes(instance, side, num_tokens)
                for rank in instance.ranks(side):
                    moved = [p for end, t in zip(ends, crossing, strict=True) if end == rank for p in points(t.box)]
                    assert sorted(moved) == points(held[rank])
            for group, ranks in instance.groups(stage):
                assert (
                    sum(box.num_tokens for rank, box in boxes(instance, stage, num_tokens).items() if rank in ranks)
                    == num_tokens
                )
                assert {boxes(instance, stage, num_tokens)[rank].num_sequences for rank in ranks} == {group.sequences}


def points(box: Box) -> list[tuple[int, int]]:
    return sorted(itertools.product(range(box.start, box.stop), range(box.first_token, box.last_token)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans())
def test_instances_share_the_batch_without_gap_or_overlap(plan: Plan) -> None:
    next_sequence = 0
    for instance in instances(plan):
        assert instance.first_sequence == next_sequence
        next_sequence += instance.pipeline.microbatches * instance.pipeline.microbatch_sequences
    assert next_sequence == plan.batch.sequences


@given(size=st.integers(0, 1000), parts=st.integers(1, 20))
def test_intervals_cut_a_length_into_parts_that_differ_by_at_most_one(size: int, parts: int) -> None:
    cuts = [interval(size, parts, index) for index in range(parts)]
    assert [i for start, stop in cuts for i in range(start, stop)] == list(range(size))
    lengths = [stop - start for start, stop in cuts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
