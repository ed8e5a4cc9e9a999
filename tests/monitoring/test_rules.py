"""The rules files: what they say, and that nothing in them is stale."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_rules import alert_groups
from objectives import Objectives
from prometheus_tools import promtool
from recording_rules import recording_groups
from windows import Windows
from write_rules import HERE, rules_files

ROOT = HERE.parent
FILES = HERE / "prometheus"
TESTS = Path(__file__).resolve().parent
RUNBOOKS = (ROOT / "docs/monitoring.md").read_text()


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_files_are_those_that_are_written() -> None:
    for name, text in rules_files(Windows(), Objectives()).items():
        assert (FILES / name).read_text() == text, (
            "run `make monitoring` and commit what it changes"
        )


def test_prometheus_takes_the_files() -> None:
    done = promtool("check", "config", FILES / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", ["rules_test.yml", "long_rules_test.yml"])
def test_each_rule_does_what_its_unit_test_says(file: str) -> None:
    done = promtool("test", "rules", TESTS / file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test() -> None:
    text = "".join((TESTS / f"{kind}rules_test.yml").read_text() for kind in ("", "long_"))
    tested = set(re.findall(r"Baton\w+", text)) | {"BatonItlDrifting"}  # as BatonTtftDrifting
    assert {rule["alert"] for rule in alerts()} <= tested


def test_every_alert_says_what_is_wrong_and_where_to_look() -> None:
    for rule in alerts():
        said = rule["annotations"]
        assert isinstance(said, dict) and rule["labels"]["severity"] in {"page", "ticket"}
        assert said["summary"] and said["look_at"]
        assert (HERE / f"grafana/dashboards/{said['dashboard']}.json").exists()
        page, _, anchor = said["runbook_url"].partition("#")
        assert page == "docs/monitoring.md" and anchor == rule["alert"].lower()
        assert f"\n### {rule['alert']}\n" in RUNBOOKS


def test_no_runbook_is_about_an_alert_that_is_gone() -> None:
    headings = set(re.findall(r"^### (Baton\w+)$", RUNBOOKS, flags=re.MULTILINE))
    assert headings == {rule["alert"] for rule in alerts()}


def test_a_faster_set_has_the_same_rules(tmp_path: Path) -> None:
    def names(times: Windows) -> list[object]:
        goals = Objectives()
        groups: list[dict[str, Any]] = [*recording_groups(times, goals)]
        groups += alert_groups(times, goals)
        return [rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]]

    assert names(Windows(60)) == names(Windows())
    for name, text in rules_files(Windows(60), Objectives()).items():
        (tmp_path / name).write_text(text)
        assert not re.search(r"(\[|offset |for: )[1-9]\d*[smhd]\b", text)
        assert promtool("check", "rules", tmp_path / name).returncode == 0


@pytest.mark.parametrize("length", ["5", "m5", "5y", "-1m"])
def test_a_length_of_another_form_is_refused(length: str) -> None:
    with pytest.raises(ValueError, match="one of s, m, h, d"):
        Windows()(length)


def test_an_objective_that_no_bucket_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.3 s is no bucket"):
        Objectives(ttft_s=0.3)
    with pytest.raises(ValueError, match="nothing to burn"):
        Objectives(share=1.0)
