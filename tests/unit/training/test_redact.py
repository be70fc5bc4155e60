"""Secrets never reach a run folder."""

from polyreme.training.redact import HIDDEN, redact


def test_secrets_are_hidden_and_everything_else_is_kept() -> None:
    data = {
        "password": "x",
        "nested": [{"API_KEY": "y", "hf_token": "z"}, "s3://user:pass@host/path"],
        "command": ["polyreme", "--auth-token=abc", "--job", "job.yaml"],
        "tokens_per_sequence": 128,
    }
    assert redact(data) == {
        "password": HIDDEN,
        "nested": [{"API_KEY": HIDDEN, "hf_token": HIDDEN}, f"s3://{HIDDEN}@host/path"],
        "command": ["polyreme", f"--auth-token={HIDDEN}", "--job", "job.yaml"],
        "tokens_per_sequence": 128,
    }
