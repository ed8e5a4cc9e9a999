"""Tests of what a running cluster does for another value of each option of `baton serve`."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deploy.wired import wired

from baton.api.access.keys import write_keys
from baton.core.cache_salt import CacheScope
from baton.core.role import Role
from baton.deploy.apply_settings import apply_handlers
from baton.deploy.cluster.change_requests import (
    APPLY,
    ApplyRequest,
    OptionChange,
    changes_in,
)
from baton.deploy.cluster.device_choice import ChosenDevice
from baton.deploy.cluster.newest_config import with_changes
from baton.deploy.config_from import serve_config_from
from baton.deploy.errors import ControlError, ScaleError, StartError
from baton.deploy.messages.start_progress import Silent
from baton.deploy.options.config_file import names_of
from baton.deploy.options.in_force import default_of, read_settings
from baton.deploy.options.serve import ServeArguments
from baton.deploy.options.setting import DEFAULT, Setting, Value
from baton.deploy.options.value_schema import is_valid, schema_of

OTHERS: dict[str, Value] = {
    "dtype": "bfloat16", "device": "cuda", "served-model-name": "other", "host": "::1",
    "forwarded-allow-ips": "10.0.0.1", "otlp-traces-endpoint": "http://127.0.0.1:4317",
    "metric-aliases": "vllm", "default-chat-template-kwargs": '{"a": 1}',
    "tool-call-parser": "hermes", "reasoning-parser": "none", "internal-host": "::1",
    "speculative-config": '{"method": "ngram", "num_speculative_tokens": 2}',
}  # fmt: skip
"""Values of options whose texts are not free."""


class StandingCluster:
    """A cluster of which nothing but its configs is there; it notes what it is told to do."""

    rolling = SimpleNamespace(check=lambda wiring: None)
    http_url = "http://127.0.0.1:1"

    def __init__(self, folder: Path, **given: Value) -> None:
        names = {each.names[0].removeprefix("--"): each for each in names_of("serve").values()}
        defaults = {name: default_of(each) for name, each in names.items()}
        said = {"model": str(folder), "device": "cpu"} | given
        settings = defaults | {name: Setting(name, said[name], "command line") for name in said}
        arguments = read_settings(ServeArguments, settings.values())
        device = ChosenDevice("cpu", "", None)
        self.config = serve_config_from(arguments, device, tuple(settings.values()))
        self.wiring = wired(self.config)
        self.done: list[object] = []
        self._counts = {Role.PREFILL: self.config.prefill, Role.DECODE: self.config.decode}

    def members(self, role: Role) -> list[int]:
        return list(range(self._counts[role]))

    def scale(self, role: Role, count: int, *more: object) -> None:
        self._counts[role] = count
        self.done.append((role.value, count))

    def reconfigure(self, config: Any, roles: Any, *more: object) -> None:
        self.config = config
        self.wiring = wired(config)
        if roles:
            self.done.append(sorted(roles))

    def apply(self, *settings: Setting, dry_run: bool = False) -> dict[str, OptionChange]:
        request = ApplyRequest(settings, 0.0, dry_run)
        handler = apply_handlers(self)[APPLY]  # type: ignore[arg-type]
        return {each.after.name: each for each in changes_in(handler(request.arguments, Silent()))}


@pytest.fixture
def cluster(tiny: Path) -> StandingCluster:
    return StandingCluster(tiny)


def said(name: str, value: Value, line: int = 1) -> Setting:
    return Setting(name, value, f"/etc/baton.yaml:{line}")


AT_ONCE = {"prefill", "decode", "drain", "insecure", "offline"}
"""Options that change without a restart: of whoever runs the cluster, or of the start alone."""


def other_values(name: str, folder: Path) -> list[Value]:
    """Return values that are right for an option by its type."""
    schema = schema_of(names_of("serve")[name])
    words: Any = schema.get("enum", [])
    tried = [OTHERS.get(name), True, 2, 3, 0.5, 0.25, 99, *reversed(words), str(folder), "x", ["x"]]
    return [each for each in tried if each is not None and is_valid(each, schema)]


def test_no_option_is_silently_left_as_it_was(cluster: StandingCluster, tiny: Path) -> None:
    """Each has processes restarted, or needs a new start, or is of those that change at once. One
    that needs others beside it is refused.
    """
    refused = set()
    for now in cluster.config.settings:
        value = next(each for each in other_values(now.name, tiny) if each != now.value)
        try:
            (change,) = cluster.apply(said(now.name, value), dry_run=True).values()
        except StartError:
            refused.add(now.name)
            continue
        silent = not change.restarts and not change.new_start
        assert silent is (now.name in AT_ONCE), change
        assert (change.before, change.after) == (now, said(now.name, value))
    assert len(refused) < 25, refused
    assert not cluster.done


@pytest.mark.parametrize(
    ("name", "value", "restarts", "new_start"),
    [
        ("policy", "least_load", ("router",), False),
        ("prefill-beside-decode", 7, ("decode", "prefill"), False),
        ("speculative-algorithm", "ngram", ("decode",), False),
        ("lease", 2, ("decode", "prefill", "router"), False),
        ("decode", 3, (), False),
        ("drain", 9, (), False),
        ("page-size", 16, ("decode", "prefill"), True),
        ("dtype", "bfloat16", ("decode", "prefill"), True),
        ("device", "auto", (), True),
        ("routers", 2, (), True),
        ("http-port", 1, (), True),
        ("cluster", "x", (), True),
    ],
)
def test_a_change_asks_for_no_more_than_it_must(
    cluster: StandingCluster, name: str, value: Value, restarts: tuple[str, ...], new_start: bool
) -> None:
    change = cluster.apply(said(name, value), dry_run=True)[name]
    assert (change.restarts, change.new_start) == (restarts, new_start)


def test_workers_leave_first_and_join_last_and_the_second_time_nothing_is_done(
    tiny: Path,
) -> None:
    cluster = StandingCluster(tiny, prefill=2)
    file = (said("prefill", 1), said("decode", 3), said("policy", "least_load"), said("drain", 9))
    assert cluster.apply(*file).keys() == {"prefill", "decode", "policy", "drain"}
    assert cluster.done == [("prefill", 1), ["router"], ("decode", 3)]
    assert cluster.config.router.policy == "least_load" and cluster.config.drain_s == 9
    assert cluster.apply(*file) == {}
    moved = [Setting(each.name, each.value, "/etc/baton.yaml:77") for each in file]
    assert cluster.apply(*moved) == {}
    assert len(cluster.done) == 3
    sources = {each.name: each.source for each in cluster.config.settings}
    assert sources["decode"] == sources["policy"] == "/etc/baton.yaml:77"


def test_what_a_file_names_no_more_is_the_default_again_and_the_command_line_stays(
    tiny: Path,
) -> None:
    cluster = StandingCluster(tiny, **{"worker-wait": 3})
    cluster.apply(said("policy", "least_load"), said("decode", 2))
    cluster.scale(Role.DECODE, 4)
    changes = cluster.apply(said("lease", 2), dry_run=True)
    assert {name: each.after.value for name, each in changes.items()} == {
        "policy": "prefix_aware", "lease": 2,
    }  # fmt: skip
    assert changes["policy"].after.source == DEFAULT
    changes = cluster.apply(said("policy", "least_load"), said("decode", 2))
    assert changes["decode"].before == Setting("decode", 4, "baton scale; 2 before")
    assert changes["decode"].after.value == 2 and cluster.done[-1] == ("decode", 2)
    assert cluster.config.router.worker_wait_s == 3


def test_nothing_is_done_where_one_option_needs_a_new_start(cluster: StandingCluster) -> None:
    file = (said("decode", 2), said("page-size", 16, 7), said("policy", "least_load"))
    with pytest.raises(ScaleError, match=r"change page-size \(/etc/baton.yaml:7\), so nothing"):
        cluster.apply(*file)
    assert cluster.done == []
    assert cluster.apply(*file, dry_run=True)["page-size"].new_start


def test_options_that_only_go_together_are_applied_together(tiny: Path, tmp_path: Path) -> None:
    cluster = StandingCluster(tiny)
    write_keys(tmp_path / "keys.json", ())
    file = (said("api-keys", str(tmp_path / "keys.json")), said("cache-scope", "key"))
    with pytest.raises(StartError, match="--cache-scope key needs --api-keys"):
        cluster.apply(file[1])
    changes = cluster.apply(*file)
    assert {each.restarts for each in changes.values()} == {("router",)}
    assert cluster.config.router.cache_scope is CacheScope.KEY


def test_wrong_settings_are_refused_with_their_source(cluster: StandingCluster) -> None:
    with pytest.raises(ControlError, match="has no option decod"):
        cluster.apply(said("decod", 2))
    with pytest.raises(StartError, match=r"/etc/baton.yaml:1: max-running: .*x"):
        cluster.apply(said("max-running", "x"))
    with pytest.raises(ControlError, match="takes settings, drain_s"):
        ApplyRequest.parse({"settings": [], "drain_s": -1, "dry_run": True})
    with pytest.raises(ControlError, match="each with option, value and source"):
        ApplyRequest.parse({"settings": [3], "drain_s": 1, "dry_run": True})


@dataclass(frozen=True)
class Part:
    one: int = 1
    two: int = 2


@dataclass(frozen=True)
class Whole:
    part: Part = Part()
    other: int | None = None
    either: Part | None = None


def test_only_what_differs_is_taken_over() -> None:
    here = Whole(Part(10, 20), 30)
    assert with_changes(here, Whole(), Whole()) == here
    assert with_changes(here, Whole(), Whole(Part(1, 5))) == Whole(Part(10, 5), 30)
    assert with_changes(here, Whole(other=4), Whole()) == Whole(Part(10, 20), None)
    assert with_changes(here, Whole(), Whole(either=Part())).either == Part()
