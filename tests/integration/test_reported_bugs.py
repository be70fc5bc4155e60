"""Bugs that users of other pipeline runtimes have reported, each as a test of this one. Numbers are their threads.

Those that are whole files of tests elsewhere: clipping that ignores other stages (torchtitan 596, pytorch 162638) in
gradient_rule, which checks the norm of every plan; tied weights that drift (Megatron-LM 656, nanotron 101) in
test_training; messages of another dtype or size, and waiting for the last of several only (pytorch 165143, 132644) in
test_transports; sums in 16 bit over gloo (pytorch 162338, 111131) in test_gradients. Compiled modules (pytorch 161904)
and accelerators (FlagCX 249, NCCL 794) are not there yet.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gradient_rule import run_case
from small_run import NUM_LAYERS, inputs, pipeline, tiny_model, write_text
from torch import Tensor, nn

from polyreme.adapters.split_backward import WeightGradients, split_linears
from polyreme.adapters.torch_stage import TorchStage
from polyreme.drivers.base import MemoryLedger
from polyreme.errors import InputError
from polyreme.layout.owners import buckets
from polyreme.models.build import StageLayers
from polyreme.schedules.lower import lower
from polyreme.schedules.validate import validate
from polyreme.specs.fields import Precision, Recompute, ScheduleName
from polyreme.specs.job import TextData
from polyreme.training.run import run

FP64 = Precision.FP64
ONE_F_ONE_B, ZB_H2 = ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H2


class TwiceUsed(nn.Module):
    """One matrix on a path twice."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(6, 6)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.matrix(torch.tanh(self.matrix(value)))
        return out


class Chunked(nn.Module):
    """A matrix whose output is cut in parts that go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(6, 18, bias=False)
        self.norm = nn.LayerNorm(6)

    def forward(self, value: Tensor) -> Tensor:
        one, two, three = self.joined(self.norm(value)).chunk(3, dim=-1)
        return one * torch.sigmoid(two) + three[..., :1]


class Skipping(nn.Module):
    """A value that goes around the matrices, and a matrix that is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.second(torch.relu(self.first(value)) + value)
        return out


Gradients = list[Tensor | None]


def gradients_of(module: nn.Module, values: list[Tensor], order: str) -> tuple[Gradients, Gradients]:
    """(gradients of inputs, of parameters): by autograd alone, with the halves apart, or both halves at once."""
    queue = WeightGradients()
    if order != "plain":
        split_linears(module, queue)
    inputs_ = [value.clone().requires_grad_() for value in values]
    outputs = [module(value) for value in inputs_]
    deferred: list[list[Callable[[], None]]] = []
    for output in outputs:
        kept: list[Callable[[], None]] = []
        queue.deferred = kept if order == "split" else None
        output.square().sum().backward()
        deferred.append(kept)
    for work in reversed(deferred):
        for add in work:
            add()
    return [value.grad for value in inputs_], [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("order", ["split", "whole"])
@pytest.mark.parametrize("kind", [TwiceUsed, Chunked, Skipping])
def test_split_gradients_of_unusual_graphs_equal_autograd(kind: type[nn.Module], order: str) -> None:
    """pytorch 180952: a parameter used twice counted twice; 170277: chunk and split wrong in silence; 127964: skips;
    139404: only the last microbatch's gradient kept."""
    torch.manual_seed(0)
    plain, split = kind().double(), kind().double()
    split.load_state_dict(plain.state_dict())
    values = [torch.randn(2, 3, 6, dtype=torch.float64) for _ in range(3)]
    for due, got in zip(gradients_of(plain, values, "plain"), gradients_of(split, values, order), strict=True):
        for one, other in zip(due, got, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, rtol=1e-12, atol=0)  # type: ignore[arg-type]


def test_a_stage_without_matrices_can_be_split(tmp_path: Path) -> None:
    """zero-bubble 72: pop from an empty queue of weight gradients."""
    run_case([pipeline("a", [1, 5], 4, ScheduleName.ZB_H1, precision=FP64)], tmp_path, FP64)


@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, ScheduleName.ZB_H1, ZB_H2, ScheduleName.LIST])
def test_fewer_microbatches_than_stages_run(schedule: ScheduleName, tmp_path: Path) -> None:
    """torchtitan 775: hangs with fewer microbatches than stages."""
    run_case([pipeline("a", [1, 3, 4], 2, schedule, precision=FP64)], tmp_path, FP64)


def test_gradients_are_per_token_of_the_whole_batch_however_it_is_cut(tmp_path: Path) -> None:
    """torchtitan 2972: gradients too large by the number of tokens; DeepSpeed 7773: summed, not averaged, over
    microbatches; DeepSpeed 5729: labels of another microbatch; pytorch 126600: ragged microbatches."""
    for microbatches, sequences in ((1, 8), (8, 1), (4, 2)):
        one = pipeline("a", [3], microbatches, ONE_F_ONE_B, precision=FP64, microbatch_sequences=sequences)
        run_case([one], tmp_path / str(microbatches), FP64)


