"""Which models the blocks of this package cover. Imports no framework, so that the launcher can ask, too."""

from polyreme.specs.model import ModelFamily, ModelSpec

FAMILIES = (ModelFamily.LLAMA, ModelFamily.GPT, ModelFamily.BLOCKS)


def uncovered(model: ModelSpec, tokens_per_sequence: int = 1) -> list[str]:
    """What of a model, or of sequences so long, cannot be computed, one phrase each; empty if all can."""
    problems = []
    if model.family not in FAMILIES:
        known = " and ".join(FAMILIES)
        problems.append(f"family {model.family} can be planned and simulated but not trained yet; {known} can")
    if model.rope_scaling is not None:
        problems.append(f"rope_scaling {model.rope_scaling} cannot be trained yet")
    if model.attention_window is not None:
        problems.append(f"attention_window {model.attention_window} cannot be trained yet")
    plain_heads = model.kv_heads == model.num_heads and model.head_width * model.num_heads == model.hidden_size
    if model.family is ModelFamily.GPT and not plain_heads:
        problems.append("family gpt with num_kv_heads or head_size of its own cannot be trained yet")
    most = model.max_sequence_length
    if model.family is ModelFamily.GPT and most is not None and tokens_per_sequence > most:
        problems.append(f"tokens_per_sequence {tokens_per_sequence} is more than the {most} learned positions")
    return problems
