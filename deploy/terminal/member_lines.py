"""The lines of `baton status` about processes, from what the supervisor of a cluster says."""

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from baton.deploy.cluster.member_state import MemberState, MemberView, complaint
from baton.deploy.messages.json_object import JsonObject

_STYLES = dict.fromkeys((MemberState.STARTING, MemberState.LATE, MemberState.SERVING), "yellow")


def render_start(told: JsonObject) -> RenderableType:
    """Build the lines of a cluster that starts or stops. told: the answer to `describe`."""
    head = Text.assemble((told["name"], "bold"), f" is {told['phase']}  {told['http_url']}")
    return Group(head, *(Text(f"  {part:<12} {at}") for part, at in told["parts"].items()))


def render_changes(changes: Iterable[JsonObject]) -> list[RenderableType]:
    """Build a line for each part of each change under way. changes: as `describe` has them."""
    return [
        Text(f"{change['request']}: {part} {at}", "yellow")
        for change in changes
        for part, at in change["parts"].items()
    ]


def render_complaints(members: Mapping[str, JsonObject]) -> list[RenderableType]:
    """Build a line for each member that does not serve, or whose last life ended by itself.

    members: each `MemberView` as JSON.
    """
    lines: list[RenderableType] = []
    for name, fields in members.items():
        view = MemberView(**{**fields, "state": MemberState(fields["state"])})
        if text := complaint(name, view):
            lines.append(Text(text, _STYLES.get(view.state, "red")))
    return lines
