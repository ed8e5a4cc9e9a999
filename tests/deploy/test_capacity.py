"""Choosing nodes, and saying what is missing."""

from collections import Counter

import pytest

from baton.core.role import Role
from baton.deploy.cluster.capacity import Wish, choose_nodes
from baton.deploy.cluster.ray_nodes import RayNode
from baton.deploy.demand.demand import Demand
from baton.deploy.errors import StartError

P, D = Role.PREFILL, Role.DECODE


def node(
    name: str, cpus: float, gpus: float = 0, free: float | None = None, **labels: str
) -> RayNode:
    total = {"CPU": cpus, "GPU": gpus}
    left = total | {"CPU": cpus if free is None else free}
    return RayNode(name, f"10.0.0.{name}", total, left, labels)


def wishes(prefill: int, decode: int, demand: Demand) -> list[Wish]:
    counts = {P: prefill, D: decode}
    return [Wish(f"{role}-{i}", demand, role) for role, n in counts.items() for i in range(n)]


def test_each_role_is_spread_over_the_nodes() -> None:
    nodes = [node(str(number), 8) for number in range(4)]
    chosen = choose_nodes(nodes, wishes(2, 4, Demand(1)))
    assert {chosen[f"{D}-{i}"] for i in range(4)} == {"0", "1", "2", "3"}
    assert len({chosen[f"{P}-{i}"] for i in range(2)}) == 2
    assert sorted(Counter(chosen.values()).values()) == [1, 1, 2, 2]


def test_routers_are_spread_beside_the_one_that_has_a_node_of_its_own() -> None:
    nodes = [node(str(number), 8) for number in range(3)]
    routers = [Wish("r0", Demand(1), near="1"), Wish("r1", Demand(1)), Wish("r2", Demand(1))]
    chosen = choose_nodes(nodes, [*routers, *wishes(1, 2, Demand(1))])
    assert chosen["r0"] == "1" and {chosen["r1"], chosen["r2"]} == {"0", "2"}
    full = [node("0", 8), node("1", 8, free=0)]
    assert choose_nodes(full, routers) == dict.fromkeys(("r0", "r1", "r2"), "0")


def test_a_new_rank_goes_where_its_role_is_not_yet() -> None:
    nodes = [node("0", 8), node("1", 2), node("2", 8)]
    there = [("0", D), ("2", D), ("1", P)]
    assert choose_nodes(nodes, [Wish("d", Demand(1), D)], there) == {"d": "1"}


def test_a_role_takes_the_nodes_with_its_label_and_leaves_them_to_it() -> None:
    nodes = [node("0", 1, pool="fast"), node("1", 1)]
    free, bound = Wish("p", Demand(1), P), Wish("d", Demand(1, labels=(("pool", "fast"),)), D)
    assert choose_nodes(nodes, [free, bound]) == {"p": "1", "d": "0"}


def test_a_large_demand_finds_its_place_although_small_ones_spread() -> None:
    nodes = [node("0", 4), node("1", 4)]
    small = [Wish(f"p{i}", Demand(1), P) for i in range(4)]
    chosen = choose_nodes(nodes, [*small, Wish("d", Demand(4), D)])
    assert Counter(chosen.values())[chosen["d"]] == 1


def test_a_spread_that_leaves_no_node_whole_is_packed() -> None:
    nodes = [node("0", 4, 1), node("1", 4, 1)]
    small = [Wish(f"p{i}", Demand(1, gpus=0.5), P) for i in range(2)]
    chosen = choose_nodes(nodes, [*small, Wish("d", Demand(4), D)])  # the one without GPUs is last
    assert chosen["p0"] == chosen["p1"] != chosen["d"]


def test_the_message_names_what_each_node_lacks() -> None:
    nodes = [node("0", 4, free=0.5), node("1", 2, pool="slow"), node("2", 8, 1, pool="fast")]
    demand = Demand(1, gpus=2, custom=(("rdma", 1.0),), labels=(("pool", "fast"),))
    with pytest.raises(StartError) as raised:
        choose_nodes(nodes, [Wish("decode-7", demand, D)])
    told = str(raised.value)
    assert told.startswith(
        "decode-7 asks for 1 CPU, 2 GPU, 1 rdma on a node with pool=fast, and no node has that: "
    )
    assert "node 10.0.0.0 has no label pool, 4 CPU, 0.5 free, 0 GPU, 0 free, 0 rdma, 0 free" in told
    assert "node 10.0.0.1 has pool is slow" in told
    assert told.endswith("node 10.0.0.2 has 1 GPU, 1 free, 0 rdma, 0 free")


def test_the_message_says_how_many_of_the_cluster_are_there() -> None:
    told = r"asks for 1 CPU, and no node has that: node 10.0.0.0 has 2 CPU, 0 free beside 2 of this"
    with pytest.raises(StartError, match=told):
        choose_nodes([node("0", 2)], wishes(1, 2, Demand(1)))


def test_a_ray_without_nodes() -> None:
    with pytest.raises(StartError, match="Ray has no node"):
        choose_nodes([], wishes(1, 0, Demand(1)))
