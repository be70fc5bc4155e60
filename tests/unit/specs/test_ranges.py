"""Names with ranges stand for what they say."""

import pytest

from polyreme.specs.ranges import expand


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("node", ["node"]),
        ("node[0-2]", ["node0", "node1", "node2"]),
        ("n[8-10]x", ["n8x", "n9x", "n10x"]),
        ("n[0-1]/g[0-1]", ["n0/g0", "n0/g1", "n1/g0", "n1/g1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[3-3]", ["n3"]),
    ],
)
def test_a_name_stands_for_its_ranges_in_order(name: str, names: list[str]) -> None:
    assert expand(name) == names


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("n[2-1]", "runs backwards"),
        ("n[0-999999][0-9]", "more than 100000 names"),
        ("n[0-", "bracket that is no range"),
        ("n[a-b]", "bracket that is no range"),
        ("n[1]", "bracket that is no range"),
        ("n[0-1]]", "bracket that is no range"),
        ("n[0-10000000]", "bracket that is no range"),
        ("n[\u0660-\u0662]", "bracket that is no range"),
        ("[0-1]" * 800, "more than 100000 names"),
    ],
)
def test_a_name_that_is_no_range_says_why_shortly(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        expand(name)
    assert len(str(caught.value)) < 200
