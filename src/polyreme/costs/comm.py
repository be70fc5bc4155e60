"""Seconds of a message over a link and of a sum over several ranks."""

from polyreme.specs.device import LinkKind
from polyreme.specs.fields import PRECISION_BYTES, Precision
from polyreme.specs.model import ModelSpec

_HEADER_BYTES = 64


def estimate_comm_time_s(size_bytes: float, bandwidth_bytes_per_s: float, latency_s: float) -> float:
    """latency + size / bandwidth, all SI (Hockney, Parallel Computing 20, 1994, equation 1)."""
    return latency_s + size_bytes / bandwidth_bytes_per_s


def boundary_bytes(model: ModelSpec, precision: Precision, sequences: int, tokens_per_sequence: int) -> float:
    """Bytes of hidden states of `sequences` that cross between two stages per microbatch, one direction."""
    return sequences * tokens_per_sequence * model.hidden_size * PRECISION_BYTES[precision] + _HEADER_BYTES


def all_reduce_time_s(size_bytes: float, num_ranks: int, link: LinkKind) -> float:
    """Ring all-reduce: 2 (n - 1) / n of the bytes and 2 (n - 1) latencies (Thakur et al., IJHPCA 2005, section 4)."""
    if num_ranks < 2:
        return 0.0
    rounds = 2 * (num_ranks - 1)
    return rounds * link.latency_s + rounds / num_ranks * size_bytes / link.bandwidth_bytes_per_s
