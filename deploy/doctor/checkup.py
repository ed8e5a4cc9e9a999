"""All checks of `baton doctor`, in the order in which the report prints them."""

from collections.abc import Iterator, Mapping

from baton.deploy.doctor.compute import check_compiler, check_cores, check_huge_pages, check_torch
from baton.deploy.doctor.finding import Finding
from baton.deploy.doctor.host import check_clock, check_folder, check_open_files, check_ports
from baton.deploy.doctor.links import check_nixl, check_rdma, check_shared_memory, check_ucx
from baton.deploy.doctor.packages import check_packages


def findings(host: str, ports: Mapping[str, int]) -> Iterator[Finding]:
    """Run every check. ports: those that the router would bind on `host`, by their options."""
    yield from check_packages()
    yield from check_torch()
    yield check_compiler()
    yield check_cores()
    yield check_huge_pages()
    yield check_nixl()
    yield check_shared_memory()
    yield check_rdma()
    yield check_ucx()
    yield check_open_files()
    yield check_folder()
    yield check_clock()
    yield from check_ports(host, ports)
