"""What is saved loads as it was: every kind of spec, and action lists as text."""

import dataclasses
import tempfile
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyreme.schedules.action import WHOLE_WORKER_OPS, Action, Op, parse_action, parse_actions, print_actions
from polyreme.specs import io
from polyreme.specs.cluster import ClusterSpec, Connection, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Feature, LayerKind, Objective, Precision, Recompute, ScheduleName, Transport
from polyreme.specs.job import (
    AdamW,
    Batch,
    Evaluation,
    HuggingFaceData,
    JobSpec,
    Limits,
    TextData,
    TokenData,
    TokenDtype,
)
from polyreme.specs.model import ModelFamily, ModelSpec
from polyreme.specs.plan import (
    EdgeSetting,
    Group,
    Inputs,
    Pipeline,
    Plan,
    Predicted,
    Schedule,
    Sources,
    Stage,
    StageTime,
)
from polyreme.specs.profile import LayerTiming, ProfileSpec, Spread
from polyreme.specs.report import Report, Span, WorkerReport

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
COUNT = st.integers(1, 10**15)
WHOLE = st.integers(0, 10**15)
POSITIVE = st.floats(0, 1e308, exclude_min=True)
NON_NEGATIVE = st.floats(0, 1e308)
FRACTION = st.floats(0, 1, exclude_min=True)
FIGURES = st.none() | st.dictionaries(st.sampled_from(Precision), POSITIVE, max_size=3)


