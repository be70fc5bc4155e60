"""Loads what a command works on: from files named on the command line, from a job, or from where a plan was made."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from polyreme.catalog.fleet import Fleet, build_fleet
from polyreme.costs.model import CostModel
from polyreme.errors import Fault, InputError
from polyreme.specs.cluster import ClusterSpec
from polyreme.specs.io import digest, load_cluster, load_job, load_model, load_plan, load_profile
from polyreme.specs.job import JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.specs.plan import Inputs, Plan, Sources
from polyreme.specs.profile import ProfileSpec

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything of a job, read and resolved, and the files it was read from."""

    model: ModelSpec
    cluster: ClusterSpec
    fleet: Fleet
    job: JobSpec
    profile: ProfileSpec | None
    model_path: Path
    cluster_path: Path
    job_path: Path
    profile_path: Path | None

    @property
    def costs(self) -> CostModel:
        """Cost model of the job. InputError if the profile is of another model."""
        if self.profile is not None and self.profile.model != digest(self.model):
            raise InputError.single(
                str(self.profile_path),
                f"was measured for another model than {self.model_path}",
                path="model",
                fix="run `polyreme profile` for this job",
            )
        tokens = self.job.batch.tokens_per_sequence
        return CostModel(self.model, self.fleet, self.job.precision, tokens, self.profile)

    @property
    def inputs(self) -> Inputs:
        """Content digests for a plan."""
        return Inputs(
            model=digest(self.model),
            cluster=digest(self.cluster),
            job=digest(self.job),
            profile=digest(self.profile) if self.profile is not None else None,
        )

    def sources(self, plan_path: Path) -> Sources:
        """Paths of the files, relative to where the plan is written."""
        base = plan_path.resolve().parent

        def relative(path: Path) -> str:
            return os.path.relpath(path.resolve(), base)

        return Sources(
            model=relative(self.model_path),
            cluster=relative(self.cluster_path),
            job=relative(self.job_path),
            profile=relative(self.profile_path) if self.profile_path is not None else None,
        )


def load_inputs(
    job: Path, model: Path | None = None, cluster: Path | None = None, profile: Path | None = None
) -> Loaded:
    """Read a job with its model and cluster, which it names unless given. InputError holds all files' faults."""
    faults: list[Fault] = []
    job_spec: JobSpec | None = None
    try:
        job_spec = load_job(job)
    except InputError as error:
        faults += error.faults
    model_path = model or (job.parent / job_spec.model if job_spec else None)
    cluster_path = cluster or (job.parent / job_spec.cluster if job_spec else None)
    model_spec = _read(load_model, model_path, faults)
    cluster_spec = _read(load_cluster, cluster_path, faults)
    profile_spec = _read(load_profile, profile, faults)
    fleet: Fleet | None = None
    if cluster_spec is not None:
        try:
            fleet = build_fleet(cluster_spec, str(cluster_path))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    assert job_spec is not None
    assert model_path is not None
    assert cluster_path is not None
    assert model_spec is not None
    assert cluster_spec is not None
    assert fleet is not None
    return Loaded(
        model=model_spec,
        cluster=cluster_spec,
        fleet=fleet,
        job=job_spec,
        profile=profile_spec,
        model_path=model_path,
        cluster_path=cluster_path,
        job_path=job,
        profile_path=profile,
    )


def _read(read: Callable[[Path], S], path: Path | None, faults: list[Fault]) -> S | None:
    """What `read` makes of a file, or None with its faults added."""
    if path is None:
        return None
    try:
        return read(path)
    except InputError as error:
        faults += error.faults
        return None


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say where a plan's inputs are now, if they are not where they were."""
    for name in ("model", "cluster", "job", "profile"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"the {name} file, if it was moved")


def moved_files(args: argparse.Namespace) -> dict[str, Path | None]:
    """What those options say."""
    return {name: getattr(args, name) for name in ("model", "cluster", "job", "profile")}


def load_planned(plan_path: Path, **moved: Path | None) -> tuple[Plan, Loaded]:
    """A plan and the inputs it was made from, where it says or where `moved` says. InputError if one changed."""
    plan = load_plan(plan_path)
    base, sources = plan_path.parent, plan.sources
    paths: dict[str, Path | None] = {}
    for name in ("model", "cluster", "job", "profile"):
        given = moved.get(name)
        stated: str | None = getattr(sources, name) if sources is not None else None
        if given is None and stated is None and name != "profile":
            raise InputError.single(str(plan_path), f"does not say where its {name} is", fix=f"give --{name}")
        paths[name] = given or (base / stated if stated is not None else None)
    job_path = paths["job"]
    assert job_path is not None
    loaded = load_inputs(job_path, paths["model"], paths["cluster"], paths["profile"])
    faults = []
    for name in ("model", "cluster", "job", "profile"):
        stated, actual = getattr(plan.inputs, name), getattr(loaded.inputs, name)
        if stated != actual:
            problem = f"has digest {actual}, the plan was made from {stated}"
            fix = f"plan again, or give the old file with --{name}"
            faults.append(Fault(source=str(paths[name] or plan_path), path=name, problem=problem, fix=fix))
    if faults:
        raise InputError(faults)
    return plan, loaded
