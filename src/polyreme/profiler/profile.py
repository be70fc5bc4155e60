"""Makes the profile of a job: which kinds can be timed here, which sizes, and where the figures are from."""

import platform
import time
from importlib.metadata import version
from pathlib import Path

from polyreme.catalog.fleet import Fleet
from polyreme.drivers.choose import emulated_fractions
from polyreme.errors import InputError
from polyreme.models.build import check_runnable
from polyreme.models.dtypes import DTYPES
from polyreme.models.foreign import load_function
from polyreme.profiler.measure import measure_layers
from polyreme.specs.io import CREATED_BY, digest
from polyreme.specs.job import JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.specs.profile import LayerTiming, ProfileSpec

MOST_SEQUENCES = 4
EMULATED_PAUSE_S = 0.01
"""Pause before a timed action of an emulated device, which idles about as long as it computes."""


def make_profile(
    model: ModelSpec,
    job: JobSpec,
    fleet: Fleet,
    num_cores: int,
    budget_s: float = 6.0,
    code_base: Path | None = None,
) -> ProfileSpec:
    """Time the model's layers for the job on this machine, in about `budget_s` seconds. InputError if it cannot."""
    plain = {device.kind.name: 1.0 for device in fleet.devices if device.kind.driver == "cpu"}
    emulated = emulated_fractions(fleet, num_cores)
    kinds = {**plain, **emulated}
    if not kinds:
        found = sorted({f"{device.kind.name} ({device.kind.driver})" for device in fleet.devices})
        raise InputError.single(
            "cluster",
            f"none of its devices can be timed here: {', '.join(found)}",
            fix="kinds with driver cpu or emulated can; others are planned from the catalogue's figures",
        )
    check_runnable(model, job.batch.tokens_per_sequence)
    if model.code is not None and code_base is None:
        raise InputError.single("model", f"timing would run {model.code}", fix="add --allow-code if you trust it")
    make_blocks = load_function(model.code, code_base) if model.code is not None and code_base is not None else None
    if job.precision not in DTYPES:
        raise InputError.single("job", f"{job.precision} cannot be timed here", path="precision", fix="use fp32")
    sizes = [size for size in range(1, MOST_SEQUENCES + 1) if job.batch.sequences % size == 0]
    stage_blocks = max(1, model.num_layers // len(fleet.devices))
    layers: list[LayerTiming] = []
    for group, pause_s in ((plain, 0.0), (emulated, EMULATED_PAUSE_S)):
        if group:
            share_s = budget_s * len(group) / len(kinds)
            tokens = job.batch.tokens_per_sequence
            shape = (model, job.precision, sizes, tokens, group)
            layers += measure_layers(*shape, share_s, pause_s, stage_blocks, make_blocks=make_blocks)
    return ProfileSpec(
        created_by=CREATED_BY,
        model=digest(model),
        layers=tuple(layers),
        provenance={
            "clock": "CPU seconds of one thread, divided by the core fraction of an emulated kind",
            "core_fractions": ", ".join(f"{name} {fraction:.4f}" for name, fraction in kinds.items()),
            "cores": str(num_cores),
            "machine": platform.machine(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "torch": version("torch"),
        },
    )
