"""Choosing a node for each process: workers of one role lie apart from each other.

Ray places, and places again when a node is lost. What is chosen here is where it tries first: Ray
by itself spreads what lies in one placement group, and each worker has a group of its own. The
choice also tells at once what is missing, where Ray would wait for a node in silence.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.core.role import Role
from baton.deploy.cluster.ray_nodes import RayNode
from baton.deploy.demand.demand import Demand, missing
from baton.deploy.demand.label_selector import selects
from baton.deploy.errors import StartError


@dataclass(frozen=True)
class Wish:
    """A process that needs a node."""

    name: str
    demand: Demand
    role: Role | None = None  # None: a router
    near: str | None = None  # the id of the node that it takes if that has room; None: any


def choose_nodes(
    nodes: Sequence[RayNode],
    wishes: Sequence[Wish],
    there: Sequence[tuple[str, Role]] = (),
) -> dict[str, str]:
    """Return the id of a node by each wish's name.

    there: node ids and roles of the workers that run already. Raises StartError that says what is
    missing for which process, and what each node has.
    """
    # Those that fewer nodes can take come first; nobody else then takes the last place of theirs.
    order = sorted(wishes, key=lambda wish: _choice(nodes, wish))
    try:
        return _place(nodes, order, there, _apart)
    except StartError as spread:
        try:  # large demands after small ones that were spread may find no node whole
            return _place(nodes, order, there, _tight)
        except StartError:
            raise spread from None


class _NodeCapacity:
    """One node while processes are being placed."""

    def __init__(self, node: RayNode) -> None:
        self.node = node
        self.free = dict(node.free)
        self.roles: Counter[Role | None] = Counter()

    def takes(self, demand: Demand) -> bool:
        return selects(demand.labels, self.node.labels) and not missing(demand.resources, self.free)

    def take(self, wish: Wish) -> None:
        for name, amount in wish.demand.resources.items():
            self.free[name] -= amount
        self.roles[wish.role] += 1


_Rank = Callable[[_NodeCapacity, Wish], tuple[float, ...]]


def _place(
    nodes: Sequence[RayNode],
    order: Sequence[Wish],
    there: Sequence[tuple[str, Role]],
    rank: _Rank,
) -> dict[str, str]:
    rooms = {node.node_id: _NodeCapacity(node) for node in nodes}
    for node_id, role in there:
        if node_id in rooms:
            rooms[node_id].roles[role] += 1
    chosen: dict[str, str] = {}
    for wish in order:
        fitting = [room for room in rooms.values() if room.takes(wish.demand)]
        if not fitting:
            raise StartError(_lack(wish, list(rooms.values()), chosen, nodes))
        best = min(fitting, key=lambda room: (_is_far(room, wish), rank(room, wish)))
        best.take(wish)
        chosen[wish.name] = best.node.node_id
    return chosen


def _apart(room: _NodeCapacity, wish: Wish) -> tuple[float, ...]:
    """Rank nodes without workers of this role first, then those with few workers."""
    same = room.roles[wish.role]
    return same, room.roles.total(), -sum(room.free.get(name, 0.0) for name in ("GPU", "CPU"))


def _is_far(room: _NodeCapacity, wish: Wish) -> bool:
    return wish.near is not None and room.node.node_id != wish.near


def _tight(room: _NodeCapacity, wish: Wish) -> tuple[float, ...]:
    """Rank nodes first of which least would stay free."""
    return tuple(room.free.get(name, 0.0) for name in ("GPU", "CPU"))


def _choice(nodes: Sequence[RayNode], wish: Wish) -> tuple[int, float, float]:
    """Rank wishes first that few nodes can take, of those the largest."""
    fitting = sum(_NodeCapacity(node).takes(wish.demand) for node in nodes)
    return fitting, -wish.demand.gpus, -wish.demand.cpus


def _lack(
    wish: Wish, rooms: Sequence[_NodeCapacity], chosen: Mapping[str, str], nodes: Sequence[RayNode]
) -> str:
    """Say what a process asks for, and what keeps each node from taking it."""
    taken = Counter(chosen.values())
    told = "; ".join(_why(room, wish.demand, taken[room.node.node_id]) for room in rooms)
    return f"{wish.name} asks for {wish.demand}, and no node has that: {told or 'Ray has no node'}"


def _why(room: _NodeCapacity, demand: Demand, taken: int) -> str:
    node = room.node
    wrong = [
        f"{key} is {node.labels[key]}" if key in node.labels else f"no label {key}"
        for key, selector in demand.labels
        if not selects([(key, selector)], node.labels)
    ]
    short = [
        f"{node.total.get(name, 0.0):g} {name}, {max(0.0, room.free.get(name, 0.0)):g} free"
        for name in missing(demand.resources, room.free)
    ]
    besides = f" beside {taken} of this cluster" if short and taken else ""
    return f"node {node.address} has {', '.join(wrong + short)}{besides}"
