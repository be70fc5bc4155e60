"""The commands that make a network, as text."""

from pathlib import Path

from polyreme.lab.network import Network, build_commands, remove_commands

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "lab" / "network.txt"


def test_the_commands_of_three_nodes_with_unlike_links_are_the_reviewed_ones() -> None:
    """Node 0 and 1 at 25 MB/s, 1 and 2 at 5 MB/s one way and without limit the other, 0 and 2 cut off."""
    network = Network("pr7", "10.213.9", 3)
    rates = {(0, 1): 25e6, (1, 0): 25e6, (1, 2): 5e6, (2, 1): 1e10}
    lines = [" ".join(command) for command in (*build_commands(network, rates), *remove_commands(network))]
    assert "\n".join(lines) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_interface_names_fit_the_kernel_for_any_process_id() -> None:
    network = Network(f"pr{2**22}", "10.213.0", 99)
    assert all(len(name) <= 15 for name in (network.bridge, network.cable(98), network.namespace(98)))
