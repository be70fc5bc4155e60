"""`polyreme devices`: lists, filters and compares the devices and links of the catalogue."""

import argparse
import dataclasses
import difflib
import json
from collections.abc import Sequence

from polyreme.catalog.entries import VENDORS, CatalogEntry, devices, links, sources
from polyreme.errors import Fault, InputError
from polyreme.specs.fields import Precision
from polyreme.units import GB, format_bytes, format_count, format_time_s

HELP = (
    "List the devices of the catalogue, filter them, or compare some side by side. Every figure has a source\n"
    "and a kind: measured, vendor (printed by vendor or seller), memory (verify before relying on it)."
)
EXAMPLE = "polyreme devices a100-sxm-80g ascend-910b"
SORT_KEYS = {
    "name": "",
    "memory": "memory_bytes",
    "compute": "peak_flops_per_s",
    "bandwidth": "memory_bandwidth_bytes_per_s",
    "price": "price_usd_per_hour",
    "power": "tdp_w",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="compare these; without names: list all")
    parser.add_argument("--vendor", choices=VENDORS, help="only devices of this vendor")
    parser.add_argument("--precision", choices=[p.value for p in Precision], help="only devices that compute in it")
    parser.add_argument("--min-memory-gb", type=float, metavar="N", help="only devices with at least N GB (1e9 bytes)")
    parser.add_argument("--sort", choices=list(SORT_KEYS), default="name", help="largest first; default: by name")
    parser.add_argument("--links", action="store_true", help="links instead of devices")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """List or compare."""
    entries = _chosen(args.names, links() if args.links else devices())
    if not args.links:
        entries = _filtered(entries, args)
    if args.json:
        content = {entry.name: dataclasses.asdict(entry) for entry in entries}
        print(json.dumps({"entries": content, "sources": sources()}, sort_keys=True))
    elif args.names:
        _compare(entries)
    elif args.links:
        _list_links(entries)
    else:
        _list_devices(entries, args.precision)
    return 0


def _chosen(names: Sequence[str], known: dict[str, CatalogEntry]) -> list[CatalogEntry]:
    faults = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            fix = f"did you mean {', '.join(close)}?" if close else "`polyreme devices` lists all"
            faults.append(Fault(source="command line", problem=f"{name!r} is not in the catalogue", fix=fix))
    if faults:
        raise InputError(faults)
    return [known[name] for name in names] if names else [known[name] for name in sorted(known)]


def _filtered(entries: list[CatalogEntry], args: argparse.Namespace) -> list[CatalogEntry]:
    least = (args.min_memory_gb or 0.0) * GB
    found = [
        entry
        for entry in entries
        if (args.vendor is None or entry.vendor == args.vendor)
        and (args.precision is None or f"peak_flops_per_s.{args.precision}" in entry.figures)
        and (entry.value("memory_bytes") or 0.0) >= least
    ]
    if args.sort != "name":
        found.sort(key=lambda entry: -(_sort_value(entry, args.sort, args.precision) or 0.0))
    return found


def _sort_value(entry: CatalogEntry, key: str, precision: str | None) -> float | None:
    if key != "compute":
        return entry.value(SORT_KEYS[key])
    peaks = entry.by_precision(SORT_KEYS[key]) or {}
    return peaks.get(Precision(precision)) if precision else _half_precision(peaks)


def _half_precision(peaks: dict[Precision, float]) -> float | None:
    return peaks.get(Precision.BF16, peaks.get(Precision.FP16))


def _list_devices(entries: Sequence[CatalogEntry], precision: str | None) -> None:
    from rich import box  # noqa: PLC0415 - a third of the command's start-up
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("device", "vendor", "memory GB", "GB/s", f"{precision or '16 bit'} TFLOP/s", "link GB/s", "W", "$/h")
    for name in columns:
        table.add_column(name, justify="left" if name in ("device", "vendor") else "right", no_wrap=True)
    for entry in entries:
        peaks = entry.by_precision("peak_flops_per_s") or {}
        peak = peaks.get(Precision(precision)) if precision else _half_precision(peaks)
        table.add_row(
            entry.name,
            entry.vendor,
            _scaled(entry.value("memory_bytes"), GB),
            _scaled(entry.value("memory_bandwidth_bytes_per_s"), GB),
            _scaled(peak, 1e12),
            _scaled(entry.value("link.bandwidth_bytes_per_s"), GB),
            _scaled(entry.value("tdp_w"), 1),
            _scaled(entry.value("price_usd_per_hour"), 1),
        )
    console().print(table)
    print(f"{len(entries)} devices; `polyreme devices NAME` shows sources")


def _list_links(entries: Sequence[CatalogEntry]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("link", "bandwidth, one way", "latency", "kind", "source"):
        table.add_column(head, justify="left" if head in ("link", "kind", "source") else "right")
    for entry in entries:
        first = next(iter(entry.figures.values()))
        table.add_row(
            entry.name,
            _text("bytes_per_s", entry.value("bandwidth_bytes_per_s")),
            _text("latency_s", entry.value("latency_s")),
            first.kind,
            ", ".join(first.sources),
        )
    console().print(table)


def _compare(entries: Sequence[CatalogEntry]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    for entry in entries:
        table.add_column(entry.name)
    names = list(dict.fromkeys(name for entry in entries for name in entry.figures))
    for name in names:
        first = entries[0].value(name)
        cells = []
        for entry in entries:
            figure = entry.figures.get(name)
            if figure is None:
                cells.append("-")
                continue
            ratio = f" ({figure.value / first:.2g} x)" if first and entry is not entries[0] else ""
            cells.append(f"{_text(name, figure.value)}{ratio} [dim]{figure.kind}: {', '.join(figure.sources)}[/dim]")
        table.add_row(name, *cells)
    out = console()
    out.print(table)
    for entry in entries:
        if entry.note:
            out.print(f"{entry.name}: {entry.note}", markup=False)
    for key in sorted({key for entry in entries for figure in entry.figures.values() for key in figure.sources}):
        out.print(f"{key}: {sources()[key]}", markup=False)


def _scaled(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.4g}"


def _text(name: str, value: float | None) -> str:
    """A figure with the unit that its name ends in."""
    if value is None:
        return "-"
    if "flops" in name:
        return f"{value / 1e12:.4g} TFLOP/s"
    if "bytes_per_s" in name or "bus_bandwidth" in name:
        return f"{format_bytes(value)}/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s"):
        return format_time_s(value)
    units = {"tdp_w": " W", "price_usd_per_hour": " $/h"}
    return f"{value:g}{units.get(name, '')}" if value < 10_000 else format_count(value)
