"""Which sources a job's data settings give."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyreme.errors import InputError
from polyreme.specs.job import Batch, Data, Evaluation, HuggingFaceData, JobSpec, TextData, TokenData
from polyreme.training.data import JobData, open_data, vocabulary_problems
from polyreme.training.source import DataSource

NUM_TOKENS = 10
TOO_SMALL = "byte-level text needs vocab_size >= 256, the model has 9"
TOKENS = TokenData(paths=("a.npy",))


def job(data: Data, sequences: int = 0, other: Data | None = None) -> JobSpec:
    evaluation = Evaluation(every_steps=5, sequences=sequences, data=other) if sequences else None
    batch = Batch(sequences=4, tokens_per_sequence=NUM_TOKENS)
    return JobSpec(name="j", model="m", cluster="c", batch=batch, data=data, evaluation=evaluation)


def opened(folder: Path, *settings: Any) -> JobData:
    return open_data(job(*settings), folder, 1000)


def ids(source: DataSource, num_sequences: int) -> set[int]:
    read = [source.read_sequence(0, 0, s, num_sequences, NUM_TOKENS) for s in range(num_sequences)]
    assert source.count_targets(0, 0, num_sequences, NUM_TOKENS) == sum(max(len(r) - 1, 0) for r in read)
    return {int(token) for sequence in read for token in sequence}


def test_without_evaluation_all_is_trained_on(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(201))
    found = opened(tmp_path, TOKENS)
    assert found.evaluation is None
    assert ids(found.training, 20) == set(range(201))


def test_by_default_the_end_is_evaluated_and_never_trained_on(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(201))
    found = opened(tmp_path, TOKENS, 5)
    assert found.evaluation is not None
    assert ids(found.evaluation, 5) == set(range(150, 201))
    assert ids(found.training, 15) == set(range(150))
    assert ids(found.evaluation, 8) == set(range(150, 201)), "what lies behind the last is empty"


def test_other_data_is_evaluated_whole_or_spread_over_it(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(201))
    np.save(tmp_path / "b.npy", np.arange(500, 801))
    other = TokenData(paths=("b.npy",))
    found = opened(tmp_path, TOKENS, 3, other)
    assert found.evaluation is not None
    assert ids(found.training, 20) == set(range(201))
    assert ids(found.evaluation, 3) < set(range(500, 801))
    assert len(ids(found.evaluation, 3)) > 30
    with pytest.raises(InputError, match=r"b\.npy: evaluation\.data: holds 30 sequences, evaluation\.sequences are 31"):
        opened(tmp_path, TOKENS, 31, other)
    with pytest.raises(InputError, match=r"evaluation\.data\.paths\[0\]: .*c\.npy does not exist"):
        opened(tmp_path, TOKENS, 1, TokenData(paths=("c.npy",)))


def test_a_process_that_finds_other_files_is_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("some text", encoding="utf-8")
    data = TextData(paths=(".",))
    inventory = opened(tmp_path, data).inventory
    opened(tmp_path, data).check_unchanged(inventory)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(InputError, match="files have come, gone or changed"):
        opened(tmp_path, data).check_unchanged(inventory)


def test_a_step_without_anything_to_predict_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\nx\n\n", encoding="utf-8")
    found = opened(tmp_path, HuggingFaceData(files=("a.txt",), tokenizer="bytes"))
    with pytest.raises(InputError, match=r"a\.txt: none of the 4 sequences of step 3 has a token to predict"):
        found.training.count_targets(0, 3, 4, NUM_TOKENS)


@pytest.mark.parametrize(
    ("settings", "vocab_size", "expected"),
    [
        ((TextData(),), 255, ["byte-level text needs vocab_size >= 256, the model has 255"]),
        ((TextData(),), 256, []),
        ((TOKENS,), 2, []),
        ((TokenData(paths=("a",), eos_token=7),), 7, ["eos_token 7 needs vocab_size >= 8, the model has 7"]),
        ((HuggingFaceData(dataset="d"),), 2, []),
        ((HuggingFaceData(dataset="d", tokenizer="bytes"),), 9, [TOO_SMALL]),
        ((TOKENS, 1, TextData()), 9, [TOO_SMALL]),
    ],
)
def test_a_vocabulary_that_is_too_small_for_the_data_is_named(
    settings: Any, vocab_size: int, expected: list[str]
) -> None:
    assert vocabulary_problems(job(*settings), vocab_size) == expected


def test_opening_data_loads_no_framework_and_no_dataset_library() -> None:
    code = "import sys, polyreme.training.data\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not set(result.stdout.split()) & {"torch", "datasets", "pyarrow", "tokenizers"}
