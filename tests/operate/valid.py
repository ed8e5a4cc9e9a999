"""Check manifests on standard input against schemas: `python valid.py CRDS < manifests`.

Run by the Python of `.tools/operate`, which has the schemas as packages. CRDS is a folder of custom
resource definitions, which win over the schemas of `custom_kinds.py`; it may be absent. Prints for
each manifest `kind/name: which schemas`, and ends with 1 at the first error.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator
from custom_kinds import SCHEMAS, pod_templates

VERSIONS = ("1.31", "1.37")  # of Kubernetes
HTTP_ROUTE = """
import { readFileSync } from "node:fs";
import { HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute";
new HTTPRoute(JSON.parse(readFileSync(0, "utf8"))).validate();
"""

Manifest = dict[str, Any]


def check_core(manifest: Manifest) -> str:
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)
    return "Kubernetes " + ", ".join(VERSIONS)


def check_pod_monitor(manifest: Manifest) -> str:
    model = prometheus_operator.PodMonitor.model_validate(manifest)
    known = json.loads(model.model_dump_json(by_alias=True, exclude_none=True))
    lost = dropped(manifest, known, "")  # the model passes over what it does not know
    if lost:
        raise ValueError(f"unknown: {lost}")
    return "prometheus-operator's model"


def dropped(given: Any, known: Any, where: str) -> list[str]:
    """Return the paths in `given` that are not in `known`."""
    if isinstance(given, dict) and isinstance(known, dict):
        return [
            path
            for key, value in given.items()
            for path in (
                dropped(value, known[key], f"{where}.{key}") if key in known else [f"{where}.{key}"]
            )
        ]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        pairs = zip(given, known, strict=True)
        return [path for pair in pairs for path in dropped(*pair, f"{where}[]")]
    return []


def check_http_route(manifest: Manifest) -> str:
    words = ["node", "--input-type=module", "--eval", HTTP_ROUTE]
    done = subprocess.run(  # in the folder beside node_modules
        words, input=json.dumps(manifest), cwd=sys.prefix, capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return "Gateway API's model"


def check_custom(manifest: Manifest) -> str:
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    for template in pod_templates(manifest):
        check_core(template)
    return "a schema of our own"


def closed(schema: Any) -> Any:
    """Return the schema of a CRD as JSON Schema, whose objects have no unknown members."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    return found


def custom(folder: Path) -> dict[tuple[str, str], Any]:
    """Return the schemas of the CRDs in a folder, by API version and kind."""
    found = {}
    for path in folder.glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def check(manifest: Manifest, schemas: dict[tuple[str, str], Any]) -> str:
    version, kind = manifest["apiVersion"], manifest["kind"]
    if (version, kind) in schemas:
        jsonschema.validate(manifest, schemas[version, kind])
        return "its CRD"
    if kind == "PodMonitor":
        return check_pod_monitor(manifest)
    if kind == "HTTPRoute":
        return check_http_route(manifest)
    if kind in SCHEMAS:
        return check_custom(manifest)
    return check_core(manifest)


def main() -> None:
    schemas = custom(Path(sys.argv[1]))
    for manifest in yaml.safe_load_all(sys.stdin):
        if manifest:
            name = f"{manifest['kind']}/{manifest['metadata']['name']}"
            try:
                print(f"{name}: {check(manifest, schemas)}")
            except Exception as error:
                raise SystemExit(f"{name}: {error}") from error


main()
