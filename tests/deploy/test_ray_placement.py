"""Workers on a Ray of two nodes: their GPUs, their node, their address, their certificate."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import ray
from certificates import folder_of
from deploy.probe import Found, Probe, RouterProbe
from deploy.some_ray import DEADLINE_S, SomeRay, some_ray
from kit.polling import wait_until

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster import ray_nodes, ray_start
from baton.deploy.cluster.actor_processes import processes_of
from baton.deploy.cluster.actors import RouterHandle, WorkerHandle
from baton.deploy.cluster.arrival import Arrival, Travel
from baton.deploy.cluster.capacity import Wish, choose_nodes
from baton.deploy.cluster.control_relay import start_relay
from baton.deploy.cluster.host import WorkerServed
from baton.deploy.cluster.ray_nodes import living_nodes
from baton.deploy.cluster.renewal import renewing
from baton.deploy.cluster.router_arrival import RouterArrival, files_of
from baton.deploy.cluster.router_places import RouterPlace, RouterPlaces
from baton.deploy.cluster.start_reports import StartReports
from baton.deploy.demand.demand import Demand, NodePlacement
from baton.deploy.errors import ControlError, DeployError, StartError
from baton.deploy.messages.control import ask, listening
from baton.deploy.messages.start_progress import Silent, StartProgress
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.rpc.credentials import AUTHORITIES, CERT, KEY
from baton.rpc.identity import ProcessRole
from baton.rpc.server_certificate import CertificateFiles
from baton.worker.config import WorkerConfig

pytestmark = pytest.mark.cluster

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
MADE = 1_000


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SomeRay]:
    """A head of two GPUs that are in its books alone, and a node with a label; this process has
    joined."""
    with some_ray(
        tmp_path_factory.mktemp("ray"), HEAD, "--num-cpus", "4", "--num-gpus", "2"
    ) as ray, pytest.MonkeyPatch.context() as patch:  # fmt: skip
        for name, value in ray.env.items():
            patch.setenv(name, value)
        ray.join(OTHER, "--num-cpus", "2", "--labels", "pool=fast", "--resources", '{"rdma": 1}')
        ray_start.connect(ray_start.RayConfig(ray.address))
        try:
            until(lambda: len(living_nodes()) == 2)
            yield ray
        finally:
            ray_start.leave()


@pytest.fixture
def made(two_nodes: SomeRay) -> Iterator["Maker"]:
    with ExitStack() as ended:
        yield Maker(ended)


class Maker:
    """Makes workers that end with the test."""

    def __init__(self, ended: ExitStack) -> None:
        self._ended = ended

    def __call__(
        self, name: str, demand: Demand, near: str | None = None, interface: str | None = None
    ) -> WorkerHandle:
        config = WorkerConfig(name, Role.DECODE, EngineConfig(Path("m"), tickets=1),
                              credentials=certificate(name))  # fmt: skip
        travel = Travel(CredentialFiles.read(certificate(name)), interface)
        handle = WorkerHandle(
            cast(type[WorkerServed], Probe), config, demand, Arrival(MADE, travel), near
        )
        self._ended.callback(handle.end)
        return handle


def certificate(name: str) -> Path:
    return folder_of(ProcessRole.DECODE, name)


def found(handle: WorkerHandle) -> Found:
    answer: Found = handle.start().result(DEADLINE_S)
    return answer


def until(true: Callable[[], object]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)


def free(resource: str) -> float:
    return sum(node.free.get(resource, 0.0) for node in living_nodes())


def test_each_worker_gets_a_gpu_of_its_own_and_a_third_is_told_what_is_missing(
    made: Maker,
) -> None:
    demand = Demand(cpus=1, gpus=1)
    first, second = (found(made(f"decode-{n}", demand)) for n in range(2))
    assert {first.gpus, second.gpus} == {"0", "1"}
    third = made("decode-2", demand)
    assert third.node_id is None
    told = third.lacks()
    assert told.startswith("decode-2 asks for 1 CPU, 1 GPU, and no node has that: ")
    assert f"node {HEAD} has 2 GPU, 0 free" in told
    assert f"node {OTHER} has 0 GPU, 0 free" in told


def test_a_worker_gets_a_gpu_for_each_of_its_ranks_on_one_node(made: Maker) -> None:
    placement = NodePlacement()
    worker = made("decode-0", placement.demand(Role.DECODE, 1, "cuda", 2))
    gpus = found(worker).gpus
    assert gpus is not None and set(gpus.split(",")) == {"0", "1"}
    too_many = made("decode-1", placement.demand(Role.DECODE, 1, "cuda", 4))
    assert too_many.node_id is None
    told = too_many.lacks()
    assert told.startswith("decode-1 asks for 1 CPU, 4 GPU, and no node has that: ")
    assert f"node {HEAD} has 2 GPU, 0 free" in told


def test_parts_of_a_gpu_are_shared(made: Maker) -> None:
    shared = [found(made(f"decode-{n}", Demand(cpus=1, gpus=0.5))) for n in range(2)]
    assert shared[0].gpus == shared[1].gpus and shared[0].gpus in {"0", "1"}


@pytest.mark.parametrize(
    "demand",
    [Demand(1, labels=(("pool", "fast"),)), Demand(1, custom=(("rdma", 1.0),))],
    ids=["label", "resource"],
)
def test_a_worker_runs_where_its_label_or_resource_is(made: Maker, demand: Demand) -> None:
    assert found(made("decode-0", demand)).host == OTHER


def test_workers_are_spread_and_what_they_took_is_free_again(
    two_nodes: SomeRay,
) -> None:
    until(lambda: free("CPU") == 6)
    wishes = [Wish(f"decode-{n}", Demand(1), Role.DECODE) for n in range(4)]
    nodes = choose_nodes(living_nodes(), wishes)
    with ExitStack() as ended:
        make = Maker(ended)
        handles = [make(wish.name, wish.demand, nodes[wish.name]) for wish in wishes]
        hosts = [found(handle).host for handle in handles]
        assert sorted(hosts) == [HEAD, HEAD, OTHER, OTHER]
        assert [handle.node_id for handle in handles] == [nodes[wish.name] for wish in wishes]
        assert free("CPU") == 2
    until(lambda: free("CPU") == 6)


def test_its_certificate_comes_along_for_its_user_alone(made: Maker) -> None:
    there = found(made("decode-0", Demand(1)))
    sent = certificate("decode-0")
    assert there.credentials not in (None, sent)
    assert there.folder_mode == 0o700
    for name in (CERT, KEY, AUTHORITIES):
        assert there.files[name] == ((sent / name).read_bytes(), 0o600)


def test_its_certificate_is_removed_when_it_stops(made: Maker) -> None:
    handle = made("decode-0", Demand(1))
    there = found(handle).credentials
    assert there is not None and there.exists()
    handle.stop(0.0).result(DEADLINE_S)
    assert not there.exists()


def test_it_listens_on_the_interface_that_is_named(made: Maker) -> None:
    assert found(made("decode-0", Demand(1), interface="lo")).host == "127.0.0.1"


def test_an_interface_that_its_host_lacks_is_named(made: Maker) -> None:
    with pytest.raises(StartError, match=r"--worker-interface eth99: this machine has .*lo"):
        found(made("decode-0", Demand(1), interface="eth99"))


def test_no_key_is_in_what_is_printed_of_a_worker() -> None:
    files = CredentialFiles.read(certificate("decode-0"))
    printed = repr(Arrival(MADE, Travel(files)))
    assert "tls.key" in printed and "PRIVATE" not in printed


def test_a_changed_certificate_reaches_each_of_its_lives(made: Maker, tmp_path: Path) -> None:
    handle = made("decode-0", Demand(1))
    first = found(handle)
    here = tmp_path / "here"
    shutil.copytree(certificate("decode-1"), here)
    with renewing(lambda: {handle: lambda: CredentialFiles.read(here)}, ProcessSupervisor()):
        until(lambda: arrived(first) == CredentialFiles.read(here))
        os.kill(first.pid, signal.SIGKILL)
        again = wait_until(lambda: later(handle, first))
        until(lambda: arrived(again) == CredentialFiles.read(here))


def arrived(life: Found) -> CredentialFiles:
    assert life.credentials is not None
    return CredentialFiles.read(life.credentials)


def test_each_life_has_a_later_incarnation_whatever_the_clock_says(made: Maker) -> None:
    handle = made("decode-0", Demand(1))
    lives = [found(handle)]
    for _ in range(2):
        os.kill(lives[-1].pid, signal.SIGKILL)
        lives.append(wait_until(lambda: later(handle, lives[-1])))
    assert [life.incarnation for life in lives] == [MADE, MADE + 1, MADE + 2]


ROUTER = folder_of(ProcessRole.ROUTER, "router-0")


@pytest.fixture
def places(two_nodes: SomeRay) -> Iterator[RouterPlaces]:
    places = RouterPlaces("one")
    yield places
    places.delete()


@contextmanager
def router(config: RouterConfig, near: str) -> Iterator[RouterHandle]:
    arrival = RouterArrival("router-0", "one", MADE, files_of(config))
    node = next(node.node_id for node in living_nodes() if node.address == near)
    handle = RouterHandle("router-0", RouterProbe, config, Demand(1), arrival, node)
    try:
        yield handle
    finally:
        handle.end()


def test_a_router_takes_its_files_along_and_later_changes_follow(
    places: RouterPlaces, tmp_path: Path
) -> None:
    cert, key, keys = (tmp_path / name for name in ("c.pem", "k.pem", "keys.json"))
    for path in (cert, key, keys):
        path.write_text(path.name)
    config = RouterConfig(Path("m"), ROUTER, host="0.0.0.0", api_keys=keys,
                          client_tls=CertificateFiles(cert, key))  # fmt: skip
    with router(config, OTHER) as handle:
        there = handle.start().result(DEADLINE_S).config
        assert places.read() == {
            "router-0": RouterPlace(MADE, f"{OTHER}:1", f"{OTHER}:2", f"{OTHER}:3")
        }
        assert CredentialFiles.read(there.credentials) == CredentialFiles.read(ROUTER)
        assert there.client_tls is not None and there.api_keys is not None
        copies = {cert: there.client_tls.certificate, key: there.client_tls.key,
                  keys: there.api_keys}  # fmt: skip
        assert {path: copy.read_text() for path, copy in copies.items()} == {
            path: path.name for path in copies
        }
        assert tmp_path not in [copy.parent for copy in copies.values()]
        with renewing(lambda: {handle: lambda: files_of(config)}, ProcessSupervisor()):
            keys.write_text("other")
            until(lambda: there.api_keys is not None and there.api_keys.read_text() == "other")
        handle.stop(0.0).result(DEADLINE_S)
        assert not there.api_keys.exists(), "nothing stays behind"


def test_a_router_elsewhere_passes_requests_on_to_the_supervisor(
    places: RouterPlaces, tmp_path: Path
) -> None:
    def handle(arguments: Mapping[str, Any], progress: StartProgress) -> Mapping[str, Any]:
        if "bad" in arguments:
            raise ControlError("no such thing")
        progress.update("decode-7", "starts", 0.5)
        progress.done("decode-7", "is here")
        return {"got": dict(arguments)}

    control = tmp_path / "supervisor.sock"
    config = RouterConfig(Path("m"), ROUTER, host="0.0.0.0", control=control)
    with router(config, OTHER) as handle_of_router, ExitStack() as ended:
        there = handle_of_router.start().result(DEADLINE_S).config.control
        assert there not in (None, control)
        with pytest.raises(DeployError, match="supervisor's host does not answer"):
            ask(there, "scale", {}, Silent())
        relay = start_relay(control, detached=False)
        ended.callback(ray.kill, relay, no_restart=True)
        with pytest.raises(DeployError, match="the supervisor does not answer"):
            ask(there, "scale", {}, Silent())
        with listening(control, {"scale": handle}, ProcessSupervisor()):
            reports = StartReports(Silent())
            assert ask(there, "scale", {"decode": 8}, reports) == {"got": {"decode": 8}}
            assert [each.phase for each in reports.after(0)] == ["starts", "is here"]
            with pytest.raises(DeployError, match="no such thing"):
                ask(there, "scale", {"bad": 1}, Silent())


def test_an_old_process_of_a_router_ends_once_a_newer_one_is_known(places: RouterPlaces) -> None:
    """A host that was cut off until Ray had started its router elsewhere has one. Here Ray counts
    the old one's end as a death, and starts it again as often as a newer one is known."""
    newer = RouterPlace(MADE + 100, "h:1", "h:2", "h:3")
    with router(RouterConfig(Path("m"), ROUTER, host="0.0.0.0"), HEAD) as handle:
        first = handle.start().result(DEADLINE_S)
        places.write("router-0", newer)
        with pytest.raises(StartError, match="a newer start of router-0 is at h:3"):
            places.write("router-0", replace(newer, incarnation=MADE))
        until(lambda: not psutil.pid_exists(first.pid))
        until(lambda: restarts(handle) >= 2)
        assert places.read() == {"router-0": newer}
        places.delete()
        until(lambda: "router-0" in places.read())
        assert places.read()["router-0"].incarnation > MADE


def restarts(handle: RouterHandle) -> int:
    found = processes_of([handle]).get(handle.name)
    return 0 if found is None else found.restarts


def later(handle: WorkerHandle, before: Found) -> Found | None:
    """Return what the next life found; None while there is none."""
    call = handle.start()
    if not call.ready(DEADLINE_S):
        return None
    try:
        again: Found = call.result()
    except StartError:  # the call met the life that has ended
        return None
    return None if again.pid == before.pid else again


def test_a_worker_of_a_lost_node_returns_on_another_at_its_address(
    made: Maker, two_nodes: SomeRay
) -> None:
    near = next(node.node_id for node in living_nodes() if node.address == OTHER)
    handle = made("decode-0", Demand(1), near)
    first = found(handle)
    assert first.host == OTHER
    two_nodes.kill(OTHER)
    again = wait_until(lambda: later(handle, first))
    assert (again.host, again.incarnation) == (HEAD, MADE + 1)
    assert again.files[KEY] == first.files[KEY]
    until(lambda: [node.address for node in living_nodes()] == [HEAD])


def test_the_address_is_the_one_by_which_the_node_joined(two_nodes: SomeRay) -> None:
    assert ray_nodes.this_address() in {HEAD, OTHER}
