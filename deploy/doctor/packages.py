"""Checks of the installed Python packages against Baton's own requirements."""

import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from baton.deploy.doctor.finding import Finding, Level, ok

NAMED = ("torch", "triton", "ray", "grpcio", "protobuf", "nixl")
"""The packages whose versions are told one by one."""

_MEANING = {
    "ray": "Ray starts the workers and restarts them; Baton relies on what older ones lack",
    "nixl": "without NIXL state travels by gRPC, which is slower, above all beside RDMA",
    "torch": "every worker computes with it",
    "triton": "GPU kernels are written in it; workers on CPUs do not use it",
}
_DISTRIBUTION = "baton-serve"


def check_packages() -> Iterator[Finding]:
    """Compare every package that Baton requires with its installed version."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    if installed(_DISTRIBUTION) is None:
        yield Finding("python", Level.NOTE, f"{python}; Baton itself is not installed as a package")
        return
    others = 0
    for requirement in requirements():
        finding = check_package(requirement)
        if requirement.name in NAMED or finding.level is not Level.OK:
            yield finding
        else:
            others += 1
    yield ok("python", f"{python}; {others} other packages are as Baton requires them")


def requirements(distribution: str = _DISTRIBUTION) -> list[Requirement]:
    """Return what a distribution requires on this system without its extras.

    Raises PackageNotFoundError where it is not installed.
    """
    listed = [Requirement(line) for line in metadata.requires(distribution) or ()]
    return [r for r in listed if r.marker is None or r.marker.evaluate({"extra": ""})]


def check_package(requirement: Requirement) -> Finding:
    name = requirement.name
    meaning = _MEANING.get(name, "Baton imports it")
    remedy = f"pip install '{name}{requirement.specifier}'"
    version = installed(name)
    if version is None:
        return Finding(name, Level.PROBLEM, "not installed", meaning, remedy)
    if not requirement.specifier.contains(version, prereleases=True):
        found = f"{version}; Baton requires {requirement.specifier}"
        return Finding(name, Level.PROBLEM, found, meaning, remedy)
    return ok(name, version)


def installed(name: str) -> str | None:
    """Return the version of an installed distribution; None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