def listed(of: st.SearchStrategy[Any], *, least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    """Tuples of up to three."""
    return st.lists(of, min_size=least, max_size=3).map(tuple)


LINKS = st.builds(LinkKind, name=TEXT, bandwidth_bytes_per_s=POSITIVE, latency_s=NON_NEGATIVE)
DEVICES = st.builds(
    DeviceKind,
    name=TEXT,
    driver=st.just("cuda"),
    memory_bytes=POSITIVE,
    peak_flops_per_s=FIGURES,
    matmul_flops_per_s=FIGURES,
    link=st.none() | LINKS,
    tdp_w=st.none() | POSITIVE,
    price_usd_per_hour=st.none() | NON_NEGATIVE,
)
ENTRIES = st.builds(
    DeviceEntry, kind=TEXT, count=COUNT, name=st.none() | TEXT, price_usd_per_hour=st.none() | NON_NEGATIVE
)
NODES = st.builds(
    Node,
    name=TEXT,
    devices=listed(ENTRIES, least=1),
    links=st.builds(NodeLinks, intra=st.none() | TEXT, inter=st.none() | TEXT),
    host_memory_bytes=st.none() | POSITIVE,
)
CLUSTERS = st.builds(
    ClusterSpec,
    name=TEXT,
    nodes=listed(NODES, least=1),
    device_kinds=listed(DEVICES),
    link_kinds=listed(LINKS),
    connections=listed(st.builds(Connection, source=TEXT, target=TEXT, link=TEXT, both_ways=st.booleans())),
)
MODELS = st.builds(
    ModelSpec,
    name=TEXT,
    family=st.just(ModelFamily.LLAMA),
    num_layers=COUNT,
    hidden_size=COUNT,
    num_heads=st.integers(1, 64),
    head_size=st.integers(1, 64).map(lambda half: 2 * half),
    ffn_hidden_size=COUNT,
    vocab_size=COUNT,
    max_sequence_length=st.none() | COUNT,
    tied_embedding=st.booleans(),
    rope_theta=POSITIVE,
    rope_scaling=st.none() | TEXT,
    attention_window=st.none() | COUNT,
)
BATCHES = st.builds(Batch, sequences=COUNT, tokens_per_sequence=COUNT)
DATA = (
    st.builds(TextData, paths=listed(TEXT), suffixes=listed(TEXT, least=1))
    | st.builds(TokenData, paths=listed(TEXT, least=1), dtype=st.sampled_from(TokenDtype), eos_token=st.none() | WHOLE)
    | st.builds(HuggingFaceData, dataset=TEXT, config=st.none() | TEXT, split=TEXT, column=TEXT)
    | st.builds(HuggingFaceData, files=listed(TEXT, least=1), tokenizer=st.none() | TEXT)
)
JOBS = st.builds(
    JobSpec,
    name=TEXT,
    model=TEXT,
    cluster=TEXT,
    batch=BATCHES,
    precision=st.sampled_from(Precision),
    objective=st.sampled_from(Objective),
    schedule=st.none() | st.sampled_from(ScheduleName),
    limits=st.builds(Limits, memory_fraction=FRACTION, step_time_s=st.none() | POSITIVE),
    optimizer=st.builds(AdamW, learning_rate=POSITIVE, beta1=FRACTION, weight_decay=NON_NEGATIVE),
    data=DATA,
    evaluation=st.none() | st.builds(Evaluation, every_steps=COUNT, sequences=COUNT, data=st.none() | DATA),
    steps=COUNT,
    seed=WHOLE,
)
TIMES = st.builds(StageTime, f=NON_NEGATIVE, i=NON_NEGATIVE, w=NON_NEGATIVE)
SPREADS = st.lists(NON_NEGATIVE, min_size=3, max_size=3).map(
    lambda times: Spread(p10_s=min(times), median_s=sorted(times)[1], p90_s=max(times), num_samples=len(times))
)
PROFILES = st.builds(
    ProfileSpec,
    created_by=TEXT,
    model=TEXT,
    layers=listed(
        st.builds(
            LayerTiming,
            device=TEXT,
            layer=st.sampled_from(LayerKind),
            precision=st.sampled_from(Precision),
            sequences=COUNT,
            tokens_per_sequence=COUNT,
            forward=SPREADS,
            backward=SPREADS,
            update=SPREADS,
            activation_bytes=WHOLE,
        )
    ),
    provenance=st.dictionaries(TEXT, TEXT, max_size=3),
)
INTERVALS = st.lists(NON_NEGATIVE, min_size=3, max_size=3).map(lambda times: tuple(sorted(times)))
WORKERS = st.builds(
    WorkerReport,
    rank=WHOLE,
    worker=TEXT,
    device=TEXT,
    layers=st.tuples(WHOLE, WHOLE),
    microbatch_time_s=TIMES,
    busy_s=NON_NEGATIVE,
    update_s=NON_NEGATIVE,
    bubble_fraction=NON_NEGATIVE,
    memory_bytes=st.dictionaries(TEXT, NON_NEGATIVE, max_size=3),
    memory_limit_bytes=NON_NEGATIVE,
)
REPORTS = st.builds(
    Report,
    created_by=TEXT,
    plan=TEXT,
    step_time_s=INTERVALS,
    tokens_per_s=NON_NEGATIVE,
    bubble_fraction=NON_NEGATIVE,
    cost_per_step_usd=st.none() | NON_NEGATIVE,
    energy_per_step_j=st.none() | NON_NEGATIVE,
    workers=listed(WORKERS),
    timeline=listed(st.builds(Span, rank=WHOLE, action=TEXT, start_s=NON_NEGATIVE, stop_s=NON_NEGATIVE)),
)


EDGES = st.builds(EdgeSetting, source=st.just(("a", 0)), target=st.just(("a", 1)), transport=st.sampled_from(Transport))


@st.composite
def plans(draw: Any) -> Plan:
    """Plans of one or two pipelines of up to three stages."""
    pipelines, next_rank, total = [], 0, 0
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        sequences, rank, stages = draw(st.integers(2, 5)), 0, []
        num_stages = draw(st.integers(1, 3))
        for index in range(num_stages):
            tp, cp, first = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, sequences))
            groups = []
            for share in (first, sequences - first):
                if share:
                    groups.append(Group(ranks=tuple(range(rank, rank + tp * cp)), tp=tp, cp=cp, sequences=share))
                    rank += tp * cp
            stages.append(
                Stage(
                    layers=(2 * index, 9 if index == num_stages - 1 else 2 * index + 2),
                    groups=tuple(groups),
                    precision=draw(st.sampled_from(Precision)),
                    recompute=draw(st.sampled_from(Recompute)),
                    zero=draw(st.integers(0, 3)),
                    optimizer_at=draw(st.sampled_from(["device", "host", "nvme"])),
                    framework=draw(TEXT),
                    time_s=draw(TIMES),
                )
            )
        copies, microbatches = draw(st.integers(1, 2)), draw(st.integers(1, 9))
        held = tuple(draw(st.integers(1, 9)) for _ in stages)
        schedule = Schedule(name=ScheduleName.LIST, in_flight=draw(st.none() | st.just(held)))
        pipelines.append(
            Pipeline(
                name=name,
                microbatches=microbatches,
                microbatch_sequences=sequences,
                base_ranks=tuple(next_rank + copy * rank for copy in range(copies)),
                schedule=draw(st.sampled_from([*(Schedule(name=known) for known in ScheduleName), schedule])),
                stages=tuple(stages),
            )
        )
        next_rank += copies * rank
        total += copies * microbatches * sequences
    return Plan(
        created_by=draw(TEXT),
        inputs=Inputs(model=draw(TEXT), cluster=draw(TEXT), job=draw(TEXT), profile=draw(st.none() | TEXT)),
        sources=draw(st.none() | st.builds(Sources, model=TEXT, cluster=TEXT, job=TEXT)),
        requires=draw(listed(st.sampled_from(Feature))),
        batch=Batch(sequences=total, tokens_per_sequence=draw(COUNT)),
        workers=tuple(f"w{rank}" for rank in range(next_rank)),
        pipelines=tuple(pipelines),
        edges=draw(listed(EDGES)) if len(pipelines[0].stages) > 1 else (),
        predicted=Predicted(step_time_s=draw(INTERVALS)),
    )


