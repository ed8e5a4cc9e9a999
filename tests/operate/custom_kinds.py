"""Schemas of custom kinds that no package of PyPI, npm or Debian has, for what our manifests say.

Written from the custom resource definitions of their projects, as they were in August 2026:
`config/crd/bases` of kubernetes-sigs/gateway-api-inference-extension, and
`ray-operator/config/crd/bases` of ray-project/kuberay. Objects are closed, so a field that is not
listed here fails although its project may know it: add it then, with its type from there.
"""

from typing import Any

Schema = dict[str, Any]


def _object(required: str = "", **properties: Schema) -> Schema:
    """Return the schema of an object without other members. required: names between spaces."""
    return {"type": "object", "required": required.split(), "properties": properties,
            "additionalProperties": False}  # fmt: skip


def _array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    found = {"type": "array", "items": items, "minItems": least, "uniqueItems": True}
    return found if most is None else found | {"maxItems": most}


def _kind(version: str, kind: str, spec: Schema) -> Schema:
    found = _object("apiVersion kind metadata spec", metadata={"type": "object"}, spec=spec,
                    apiVersion={"const": version}, kind={"const": kind})  # fmt: skip
    return found


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_LABEL = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_LABELS: Schema = {
    "type": "object", "minProperties": 1, "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 63, "pattern": _LABEL},
}  # fmt: skip
_NUMBERED = _object("number", number={"type": "integer", "minimum": 1, "maximum": 65535})
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 253}
_TEMPLATE: Schema = {"type": "object", "required": ["spec"]}  # of pods: the core schemas check it

INFERENCE_POOL = _kind(
    "inference.networking.k8s.io/v1",
    "InferencePool",
    _object(
        "selector targetPorts",
        selector=_object("matchLabels", matchLabels=_LABELS),
        targetPorts=_array(_NUMBERED, least=1, most=8),
        appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
        # A picker of the kind Service, which ours is, has a port.
        endpointPickerRef=_object(
            "name port", name=_NAME, port=_NUMBERED, failureMode={"enum": ["FailOpen", "FailClose"]}
        ),
    ),
)
RAY_CLUSTER = _kind(
    "ray.io/v1",
    "RayCluster",
    _object(
        "headGroupSpec",
        rayVersion=_TEXT,
        authOptions=_object(mode={"enum": ["disabled", "token"]}, secretName=_TEXT),
        headGroupSpec=_object("template", rayStartParams=_TEXTS, template=_TEMPLATE),
        workerGroupSpecs=_array(
            _object(
                "groupName minReplicas maxReplicas template",
                groupName=_TEXT,
                replicas=_COUNT,
                minReplicas=_COUNT,
                maxReplicas=_COUNT,
                rayStartParams=_TEXTS,
                template=_TEMPLATE,
            )
        ),
    ),
)
SCHEMAS = {"InferencePool": INFERENCE_POOL, "RayCluster": RAY_CLUSTER}


def pod_templates(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod templates of a manifest, each as a manifest of Kubernetes' own kind."""
    spec = manifest["spec"]
    groups = (
        [spec["headGroupSpec"], *spec.get("workerGroupSpecs", ())]
        if "headGroupSpec" in spec
        else []
    )
    return [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"},
         "template": group["template"]}
        for group in groups
    ]  # fmt: skip
