"""What a worker reads of a step: the same bytes under every plan."""

from pathlib import Path

import torch
from small_run import NUM_TOKENS, inputs, pipeline, write_text
from torch import Tensor

from polyreme.layout.instances import stages_of
from polyreme.models.llama import IGNORED_LABEL
from polyreme.specs.fields import ScheduleName
from polyreme.specs.plan import Pipeline
from polyreme.training.batches import StepBatch, shares_of
from polyreme.training.corpus import open_corpus

STEP = 3


def whole_batch(pipelines: list[Pipeline], tmp_path: Path) -> tuple[Tensor, Tensor, int]:
    """(tokens, labels) that all workers of the plan's first stages read together, and the tokens said to count."""
    given = inputs(pipelines, write_text(tmp_path / "text"))
    corpus = open_corpus(given.job.data, given.base)
    tokens, labels = [], []
    by_place: dict[str, list[tuple[int, StepBatch]]] = {}
    for rank in range(len(given.plan.workers)):
        for instance, stage in stages_of(given.plan, rank):
            if stage == 0:
                batch = StepBatch(corpus, given.job.seed, STEP, given.plan.batch, shares_of(given.plan, rank))
                by_place.setdefault(instance.name, []).append((instance.pipeline.microbatches, batch))
    for name, batches in by_place.items():
        for microbatch in range(batches[0][0]):
            tokens += [batch.tokens((name, 0), microbatch) for _, batch in batches]
            labels += [batch.labels((name, 0), microbatch) for _, batch in batches]
    sequences = given.plan.batch.sequences
    return torch.cat(tokens), torch.cat(labels), corpus.count_targets(given.job.seed, STEP, sequences, NUM_TOKENS)


def test_every_plan_reads_the_same_batch(tmp_path: Path) -> None:
    one_by_one = ScheduleName.ONE_F_ONE_B
    plain = whole_batch([pipeline("a", [], 1, one_by_one, microbatch_sequences=12)], tmp_path)
    others = [
        [pipeline("a", [2, 4], 6, ScheduleName.GPIPE)],
        [pipeline("a", [3], 3, one_by_one, microbatch_sequences=4, groups=[[(3, 1), (1, 1)], [(4, 1)]])],
        [
            pipeline("a", [3], 4, one_by_one),
            pipeline("b", [2, 4], 4, one_by_one, base=2, microbatch_sequences=1),
        ],
    ]
    for pipelines in others:
        tokens, labels, targets = whole_batch(pipelines, tmp_path)
        assert torch.equal(tokens, plain[0])
        assert torch.equal(labels, plain[1])
        assert targets == plain[2]


def test_labels_that_count_are_the_next_tokens_and_as_many_as_the_loss_is_divided_by(tmp_path: Path) -> None:
    tokens, labels, targets = whole_batch([pipeline("a", [], 6, ScheduleName.GPIPE)], tmp_path)
    counted = labels != IGNORED_LABEL
    assert int(counted.sum()) == targets
    assert not torch.all(counted), "the batch was meant to be ragged"
    follows = counted[:, 1:]
    assert torch.equal(labels[:, :-1][follows], tokens[:, 1:][follows])
    assert torch.all(tokens[~counted] == 0)
