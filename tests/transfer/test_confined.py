"""NIXL listens on loopback, or on an interface that the operator trusts, and nowhere else."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from transfer.layouts import Pools
from transfer.wires import channel_context

from baton.core.errors import ConfigError
from baton.transfer.channels import registry
from baton.transfer.channels.nixl import ucx
from baton.transfer.channels.nixl.channel import NixlChannel
from baton.transfer.channels.trusted_network import TrustedNetwork
from baton.transfer.errors import ChannelError
from baton.transfer.tickets import TicketTable

ROOT = Path(__file__).resolve().parents[2]
LISTENERS = Path(__file__).with_name("agent_listeners.py")
DEADLINE_S = 60.0
MIB = 1 << 20


def listeners(*devices: str, **environment: str) -> Any:
    """Return the addresses of an agent's listeners in a process of its own, or its complaint."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    done = subprocess.run(
        [sys.executable, str(LISTENERS), *devices],
        env=inherited | environment | {"PYTHONPATH": f"{ROOT}/.types"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    return json.loads(done.stdout)


def another_interface() -> tuple[str, str]:
    """Return the name and the IPv4 address of an interface besides loopback; skip without one."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family is socket.AF_INET and name in up - {"lo"}:
                return name, address.address
    pytest.skip("this machine has loopback alone")


def test_an_agent_listens_on_loopback_alone() -> None:
    assert set(listeners()) == {"127.0.0.1"}


def test_an_agent_listens_on_the_interface_that_is_named_and_nowhere_else() -> None:
    name, address = another_interface()
    assert set(listeners(name)) == {address}
    assert set(listeners(name, UCX_NET_DEVICES=name)) == {address}


def test_what_ucx_was_told_otherwise_is_refused_and_not_overridden() -> None:
    complaint = listeners(UCX_NET_DEVICES="eth9")
    assert "UCX_NET_DEVICES is eth9" in complaint and "on lo alone" in complaint
    assert "--nixl-interface" in complaint


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> TrustedNetwork:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    return TrustedNetwork("10.1.2.3")


def test_beyond_loopback_auto_leaves_nixl_out_until_an_interface_is_named(
    elsewhere: TrustedNetwork,
) -> None:
    assert NixlChannel in registry.select("auto", alone=True)
    assert NixlChannel not in registry.select("auto", alone=True, network=elsewhere)
    with pytest.raises(ChannelError, match=r"10\.1\.2\.3.*--nixl-interface"):
        registry.select("nixl", alone=True, network=elsewhere)
    named = TrustedNetwork("10.1.2.3", ("lo",))
    assert NixlChannel in registry.select("auto", alone=True, network=named)


@pytest.mark.parametrize("channel", ["auto", "nixl"])
def test_an_unknown_interface_is_refused_with_those_there_are(
    channel: str, elsewhere: TrustedNetwork
) -> None:
    wrong = TrustedNetwork("10.1.2.3", ("lo", "eth77"))
    with pytest.raises(ConfigError, match=r"--nixl-interface eth77: .* there are .*\blo\b"):
        registry.select(channel, alone=True, network=wrong)
    with pytest.raises(ConfigError, match="eth77"):
        registry.check_settings(channel, wrong)


def test_what_contradicts_is_refused_before_a_start(
    elsewhere: TrustedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "eth9")
    with pytest.raises(ConfigError, match="UCX_NET_DEVICES"):
        registry.check_settings("auto", TrustedNetwork())
    registry.check_settings("grpc", TrustedNetwork())
    registry.check_settings("auto", elsewhere)  # NIXL is not used there


def test_rdma_devices_are_interfaces_too(
    tmp_path: Path, elsewhere: TrustedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr("baton.transfer.channels.trusted_network._RDMA", tmp_path)
    registry.check_settings("nixl", TrustedNetwork("10.1.2.3", ("mlx5_0:1", "lo")))
    with pytest.raises(ConfigError, match=r"there are .*mlx5_0"):
        registry.check_settings("nixl", TrustedNetwork("10.1.2.3", ("mlx5_1:1",)))


def test_too_little_shared_memory_is_seen_before_ucx_dies_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("UCX_TLS", raising=False)
    room = SimpleNamespace(f_bavail=16, f_frsize=MIB)
    monkeypatch.setattr(ucx.os, "statvfs", lambda path: room)
    ucx.check_shared_memory(agents=3)
    with pytest.raises(ChannelError, match=r"16 MiB free, and NIXL needs 20 MiB.*--channel grpc"):
        ucx.check_shared_memory(agents=4)
    with pytest.raises(ChannelError, match="0 MiB free"):
        ucx.check_shared_memory(folder="/no/such/folder")
    room.f_bavail = 1
    assert NixlChannel not in registry.select("auto", alone=True)
    monkeypatch.setenv("UCX_TLS", "tcp")
    ucx.check_shared_memory(agents=4)  # it maps nothing


@pytest.mark.parametrize("gpu", [True, False])
def test_beside_a_gpu_the_advice_is_one_with_which_nixl_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """NIXL refuses a UCX_TLS that names no transport for the GPU's memory."""
    monkeypatch.setattr(ucx, "DRIVER", tmp_path / "version")
    if gpu:
        (tmp_path / "version").touch()
    name, _, value = ucx.network_alone().partition("=")
    monkeypatch.setenv(name, value)
    assert not ucx.maps_peers() and not ucx.leaves_gpus_out({name: value})
    monkeypatch.delenv(name)
    with pytest.raises(ChannelError, match=f"set {name}={value}, or use --channel grpc"):
        ucx.check_shared_memory(folder="/no/such/folder")
    for transports in ("tcp", "rc,sm", ""):
        assert ucx.leaves_gpus_out({name: transports}) is gpu, transports
    for transports in ("tcp,cuda_copy", "cuda,sm", "all", "^rc"):
        assert not ucx.leaves_gpus_out({name: transports}), transports
    assert not ucx.leaves_gpus_out({})


def test_only_readers_that_need_no_help_are_lent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools()
    channel = NixlChannel(channel_context(pools, TicketTable(pools.memory, 0)))
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert channel.reads_alone(os.getpid())
    assert not channel.reads_alone(None), "over a network"
    with subprocess.Popen(["sleep", "0"]) as ended:
        ended.wait()
        assert not channel.reads_alone(ended.pid)
    for transports, alone in (
        ("all", True), ("sm,tcp", True), ("cma,tcp", True), ("^rc", True),
        ("tcp", False), ("tcp,posix", False), ("^cma", False), ("^shm,rc", False),
    ):  # fmt: skip
        monkeypatch.setenv("UCX_TLS", transports)
        assert channel.reads_alone(os.getpid()) is alone, transports
