"""Valid files of every kind, as texts: the controls that damaged files are made from."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretend_run import DEFAULT, Pretence, make_plan, make_report

from polyreme.catalog.fleet import build_fleet
from polyreme.specs.fields import LayerKind, Precision
from polyreme.specs.io import digest, load_cluster, load_job, load_model, load_plan, load_profile, load_report, to_data
from polyreme.specs.profile import LayerTiming, ProfileSpec, Spread

MODEL = """\
schema: polyreme.model/1
name: llama-3m
family: llama
num_layers: 18
hidden_size: 128
num_heads: 4
num_kv_heads: 2
ffn_hidden_size: 352
vocab_size: 256
max_sequence_length: 512
"""
CLUSTER = """\
schema: polyreme.cluster/1
name: lab
nodes:
  - name: node[0-1]
    devices:
      - {kind: fast, name: fast, count: 2}
      - {kind: slow, price_usd_per_hour: 0.5}
    links: {intra: wire, inter: wire}
    host_memory_bytes: 4e9
  - name: edge
    devices: [{kind: slow}]
device_kinds:
  - {name: fast, driver: emulated, speed: 4, memory_bytes: 256e6}
  - {name: slow, driver: emulated, speed: 1, memory_bytes: 64e6}
link_kinds:
  - {name: wire, bandwidth_bytes_per_s: 1e9, latency_s: 100e-6}
connections:
  - {from: edge, to: "node[0-1]", link: wire, both_ways: false}
  - {from: "node[0-1]", to: edge, link: none}
"""
JOB = """\
schema: polyreme.job/1
name: quickstart
model: model.yaml
cluster: cluster.yaml
batch: {sequences: 16, tokens_per_sequence: 128}
precision: fp32
objective: time
limits: {memory_fraction: 0.9, step_time_s: 2.5}
optimizer: {learning_rate: 1e-3, beta1: 0.9}
data: {paths: [corpus], suffixes: [.txt]}
steps: 30
seed: 1
"""
HUGGINGFACE = """\
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "attention_bias": false,
  "hidden_size": 2048,
  "intermediate_size": 5632,
  "max_position_embeddings": 2048,
  "num_attention_heads": 32,
  "num_hidden_layers": 22,
  "num_key_value_heads": 4,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "vocab_size": 32000
}
"""
GPT2 = """\
{
  "model_type": "gpt2",
  "n_layer": 12,
  "n_embd": 768,
  "n_head": 12,
  "n_positions": 1024,
  "layer_norm_epsilon": 1e-05,
  "vocab_size": 50257
}
"""


def profile() -> ProfileSpec:
    """A profile of one layer kind, signed."""
    spread = Spread(median_s=0.002, p10_s=0.001, p90_s=0.003, num_samples=9)
    timing = LayerTiming(
        device="fast",
        layer=LayerKind.BLOCK,
        precision=Precision.FP32,
        sequences=2,
        tokens_per_sequence=128,
        forward=spread,
        backward=spread,
        update=spread,
        activation_bytes=4096,
    )
    return ProfileSpec(created_by="polyreme", model="m" * 32, layers=(timing,), provenance={"torch": "2"})


@dataclass(frozen=True, slots=True)
class Sample:
    """A valid text, the name its file has, and the function that reads such a file."""

    file: str
    text: str
    load: Callable[[Path], Any]


def signed(value: Any) -> str:
    """The file that `save` writes for a signed spec."""
    return json.dumps(to_data(value) | {"digest": digest(value)}, indent=1)


def plan_text() -> str:
    """A plan of two equal pipelines of four stages."""
    return signed(make_plan(Pretence(pipelines=2, microbatches=3)))


def load_fleet(path: Path) -> Any:
    """Read a cluster file and resolve its names."""
    return build_fleet(load_cluster(path), str(path))


SAMPLES: Mapping[str, Sample] = {
    "model": Sample("model.yaml", MODEL, load_model),
    "cluster": Sample("cluster.yaml", CLUSTER, load_fleet),
    "job": Sample("job.yaml", JOB, load_job),
    "huggingface": Sample("config.json", HUGGINGFACE, load_model),
    "gpt2": Sample("config.json", GPT2, load_model),
    "plan": Sample("plan.json", plan_text(), load_plan),
    "profile": Sample("profile.json", signed(profile()), load_profile),
    "report": Sample("report.json", signed(make_report(make_plan(DEFAULT), Pretence(microbatches=1))), load_report),
}
