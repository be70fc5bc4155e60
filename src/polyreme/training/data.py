"""Opens what a job trains and evaluates on. No torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from polyreme.errors import InputError
from polyreme.specs.job import Data, HuggingFaceData, JobSpec, TextData, TokenData
from polyreme.training.corpus import MIN_VOCAB, Corpus, FixedWindows, open_corpus
from polyreme.training.huggingface import BYTES, open_dataset
from polyreme.training.order import Fixed, Rows, Shuffled
from polyreme.training.source import DataSource
from polyreme.training.token_files import open_token_files


@dataclass(frozen=True, slots=True)
class JobData:
    """`evaluation` holds the job's `evaluation.sequences`, none of which `training` draws unless the job names them."""

    training: DataSource
    evaluation: DataSource | None

    @property
    def inventory(self) -> str:
        """What was found, without reading it, 32 hex digits."""
        found = [source.inventory for source in (self.training, self.evaluation) if source is not None]
        return hashlib.sha256("\0".join(found).encode(errors="surrogateescape")).hexdigest()[:32]

    def check_unchanged(self, inventory: str) -> None:
        """InputError if what was found is not what another process has found."""
        if inventory != self.inventory:
            problem = "is not what it was when the run started: files have come, gone or changed their size"
            raise InputError.single("job", problem, path="data", fix="train again, and leave the data alone meanwhile")


def open_data(job: JobSpec, base: Path, vocab_size: int) -> JobData:
    """Both sources of a job, paths relative to `base`. InputError if something is missing, unreadable or too little."""
    opened = _open(job.data, base, vocab_size, "data")
    wanted, num_tokens = job.evaluation, job.batch.tokens_per_sequence
    if wanted is None:
        return JobData(_training(opened), None)
    if wanted.data is not None:
        held = _open(wanted.data, base, vocab_size, "evaluation.data")
    elif isinstance(opened, Corpus):
        opened, held = opened.hold_out()
    else:
        opened, held = opened.hold_out(wanted.sequences, num_tokens)
    if isinstance(held, Corpus):
        return JobData(_training(opened), FixedWindows(held, wanted.sequences))
    if held.num_rows(num_tokens) < wanted.sequences:
        problem = f"holds {held.num_rows(num_tokens)} sequences, evaluation.sequences are {wanted.sequences}"
        raise InputError.single(held.name, problem, path="evaluation.data", fix="evaluate fewer, or give more data")
    return JobData(_training(opened), Fixed(held, wanted.sequences))


def vocabulary_problems(job: JobSpec, vocab_size: int) -> list[str]:
    """What is wrong with a model's vocabulary for the job's data, as far as the job alone can tell."""
    return [
        f"{what} needs vocab_size >= {least}, the model has {vocab_size}"
        for data in (job.data, job.evaluation.data if job.evaluation else None)
        if data is not None
        for what, least in [_least_vocab(data)]
        if vocab_size < least
    ]


def _least_vocab(data: Data) -> tuple[str, int]:
    if isinstance(data, TokenData):
        return f"eos_token {data.eos_token}", (data.eos_token or 0) + 1
    if isinstance(data, HuggingFaceData) and data.tokenizer != BYTES:
        return "a dataset", 1
    return "byte-level text", MIN_VOCAB


def _open(data: Data, base: Path, vocab_size: int, field_name: str) -> Corpus | Rows:
    if isinstance(data, TextData):
        return open_corpus(data, base, field_name)
    if isinstance(data, TokenData):
        return open_token_files(data, base, vocab_size, field_name)
    return open_dataset(data, base, vocab_size, field_name)


def _training(opened: Corpus | Rows) -> DataSource:
    return opened if isinstance(opened, Corpus) else Shuffled(opened)
