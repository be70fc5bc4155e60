"""Real runs on token files and on a dataset: the same losses under every plan, and clear ends when data goes away."""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from small_run import inputs, pipeline, tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers

from polyreme.errors import InputError
from polyreme.specs.fields import ScheduleName
from polyreme.specs.io import save
from polyreme.specs.job import Data, HuggingFaceData, TokenData
from polyreme.training.run import StepMetrics, run
from polyreme.training.runnable import Inputs

ONE_F_ONE_B = ScheduleName.ONE_F_ONE_B


def write_tokens(folder: Path, highest: int = 255) -> TokenData:
    """Files of different lengths, so that some sequences are short."""
    folder.mkdir()
    for number, size in enumerate((100, 333, 41)):
        ids = (np.arange(size) * (number + 3)) % (highest + 1)
        (folder / f"{number}.bin").write_bytes(ids.astype("<u2").tobytes())
    return TokenData(paths=(str(folder),))


def write_dataset(folder: Path) -> HuggingFaceData:
    rows = [[(place * number) % 256 for place in range(2 + 3 * number)] for number in range(1, 20)]
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"input_ids": rows}).save_to_disk(str(folder))
    return HuggingFaceData(dataset=str(folder), column="input_ids")


def given(data: Data, cuts: list[int], **changes: object) -> Inputs:
    return inputs([pipeline("a", cuts, 4, ONE_F_ONE_B)], data, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("write", [write_tokens, write_dataset], ids=["tokens", "huggingface"])
def test_every_plan_gives_the_same_losses(write: object, tmp_path: Path) -> None:
    data = write(tmp_path / "data")  # type: ignore[operator]
    runs = [run(given(data, cuts, steps=3), tmp_path / f"run-{len(cuts)}") for cuts in ([], [2, 4])]
    losses = [[step.loss for step in result.steps] for result in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert [step.tokens for step in runs[0].steps] == [step.tokens for step in runs[1].steps]
    environments = [json.loads((result.run_dir / "environment.json").read_text("utf-8")) for result in runs]
    assert environments[0]["data_digest"] == environments[1]["data_digest"]


@pytest.mark.parametrize("change", ["gone", "shorter"])
def test_data_that_changes_ends_the_run_with_its_name_and_no_traceback(change: str, tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "data")

    def damage(metrics: StepMetrics) -> None:
        for path in (tmp_path / "data").iterdir():
            if change == "gone":
                path.unlink()
            else:
                path.write_bytes(b"\1\0" * 9)

    with pytest.raises(InputError) as caught:
        run(given(data, [2, 4], steps=2000), tmp_path / "run", damage, save_weights=False)
    text = str(caught.value)
    assert ("cannot be read: No such file" if change == "gone" else "bytes when it was opened and has 18 now") in text
    assert ".bin" in text
    assert "Traceback" not in text
    assert "InputError" not in text
    assert json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))["exit_code"] == 2


def test_an_id_outside_the_vocabulary_ends_the_run_with_its_place(tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "data", highest=256)
    with pytest.raises(InputError, match=r"\d\.bin: token \d+ \(byte \d+\) is 256; the model has vocab_size 256"):
        run(given(data, [3], steps=50), tmp_path / "run", save_weights=False)


def test_a_tokenized_dataset_is_trained_on_by_the_command(tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate(["[UNK]", "the", "oar", "galley", "bank", "stroke"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106 - not a secret
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines = [" ".join(list(words)[1 + (n * k) % 5] for k in range(n % 40 + 2)) for n in range(60)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = given(HuggingFaceData(files=("a.txt",), tokenizer="tokenizer.json"), [2, 4], steps=3)
    save(tmp_path / "job.json", whole.job)
    save(tmp_path / "model.json", tiny_model())
    save(tmp_path / "cluster.json", whole.cluster)
    environment = os.environ | {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "polyreme", "train", "job.json", "--json"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "cache" / "datasets" / "polyreme").glob("*.arrow"))) == 1
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert len((run_dir / "metrics.jsonl").read_text("utf-8").splitlines()) == 3
    assert not any("tokenizing" in path.read_text("utf-8") for path in (run_dir / "logs").iterdir())
