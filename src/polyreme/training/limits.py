"""What a plan's tensor degrees and token counts need of the model. Imports no framework."""

from collections.abc import Iterator

from polyreme.layout.layers import layer_kind
from polyreme.specs.fields import LayerKind
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Plan, Stage


def exceeded(plan: Plan, model: ModelSpec) -> list[str]:
    """What cannot be cut as the plan says, one phrase each; empty if all can."""
    problems = [
        f"stage {index} of pipeline {pipeline.name} has tp {tp}, more than {what}"
        for pipeline in plan.pipelines
        for index, stage in enumerate(pipeline.stages)
        for tp in sorted({group.tp for group in stage.groups})
        for what in _too_few(stage, tp, model)
    ]
    tokens = plan.batch.tokens_per_sequence
    degrees = {group.tp for pipeline in plan.pipelines for stage in pipeline.stages for group in stage.groups}
    uneven = [str(tp) for tp in sorted(degrees) if tokens % tp]
    if uneven:
        problems.append(f"tokens_per_sequence {tokens} is not a multiple of tp {', '.join(uneven)}")
    return problems


def _too_few(stage: Stage, tp: int, model: ModelSpec) -> Iterator[str]:
    """Dims of the stage's matrices of which not every tensor rank would get a part."""
    kinds = {layer_kind(model, layer) for layer in range(*stage.layers)}
    dims = {}
    if LayerKind.BLOCK in kinds:
        dims = {"key/value heads": model.kv_heads, "elements of ffn_hidden_size": model.ffn_hidden_size}
    if kinds - {LayerKind.BLOCK}:
        dims["tokens of the vocabulary"] = model.vocab_size
    return (f"the {size} {what}" for what, size in dims.items() if size < tp)
