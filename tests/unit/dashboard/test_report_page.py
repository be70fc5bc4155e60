"""The report page: self-contained, closed to hostile text, and complete without its script."""

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pretend_run import DEFAULT, Pretence, pretend_run

from polyreme.dashboard.report_page import render, write_report
from polyreme.dashboard.run_folder import load_run
from polyreme.errors import InputError

HOSTILE = "</script></title></style><img src=x onerror=alert(1)>\"'&amp;\u2028<!--"


class Page(HTMLParser):
    """Elements, attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data


@pytest.fixture
def completed(tmp_path: Path) -> str:
    return render(load_run(pretend_run(tmp_path / "run-7", Pretence(steps=4))))


def test_page_is_balanced_and_holds_the_sections_in_order(completed: str) -> None:
    page = Page(completed)
    assert page.open == []
    assert page.texts["h2"] == [
        "Pipeline timeline",
        "Loss",
        "Step time, mspredicted interval",
        "Time per stage",
        "Workers",
        "Environment",
    ]
    assert page.texts["h1"][0].startswith("run-7 completed")


def test_page_asks_for_nothing_from_outside(completed: str) -> None:
    page = Page(completed)
    assert not {"img", "iframe", "link", "object", "embed", "base", "form", "image", "use"} & set(page.tags)
    assert not [key for _, key, _ in page.attributes if key.startswith("on") or key in ("src", "srcset", "style")]
    links = [value for tag, key, value in page.attributes if key == "href"]
    assert links == [f"logs/rank-{rank}.log" for rank in range(4)]
    addresses = set(re.findall(r"https?://[^\s\"'<]+", completed))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "@import" not in completed
    assert "url(" not in completed.replace("url(#plot)", "")


def test_policy_allows_only_the_page_own_style_and_script(completed: str) -> None:
    page = Page(completed)
    policy = next(value for tag, key, value in page.attributes if key == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        text = page.texts[name][-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_tables_hold_the_figures_without_a_script(completed: str) -> None:
    without = re.sub(r"<script.*?</script>", "", completed, flags=re.DOTALL)
    cells = Page(without).texts["td"]
    for expected in ("a.0", "6.00 ms", "node0/small3", "14-15", "264 MB", "384 MB", "2.13.0+cpu"):
        assert expected in cells


def test_hostile_text_from_anywhere_adds_no_element(tmp_path: Path) -> None:
    def run(name: str, text: str) -> Page:
        model = dataclasses.replace(DEFAULT.model, name=text)
        pretence = Pretence(steps=3, microbatches=2, failed_rank=1, exception=text, model=model, node=text)
        folder = pretend_run(tmp_path / name, pretence)
        environment = json.loads((folder / "environment.json").read_text())
        (folder / "environment.json").write_text(json.dumps({**environment, text: text, "seed": text, "torch": [text]}))
        result = json.loads((folder / "result.json").read_text())
        result["failure"] |= dict.fromkeys(("worker", "stage", "device", "action", "step"), text)
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "logs" / 'a"><b>.log').write_text(text)
        return Page(render(load_run(folder)))

    plain, hostile = run("plain", "plain"), run("hostile", HOSTILE)
    assert hostile.tags == plain.tags
    assert [(tag, key) for tag, key, _ in hostile.attributes] == [(tag, key) for tag, key, _ in plain.attributes]
    assert HOSTILE.replace("\u2028", "") in hostile.texts["pre"][0].replace("\u2028", "")
    data = json.loads(hostile.texts["script"][0])
    assert data["timeline"]["pipelines"] == ["a"]


def test_a_hostile_run_name_stays_in_title_and_heading(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "<script>alert(1)<", Pretence(steps=1, microbatches=2))
    page = Page(render(load_run(folder)))
    assert page.texts["title"][0].startswith("<script>alert(1)<")
    assert page.tags.count("script") == 2


def test_root_cause_comes_before_everything_else(tmp_path: Path) -> None:
    text = render(load_run(pretend_run(tmp_path / "run", Pretence(steps=4, failed_rank=2))))
    page = Page(text)
    assert page.texts["h2"][0].startswith("Root cause")
    assert "RuntimeError: out of range" in page.texts["pre"][0]
    assert "\x1b" not in text
    assert text.index("Root cause") < text.index('class="tiles"')
    assert "Step 3 was not completed" in text
    assert 'class="culprit"' in text


def test_an_empty_log_is_said_to_be_empty(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=2, failed_rank=2))
    (folder / "logs/rank-2.log").write_text("")
    page = Page(render(load_run(folder)))
    assert "logs/rank-2.log is empty" in page.texts["p"]


def test_a_run_cut_off_in_its_first_step_still_has_a_page(tmp_path: Path) -> None:
    text = render(load_run(pretend_run(tmp_path / "run", Pretence(steps=1, failed_rank=0))))
    assert "Step 0 was not completed" in text


def test_a_run_of_one_step_does_not_claim_a_median(tmp_path: Path) -> None:
    text = render(load_run(pretend_run(tmp_path / "run", Pretence(steps=1))))
    assert "step 0, the only complete one" in text
    assert "the first step, which pays for allocation" in text
    assert "after the first" not in text


def test_a_long_run_says_that_it_is_thinned(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=5000, event_steps=2))
    text = render(load_run(folder))
    assert "points: lowest and highest of each run of steps" in text
    assert len(text.encode()) < 300_000


def test_a_loss_that_is_no_number_is_said_and_not_drawn(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=3))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    bad = json.dumps({**json.loads(lines[2]), "loss": float("nan")})
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:2], bad]) + "\n")
    text = render(load_run(folder))
    assert "not finite from step 2 on" in text
    json.loads(Page(text).texts["script"][0], parse_constant=pytest.fail)


def test_an_empty_run_folder_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    page = Page(render(load_run(tmp_path)))
    assert page.texts["h2"] == ["Not shown"]
    assert "plan.json: does not exist" in page.texts["li"]


def test_report_is_written_into_the_run_folder_and_again(tmp_path: Path) -> None:
    folder = pretend_run(tmp_path / "run", Pretence(steps=2))
    first = write_report(folder)
    assert first == folder / "report.html"
    content = first.read_bytes()
    assert write_report(folder).read_bytes() == content


def test_a_report_of_no_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run folder"):
        write_report(tmp_path)
