"""Secrets never reach a run folder."""

import pytest

from polyreme.training.redact import HIDDEN, redact


def test_secrets_are_hidden_and_everything_else_is_kept() -> None:
    data = {
        "password": "x",
        "nested": [{"API_KEY": "y", "hf_token": "z"}, "s3://user:pass@host/path"],
        "command": ["polyreme", "--auth-token=abc", "--job", "job.yaml"],
        "tokens_per_sequence": 128,
        "eos_token": 2,
        "tokenizer": "t.json",
    }
    assert redact(data) == {
        "password": HIDDEN,
        "nested": [{"API_KEY": HIDDEN, "hf_token": HIDDEN}, f"s3://{HIDDEN}@host/path"],
        "command": ["polyreme", f"--auth-token={HIDDEN}", "--job", "job.yaml"],
        "tokens_per_sequence": 128,
        "eos_token": 2,
        "tokenizer": "t.json",
    }


@pytest.mark.parametrize(
    "command",
    [
        ["polyreme", "--auth-token", "abc123"],
        ["polyreme", "--password", "abc123", "--job", "job.yaml"],
        ["polyreme", "--api-key=abc123"],
        ["polyreme", "HF_TOKEN=abc123"],
        ["polyreme", "--data", "https://abc123@host/x"],
        ["polyreme", "--data", "https://host/x?token=abc123&page=2"],
        ["polyreme", "first line\ntoken=abc123\nlast line"],
        ["polyreme", "--header", "Authorization: Bearer abc123"],
    ],
    ids=" ".join,
)
def test_a_secret_in_a_command_is_hidden_however_it_is_given(command: list[str]) -> None:
    assert "abc123" not in " ".join(redact(command))
    assert redact(command)[0] == "polyreme"


@pytest.mark.parametrize("key", ["private_key", "access_key", "secretAccessKey", "auth_token", "db_passwd", "apikey"])
def test_values_of_secret_looking_keys_are_hidden(key: str) -> None:
    assert redact({key: "x"}) == {key: HIDDEN}


def test_words_that_only_resemble_secrets_are_kept() -> None:
    command = ["polyreme", "train", "--tokens-per-sequence", "128", "--tokenizer", "bytes", "plan.json"]
    assert redact(command) == command
