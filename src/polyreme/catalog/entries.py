"""The catalogue: devices and links with the source and kind of every figure, and the specs that plans compute with."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import Precision

VENDORS = ("amd", "aws", "google", "graphcore", "huawei", "intel", "nvidia")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number in SI units. `kind` is measured, vendor or memory; `sources` are keys of sources.yaml."""

    value: float
    kind: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A device or link: its figures by name, such as `peak_flops_per_s.bf16` or `link.latency_s`."""

    name: str
    vendor: str
    driver: str
    link_type: str
    note: str
    figures: dict[str, Figure]

    def value(self, name: str) -> float | None:
        """A figure's number, None where the catalogue has none."""
        figure = self.figures.get(name)
        return figure.value if figure is not None else None

    def by_precision(self, name: str) -> dict[Precision, float] | None:
        """Numbers of `name.<precision>`, None where there is none."""
        prefix = f"{name}."
        found = {
            Precision(key.removeprefix(prefix)): figure.value
            for key, figure in self.figures.items()
            if key.startswith(prefix)
        }
        return found or None


@cache
def devices() -> dict[str, CatalogEntry]:
    """All devices of the catalogue."""
    return {name: entry for vendor in VENDORS for name, entry in _entries(vendor).items()}


@cache
def links() -> dict[str, CatalogEntry]:
    """All links of the catalogue."""
    return _entries("links")


@cache
def sources() -> dict[str, str]:
    """What each source key stands for."""
    return dict(_read("sources"))


@cache
def device_kinds() -> dict[str, DeviceKind]:
    """All devices of the catalogue as specs, by name."""
    return {name: _device_kind(entry) for name, entry in devices().items()}


@cache
def link_kinds() -> dict[str, LinkKind]:
    """All links of the catalogue that carry bytes, as specs, by name."""
    return {
        name: LinkKind(name=name, bandwidth_bytes_per_s=bandwidth, latency_s=latency)
        for name, entry in links().items()
        if (bandwidth := _sustained(entry)) is not None and (latency := entry.value("latency_s")) is not None
    }


def _sustained(link: CatalogEntry) -> float | None:
    """Bandwidth that a link reaches where the catalogue knows it to be below the wire's."""
    wire, effective = link.value("bandwidth_bytes_per_s"), link.value("effective_bandwidth_bytes_per_s")
    fraction = link.value("effective_fraction")
    return effective or (wire * fraction if wire is not None and fraction is not None else wire)


def _device_kind(entry: CatalogEntry) -> DeviceKind:
    memory, bandwidth, latency = (
        entry.value(name) for name in ("memory_bytes", "link.bandwidth_bytes_per_s", "link.latency_s")
    )
    assert memory is not None
    assert bandwidth is not None
    assert latency is not None
    return DeviceKind(
        name=entry.name,
        driver=entry.driver,
        memory_bytes=min(memory, entry.value("usable_memory_bytes") or memory),
        peak_flops_per_s=entry.by_precision("peak_flops_per_s"),
        matmul_flops_per_s=entry.by_precision("matmul_flops_per_s"),
        memory_bandwidth_bytes_per_s=entry.value("memory_bandwidth_bytes_per_s"),
        link=LinkKind(name=entry.link_type, bandwidth_bytes_per_s=bandwidth, latency_s=latency),
        tdp_w=entry.value("tdp_w"),
        price_usd_per_hour=entry.value("price_usd_per_hour"),
    )


def _entries(file: str) -> dict[str, CatalogEntry]:
    return {
        name: CatalogEntry(
            name=name,
            vendor=file,
            driver=content.get("driver", ""),
            link_type=content.get("link_type", ""),
            note=content.get("note", ""),
            figures={key: _figure(figure, content) for key, figure in content["figures"].items()},
        )
        for name, content in _read(file).items()
    }


def _figure(content: Any, entry: dict[str, Any]) -> Figure:
    """A figure with the entry's kind and source unless it has its own."""
    own = content if isinstance(content, dict) else {"value": content}
    return Figure(float(own["value"]), own.get("kind", entry["kind"]), tuple(own.get("source", entry["source"])))


def _read(file: str) -> dict[str, Any]:
    text = files("polyreme.catalog").joinpath("data", f"{file}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 - the safe loader, in C where it is built
    return content