SPECS: dict[str, tuple[st.SearchStrategy[Any], typing.Callable[[Path], Any]]] = {
    "model": (MODELS, io.load_model),
    "cluster": (CLUSTERS, io.load_cluster),
    "job": (JOBS, io.load_job),
    "profile": (PROFILES, io.load_profile),
    "plan": (plans(), io.load_plan),
    "report": (REPORTS, io.load_report),
}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_saved_spec_loads_equal(kind: str, suffix: str, data: st.DataObject) -> None:
    strategy, load = SPECS[kind]
    value = data.draw(strategy)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"spec{suffix}"
        io.save(path, value)
        loaded = load(path)
        text = path.read_text(encoding="utf-8")
        io.save(path, loaded)
        assert path.read_text(encoding="utf-8") == text
    if hasattr(value, "digest"):
        value = dataclasses.replace(value, digest=io.digest(value))
    assert loaded == value


STAGED = st.builds(
    Action,
    st.sampled_from([op for op in Op if op not in WHOLE_WORKER_OPS]),
    st.from_regex(r"\A[A-Za-z0-9_@-]{1,9}\Z"),
    st.integers(0, 10**7 - 1),
    st.integers(0, 10**9 - 1),
)
ACTIONS = (
    STAGED
    | st.sampled_from([Action(Op.STEP), Action(Op.NORM)])
    | st.integers(0, 10**7 - 1).map(lambda bucket: Action(Op.REDUCE, stage=bucket))
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lists=st.dictionaries(st.integers(0, 10**9 - 1), st.lists(ACTIONS, max_size=8), max_size=4))
def test_printed_action_lists_parse_equal(lists: dict[int, list[Action]]) -> None:
    assert parse_actions(print_actions(lists)) == lists


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(max_size=20) | st.from_regex(r"[a-z]\.\d+\.(F|B|SA)\d+", fullmatch=True))
def test_any_text_is_an_action_that_prints_back_or_a_value_error(text: str) -> None:
    try:
        action = parse_action(text)
    except ValueError as error:
        assert len(str(error)) < 200  # noqa: PT017
    else:
        assert parse_action(str(action)) == action
        assert text.isascii()
