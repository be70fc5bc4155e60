"""The folder of a run, and what is written into it before anything starts and after it has ended. No torch."""

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polyreme import __version__
from polyreme.errors import InputError
from polyreme.runtime.launch import usable_cores
from polyreme.specs.io import save, to_data, write_atomically
from polyreme.specs.model import ModelFamily
from polyreme.training.data import JobData
from polyreme.training.redact import redact
from polyreme.training.runnable import Inputs
from polyreme.training.weights import INDEX_FILE, huggingface_config, weight_index


def new_run_dir(parent: Path, name: str) -> Path:
    """A run folder that does not exist yet: `<time>-<name>`."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{''.join(c if c.isalnum() or c in '-_' else '-' for c in name)}"
    for number in range(1, 1000):
        candidate = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError.single(str(parent), f"cannot be written: {error.strerror}", fix="use --runs") from None
        return candidate
    raise InputError.single(str(parent), f"holds a thousand runs called {stem}", fix="remove some")


def write_inputs(inputs: Inputs, run_dir: Path, data: JobData) -> None:
    """Everything that the run is made from, secrets taken out, before anything starts."""
    for folder in ("logs", "events"):
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
    config = redact(to_data(replace(inputs.job, model="model.json", cluster="cluster.json")))
    write_atomically(run_dir / "config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
    save(run_dir / "model.json", inputs.model)
    save(run_dir / "cluster.json", inputs.cluster)
    save(run_dir / "plan.json", inputs.plan)
    if inputs.profile is not None:
        save(run_dir / "profile.json", inputs.profile)
    if inputs.prediction is not None:
        save(run_dir / "prediction.json", inputs.prediction)
    environment = {
        "polyreme": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "seed": inputs.job.seed,
        "data_digest": data.training.digest,
        "evaluation_digest": data.evaluation.digest if data.evaluation is not None else None,
        "started_unix_s": time.time(),
        "command": redact(_command(sys.argv)),
    }
    write_atomically(run_dir / "environment.json", json.dumps(environment, indent=1, sort_keys=True) + "\n")


def _command(arguments: Sequence[str]) -> list[str]:
    return [Path(arguments[0]).name, *arguments[1:]] if arguments else []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def write_weight_index(inputs: Inputs, run_dir: Path) -> None:
    """The files that make what the workers wrote one checkpoint: the index and, if it has one, a config.json."""
    index = weight_index(inputs.plan, inputs.model, inputs.job.precision)
    write_atomically(run_dir / "weights" / INDEX_FILE, json.dumps(index, indent=1, sort_keys=True) + "\n")
    if inputs.model.family is ModelFamily.BLOCKS:
        return
    config = huggingface_config(inputs.model, inputs.job.precision)
    write_atomically(run_dir / "weights" / "config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
