"""The chart as helm renders it, and what a test asks of it. `make operate` installs helm."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "baton"
TOOLS = ROOT / ".tools" / "operate"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
ROLES = ("router", "prefill", "decode")
RELEASE, NAMESPACE = "demo", "serving"

Manifest = dict[str, Any]


def helm(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [TOOLS / "helm", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@dataclass(frozen=True)
class Rendered:
    """The manifests of one release."""

    text: str

    @property
    def manifests(self) -> list[Manifest]:
        return [each for each in yaml.safe_load_all(self.text) if each]

    def kinds(self, kind: str) -> list[Manifest]:
        return [each for each in self.manifests if each["kind"] == kind]

    def of_role(self, kind: str, role: str) -> Manifest:
        """Return the only manifest of this kind and role."""
        (found,) = [
            each
            for each in self.kinds(kind)
            if each["metadata"]["labels"].get("app.kubernetes.io/component") == role
        ]
        return found

    def pod(self, role: str) -> Manifest:
        """Return the template of a role's pods."""
        found: Manifest = self.of_role("StatefulSet", role)["spec"]["template"]
        return found


def render(*words: str | Path) -> Rendered:
    """Render the chart. words: further arguments of helm."""
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, *words)
    assert done.returncode == 0, done.stderr
    return Rendered(done.stdout)


def options_of(container: Manifest) -> dict[str, list[str]]:
    """Return the values of each option in a container's arguments; a flag's is empty."""
    found: dict[str, list[str]] = {}
    for word in container["args"]:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found.setdefault(name, []).append(value)
    return found