def stage_peak(schedule: ScheduleName, microbatches: int, tmp_path: Path) -> int:
    given = inputs([pipeline("a", [2, 4], microbatches, schedule)], write_text(tmp_path / "text"), steps=2)
    run_dir = tmp_path / f"{schedule}-{microbatches}"
    run(given, run_dir, save_weights=False)
    peaks = json.loads((run_dir / "memory.json").read_text())
    return int(peaks["workers"][0]["peak_bytes"]["activations"])


@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, ScheduleName.ZB_H1])
def test_memory_does_not_grow_with_the_number_of_microbatches(schedule: ScheduleName, tmp_path: Path) -> None:
    """pytorch 128910, torchtitan 547, DeepSpeed 4602: activations kept until the step ends."""
    assert stage_peak(schedule, 12, tmp_path) == stage_peak(schedule, 4, tmp_path)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_recompute_keeps_little_and_computes_a_split_backward_once(recompute: Recompute) -> None:
    """pytorch 136766, torchtitan 773: zero bubble with checkpoints runs out of memory and computes again and again."""
    memory = MemoryLedger("here", 1e9)
    layers = StageLayers(tiny_model(), 1, 4, seed=0, recompute=recompute)
    stage = TorchStage(layers, memory, splits=True)
    calls = []
    layers.layers[1].mlp.down_proj.register_forward_pre_hook(lambda *_: calls.append(1))  # type: ignore[operator]
    output = stage.forward(0, torch.randn(2, 8, 32), None)
    held = memory.held_bytes["activations"]
    stage.backward_input(0, torch.ones_like(output))
    stage.backward_weight(0)
    assert len(calls) == (1 if recompute is Recompute.NONE else 2)
    assert memory.held_bytes["activations"] == 0
    block_inputs = 3 * output.numel() * output.element_size()
    assert held == block_inputs if recompute is Recompute.FULL else held > 5 * block_inputs


def test_layers_are_neither_lost_nor_built_twice() -> None:
    """Megatron-LM 1304: 30 layers over 4 stages built 28."""
    whole = pipeline("a", [2, 4], 2, ONE_F_ONE_B)
    first, second, third = whole.stages
    moved = (first, dataclasses.replace(second, layers=(3, 4)), third)
    with pytest.raises(ValueError, match="stage 0 ends at layer 2 but stage 1 starts at 3"):
        dataclasses.replace(whole, stages=moved)
    parts = [StageLayers(tiny_model(), start, stop, seed=0) for start, stop in ((0, 2), (2, 4), (4, NUM_LAYERS))]
    assert sum(len(part.layers) for part in parts) == NUM_LAYERS


def test_the_loss_scale_is_taken_out_before_norm_and_update(tmp_path: Path) -> None:
    """pytorch PR 144352: the place of the scale matters. fp16 trains like fp32, and reports the same norms."""
    data = write_text(tmp_path / "text")
    runs = {}
    for precision in (Precision.FP32, Precision.FP16):
        plan = [pipeline("a", [2, 4], 3, ScheduleName.ZB_H1, precision=precision)]
        result = run(inputs(plan, data, precision=precision, steps=5), tmp_path / precision)
        runs[precision] = result.steps
    for plain, scaled in zip(runs[Precision.FP32], runs[Precision.FP16], strict=True):
        assert scaled.loss == pytest.approx(plain.loss, rel=2e-3)
        assert scaled.gradient_norm == pytest.approx(plain.gradient_norm, rel=2e-2)


def test_groups_are_made_by_all_ranks_in_one_order(tmp_path: Path) -> None:
    """FlagScale PR 203: hangs where one mesh has tensor degree 1; PR 712: a group made by its members only."""
    groups = [[(1, 1), (1, 2)], [(2, 1)], [(2, 2)]]
    run_case([pipeline("a", [2, 4], 2, ONE_F_ONE_B, precision=FP64, groups=groups)], tmp_path, FP64)


def test_a_boundary_whose_ends_disagree_is_found_before_anything_runs() -> None:
    """pytorch 172668, Megatron-LM 5100: receives in another order than sends block for ever."""
    plan = inputs([pipeline("a", [2, 4], 4, ONE_F_ONE_B)], TextData(paths=("none",))).plan
    shared = buckets(plan, tiny_model())
    lists = lower(plan, shared)
    texts = [str(action) for action in lists[1]]
    one, other = texts.index("a.1.RA2"), texts.index("a.1.RA3")
    lists[1][one], lists[1][other] = lists[1][other], lists[1][one]
    assert any("in different orders" in problem or "comes before" in problem for problem in validate(lists))


def test_a_plan_whose_stages_share_a_rank_in_part_is_refused_not_run(tmp_path: Path) -> None:
    """pytorch 188833: a schedule that nobody can follow deadlocks at run time."""
    given = inputs([pipeline("a", [2, 4], 4, ONE_F_ONE_B, places=[0, 1, 0])], write_text(tmp_path / "text"))
    with pytest.raises(InputError, match="1f1b has one stage per worker"):
        run(given, tmp_path / "run")
    assert not (tmp_path / "run").exists()
