"""Spec files: all faults with line and fix, digests, schemas, numbers as people write them, and whole writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from pretend_run import DEFAULT, make_plan
from spec_samples import CLUSTER, JOB, MODEL, SAMPLES

from polyreme.errors import InputError
from polyreme.specs import io
from polyreme.specs.io import atomic_file, load_cluster, load_job, load_model, load_plan, save, write_atomically


def faults(load: Any, tmp_path: Path, text: str, file: str = "x.yaml") -> list[str]:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    return [str(fault).replace(f"{tmp_path}/", "") for fault in caught.value.faults]


def test_every_fault_of_a_file_is_reported_at_its_line(tmp_path: Path) -> None:
    text = (
        CLUSTER.replace("count: 2", "count: two").replace("price_usd", "price_eur").replace("speed: 1", "speed: .nan")
    )
    text = text.replace("name: lab\n", "").replace("latency_s: 100e-6", "latency_s: -1")
    assert faults(load_cluster, tmp_path, text) == [
        "x.yaml:1: name: is required but missing",
        "x.yaml:5: nodes[0].devices[0].count: got 'two': input should be a valid integer",
        "x.yaml:6: nodes[0].devices[1].price_eur_per_hour: is not a known key; did you mean price_usd_per_hour?",
        "x.yaml:13: device_kinds[1].speed: got nan: input should be a finite number",
        "x.yaml:15: link_kinds[0].latency_s: got -1: input should be greater than or equal to 0",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("precision: fp32", "precision: fp23", "x.yaml:6: precision: 'fp23' is not one of 'fp64', 'fp32'"),
        ("precision: fp32", "precision: bf61", "did you mean bf16?"),
        ("objective: time", "objective: tim", "did you mean time?"),
        ("steps: 30", "step: 30", "x.yaml:11: step: is not a known key; did you mean steps?"),
        ("batch: {sequences: 16", "batch: {sequence: 16", "x.yaml:5: batch.sequence: is not a known key; did you mean"),
        ("seed: 1", "zzz: 1", "x.yaml:12: zzz: is not a known key; known keys: schema, name, model"),
        ("limits: {", "limits: []\nx: {", "x.yaml:8: limits: got []"),
        ("optimizer: {", "optimizer: fast\nx: {", "x.yaml:9: optimizer: got 'fast', a mapping of keys to values"),
        ("data: {", "data: {kind: token, ", "x.yaml:10: data.kind: 'token' is not one of text, tokens, huggingface"),
        ("data: {", "data: {kind: token, ", "did you mean tokens?"),
        ("data: {", "data: {kind: [text], ", "data.kind: ['text'] is not one of text, tokens, huggingface"),
        (
            "data: {",
            "data: {kind: tokens, ",
            "data.suffixes: is not a known key; known keys: kind, paths, dtype",
        ),
        ("data: {", "data: {path: x, ", "data.path: is not a known key; did you mean paths?"),
        ("data: {", "data: 3\nx: {", "x.yaml:10: data: got 3, a mapping of keys to values"),
        ("data: {paths: [corpus],", "data: {kind: tokens,", "x.yaml:10: data.paths: is required but missing"),
        ("data: {paths: [corpus], suffixes: [.txt]", "data: {kind: huggingface", "data: give either dataset or files"),
    ],
)
def test_a_fault_says_what_was_meant(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert any(expected in fault for fault in faults(load_job, tmp_path, JOB.replace(old, new)))


def test_an_unknown_key_behind_an_alias_gets_the_names_people_write(tmp_path: Path) -> None:
    text = CLUSTER.replace("{from: edge,", "{fron: edge,")
    assert any("did you mean from?" in fault for fault in faults(load_cluster, tmp_path, text))
    assert not any("source" in fault for fault in faults(load_cluster, tmp_path, text))


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("1e2", 100), ("1.2e1", 12), ("12.0", 12), ("012", 12), ("+12", 12)]
)
def test_a_whole_number_may_be_written_as_people_do(text: str, value: int, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL.replace("num_layers: 18", f"num_layers: {text}"))
    assert load_model(path).num_layers == value
    assert type(load_model(path).num_layers) is int


@pytest.mark.parametrize(
    "text", ["1.5", "1_0", "0x10", "0o7", "'12'", "yes", "true", ".inf", ".nan", "1e400", "-1", "1e16", "~"]
)
def test_what_is_no_whole_number_is_refused_at_its_line(text: str, tmp_path: Path) -> None:
    (fault,) = faults(load_model, tmp_path, MODEL.replace("num_layers: 18", f"num_layers: {text}"))
    assert fault.startswith("x.yaml:4: num_layers: got ")


@pytest.mark.parametrize("text", ["yes", "no", "on", "1", "'true'"])
def test_only_true_and_false_are_flags(text: str, tmp_path: Path) -> None:
    (fault,) = faults(load_model, tmp_path, MODEL + f"tied_embedding: {text}\n")
    assert fault.startswith("x.yaml:11: tied_embedding: got ")


def test_a_newer_schema_is_refused_before_all_else_and_names_the_upgrade(tmp_path: Path) -> None:
    text = MODEL.replace("model/1", "model/2").replace("hidden_size", "width")
    assert faults(load_model, tmp_path, text) == [
        "x.yaml:1: schema: polyreme.model/2 is newer than this polyreme reads (polyreme.model/1); upgrade polyreme"
    ]


@pytest.mark.parametrize(
    "schema", ["polyreme.job/1", "polyreme.model/0", "model", "1", "[a]", "null", "polyreme.model/9999999999"]
)
def test_another_schema_says_which_file_was_expected(schema: str, tmp_path: Path) -> None:
    (fault,) = faults(load_model, tmp_path, MODEL.replace("polyreme.model/1", schema))
    assert fault.startswith("x.yaml:1: schema: ")
    assert "a polyreme.model/1 file was expected; give a model file" in fault


@pytest.mark.parametrize("kind", ["plan", "profile", "report"])
def test_changed_content_is_refused_at_the_digest(kind: str, tmp_path: Path) -> None:
    sample = SAMPLES[kind]
    data = json.loads(sample.text)
    match kind:
        case "plan":
            data["batch"]["tokens_per_sequence"] += 1
        case "profile":
            data["layers"][0]["activation_bytes"] += 1
        case _:
            data["tokens_per_s"] += 1
    (fault,) = faults(sample.load, tmp_path, json.dumps(data, indent=1), sample.file)
    line = 1 + [line.split(":")[0].strip() for line in json.dumps(data, indent=1).splitlines()].index('"digest"')
    assert fault.startswith(f"{sample.file}:{line}: digest: the content was changed: digest {data['digest']} is stated")


def test_moving_the_inputs_of_a_plan_does_not_change_its_digest(tmp_path: Path) -> None:
    data = json.loads(SAMPLES["plan"].text)
    data["sources"] = {"model": "../model.yaml", "cluster": "c.yaml", "job": "j.yaml"}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert load_plan(path).digest == data["digest"]


def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_atomically(path, "old\n")

    def write_half() -> None:
        with atomic_file(path) as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_a_disk_that_fails_is_an_input_error_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    save(path, make_plan(DEFAULT))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        save(path, make_plan(DEFAULT))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_text_that_has_no_utf8_form_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "out.txt", "x")
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(tmp_path, "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_written_file_is_readable_by_others_and_ends_with_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.json"
    save(path, make_plan(DEFAULT))
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().endswith("}\n")
