"""`polyreme devices`: lists, filters and compares the devices and links of the catalogue."""

import argparse
import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Sequence

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
    """List or compare. InputError for unknown names, and for filters where they would have no effect."""
    _check_filters(args)
    entries = _filtered(_chosen(args.names, args.links), args)
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


def _check_filters(args: argparse.Namespace) -> None:
    """A filter that would be passed over in silence is refused, and so is a memory size that is none."""
    given = {"--vendor": args.vendor, "--precision": args.precision, "--min-memory-gb": args.min_memory_gb}
    used = [option for option, value in given.items() if value is not None]
    faults = []
    if args.names and used:
        faults.append(("does not go with names", "leave out one or the other"))
    if args.links and (used or args.sort != "name"):
        used += ["--sort"] if args.sort != "name" else []
        faults.append(("is about devices, not links", "leave out it or --links"))
    found = [Fault(source="command line", path=", ".join(used), problem=text, fix=fix) for text, fix in faults]
    least = args.min_memory_gb
    if least is not None and not (math.isfinite(least) and least >= 0):
        problem, fix = f"{least:g} is no memory size", "give gigabytes, such as 80"
        found.append(Fault(source="command line", path="--min-memory-gb", problem=problem, fix=fix))
    if found:
        raise InputError(found)


def _chosen(names: Sequence[str], of_links: bool) -> list[CatalogEntry]:
    known, other = (links(), devices()) if of_links else (devices(), links())
    faults = [
        Fault(source="command line", problem=f"{name!r} is not in the catalogue", fix=_nearest(name, known))
        if name not in other
        else Fault(
            source="command line",
            problem=f"{name!r} is a {'device' if of_links else 'link'}",
            fix="leave out --links" if of_links else "add --links",
        )
        for name in names
        if name not in known
    ]
    if faults:
        raise InputError(faults)
    return [known[name] for name in dict.fromkeys(names)] if names else [known[name] for name in sorted(known)]


def _nearest(name: str, known: Iterable[str]) -> str:
    """Names that go on as `name` begins come first: `a100` is short for some of them and close to others."""
    longer = [one for one in known if name and one.startswith(name.lower())]
    close = (longer or difflib.get_close_matches(name.lower(), known, n=3))[:4]
    return f"did you mean {', '.join(close)}?" if close else "without names the command lists all"


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
    if not entries:
        print("no device of the catalogue passes these filters")
        return
    console().print(table)
    print(f"{len(entries)} device{'s' if len(entries) > 1 else ''}; `polyreme devices NAME` shows sources")


def _list_links(entries: Sequence[CatalogEntry]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("link", "bandwidth, one way", "kind", "latency", "kind", "sources"):
        table.add_column(head, justify="left" if head in ("link", "kind", "sources") else "right")
    for entry in entries:
        bandwidth, latency = (entry.figures.get(name) for name in ("bandwidth_bytes_per_s", "latency_s"))
        known = [figure for figure in (bandwidth, latency) if figure is not None]
        table.add_row(
            entry.name,
            _text("bytes_per_s", bandwidth.value if bandwidth else None),
            bandwidth.kind if bandwidth else "-",
            _text("latency_s", latency.value if latency else None),
            latency.kind if latency else "-",
            ", ".join(dict.fromkeys(source for figure in known for source in figure.sources)),
        )
    console().print(table)
    print(f"{len(entries)} links; `polyreme devices --links NAME` shows each source")


def _compare(entries: Sequence[CatalogEntry]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from polyreme.cli.tables import console  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    for entry in entries:
        table.add_column(entry.name)
    names = list(dict.fromkeys(name for entry in entries for name in entry.figures))
    gap = " " if len(entries) == 1 else "\n"
    for name in names:
        first = entries[0].value(name)
        cells = []
        for entry in entries:
            figure = entry.figures.get(name)
            if figure is None:
                cells.append("-")
                continue
            ratio = f" ({figure.value / first:.3g}x)" if first and entry is not entries[0] else ""
            cells.append(
                f"{_text(name, figure.value)}{ratio}{gap}[dim]{figure.kind}: {', '.join(figure.sources)}[/dim]"
            )
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
        return f"{value / 1e12:.4g} {'TOP/s' if name.endswith('.int8') else 'TFLOP/s'}"
    if "bytes_per_s" in name or "bus_bandwidth" in name:
        return f"{format_bytes(value)}/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s"):
        return format_time_s(value)
    units = {"tdp_w": " W", "price_usd_per_hour": " $/h"}
    return f"{value:g}{units.get(name, '')}" if value < 10_000 else format_count(value)
