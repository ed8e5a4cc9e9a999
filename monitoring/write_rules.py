"""Writes the rules files. `make monitoring` calls it; `--speed` makes rules for a test.

python monitoring/write_rules.py --out monitoring/prometheus --ttft 1 --itl 0.1 --share 0.99
"""

import argparse
from pathlib import Path

import yaml
from alert_rules import alert_groups
from objectives import Objectives
from recording_rules import recording_groups
from windows import Windows

HERE = Path(__file__).resolve().parent
HEAD = "# Written by monitoring/write_rules.py (`make monitoring`): change that, not this.\n"


def rules_files(times: Windows, goals: Objectives) -> dict[str, str]:
    """Return the text of each file by its name."""
    groups = {
        "recording.yml": recording_groups(times, goals),
        "alerts.yml": alert_groups(times, goals),
    }
    return {
        name: HEAD + yaml.dump({"groups": found}, Dumper=_Dumper, sort_keys=False, width=100)
        for name, found in groups.items()
    }


class _Dumper(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def main() -> None:
    default = Objectives()
    parser = argparse.ArgumentParser(description="Write Baton's Prometheus rules.")
    parser.add_argument("--out", type=Path, default=HERE / "prometheus", help="the folder")
    parser.add_argument("--speed", type=float, default=1.0, help="divides every length of time")
    parser.add_argument("--ttft", type=float, default=default.ttft_s, help="seconds")
    parser.add_argument("--itl", type=float, default=default.itl_s, help="seconds")
    parser.add_argument("--share", type=float, default=default.share, help="that come in time")
    given = parser.parse_args()
    goals = Objectives(ttft_s=given.ttft, itl_s=given.itl, share=given.share)
    for name, text in rules_files(Windows(given.speed), goals).items():
        (given.out / name).write_text(text)


if __name__ == "__main__":
    main()
