"""The gradient rule: real pipelines of processes against plain autograd in one process.

Per parameter norm(g - g64) <= 3 max(norm(g1 - g64), eps norm(g64)), g64 and g1 from one process in fp64 and in the
precision of the pipeline, eps of that precision; pipelines in fp64 agree to 1e-10.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from gradient_worker import gradient_main, run_workers
from safetensors.torch import load_file
from small_run import NUM_TOKENS, inputs, write_text
from torch import Tensor

from polyreme.layout.layers import num_layers
from polyreme.layout.owners import holders
from polyreme.models.build import StageLayers, held_part
from polyreme.models.dtypes import DTYPES
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import Precision
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Pipeline
from polyreme.training.corpus import open_corpus
from polyreme.training.runnable import Inputs

Gradients = dict[str, Tensor]
NORM_TOLERANCE = {Precision.FP64: 1e-10, Precision.FP32: 1e-5, Precision.BF16: 3e-2, Precision.FP16: 3e-3}


def in_one_process(given: Inputs, precision: Precision) -> Gradients:
    """The oracle: the whole model, the whole batch, one loss divided by the tokens that count."""
    job, plan = given.job, given.plan
    layers = StageLayers(given.model, 0, num_layers(given.model), job.seed, DTYPES[precision])
    corpus = open_corpus(job.data, given.base)
    tokens = torch.zeros((plan.batch.sequences, NUM_TOKENS), dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED_LABEL)
    for row in range(plan.batch.sequences):
        window = corpus.window(job.seed, 0, row, NUM_TOKENS)
        content = list(corpus.read(window))
        tokens[row, : len(content) - 1] = torch.tensor(content[:-1])
        labels[row, : len(content) - 1] = torch.tensor(content[1:])
    (layers(tokens, labels) / int((labels != IGNORED_LABEL).sum())).backward()
    return {name: parameter.grad for name, parameter in layers.named.items() if parameter.grad is not None}


def in_a_pipeline(given: Inputs, run_dir: Path) -> list[Gradients]:
    """Gradients that each rank holds after one step of real worker processes."""
    run_workers(given, run_dir, gradient_main)
    return [load_file(run_dir / f"gradients-{rank}.safetensors") for rank in range(len(given.plan.workers))]


def check(given: Inputs, run_dir: Path) -> None:
    """Every parameter is held by some rank, every holder's gradient meets the rule, and all know the same norm."""
    exact = in_one_process(given, Precision.FP64)
    single = in_one_process(given, given.job.precision)
    norm = sum(float(gradient.square().sum()) for gradient in exact.values()) ** 0.5
    held = in_a_pipeline(given, run_dir)
    parts = holders(given.plan, given.model)
    norms = [gradients.pop("norm").item() for gradients in held]
    assert len(set(norms)) == 1
    assert norms[0] == pytest.approx(norm, rel=NORM_TOLERANCE[given.job.precision])
    assert set().union(*held) == set(exact)
    for rank, gradients in enumerate(held):
        for name, gradient in gradients.items():
            due, plain = (held_part(whole[name], parts[name][rank]) for whole in (exact, single))
            error = (gradient.double() - due).norm()
            if given.job.precision is Precision.FP64:
                assert error <= 1e-10 * due.norm(), (rank, name)
            else:
                eps = torch.finfo(DTYPES[given.job.precision]).eps
                allowed = 3 * max((plain.double() - due).norm(), eps * due.norm())
                assert error <= allowed, (rank, name, float(error), float(allowed))


def run_case(
    pipelines: Sequence[Pipeline],
    tmp_path: Path,
    precision: Precision,
    *,
    tied: bool = False,
    model: ModelSpec | None = None,
) -> None:
    """One plan through both."""
    data = write_text(tmp_path / "text")
    check(inputs(pipelines, data, precision=precision, tied=tied, model=model), tmp_path / "run")
