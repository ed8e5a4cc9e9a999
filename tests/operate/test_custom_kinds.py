"""Tests of our schemas of custom kinds: what they take and refuse."""

import copy
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from operate.custom_kinds import SCHEMAS, pod_templates
from operate.test_kuberay import RAY

POOL: dict[str, Any] = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "pool"},
    "spec": {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "baton"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "name": "picker",
            "port": {"number": 9002},
            "failureMode": "FailOpen",
        },
    },
}
Change = Callable[[dict[str, Any]], object]


def refusal(manifest: dict[str, Any]) -> str:
    """Return where a schema refuses a manifest; an empty text if nowhere."""
    validator = jsonschema.Draft202012Validator(SCHEMAS[manifest["kind"]])
    error = jsonschema.exceptions.best_match(validator.iter_errors(manifest))
    return "" if error is None else error.json_path


@pytest.mark.parametrize("manifest", [POOL, RAY], ids=lambda each: each["kind"])
def test_right_manifests_are_taken(manifest: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[manifest["kind"]])
    assert refusal(manifest) == ""
    assert refusal(manifest | {"apiVersion": "example.org/v1"}) == "$.apiVersion"


def test_each_group_of_a_ray_has_a_pod_template() -> None:
    templates = pod_templates(RAY)
    names = [each["template"]["spec"]["containers"][0]["name"] for each in templates]
    assert names == ["ray-head", "ray-worker"]
    assert pod_templates(POOL) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda spec: spec.pop("targetPorts"), "$.spec"),
        (lambda spec: spec["targetPorts"].append({"number": 8000}), "$.spec.targetPorts"),
        (lambda spec: spec["targetPorts"].clear(), "$.spec.targetPorts"),
        (lambda spec: spec["targetPorts"][0].update(number="8000"), "$.spec.targetPorts[0].number"),
        (lambda spec: spec["targetPorts"][0].update(name="http"), "$.spec.targetPorts[0]"),
        (lambda spec: spec.update(targetPortNumber=8000), "$.spec"),
        (lambda spec: spec["selector"].update(app="baton"), "$.spec.selector"),
        (lambda spec: spec["endpointPickerRef"].pop("port"), "$.spec.endpointPickerRef"),
        (
            lambda spec: spec["endpointPickerRef"].update(failureMode="Open"),
            "$.spec.endpointPickerRef.failureMode",
        ),
    ],
)
def test_wrong_pools_are_refused(change: Change, where: str) -> None:
    wrong = copy.deepcopy(POOL)
    change(wrong["spec"])
    assert refusal(wrong) == where


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda spec: spec.pop("headGroupSpec"), "$.spec"),
        (lambda spec: spec["authOptions"].update(mode="tokens"), "$.spec.authOptions.mode"),
        (
            lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
            "$.spec.headGroupSpec.rayStartParams['num-cpus']",
        ),
        (lambda spec: spec["workerGroupSpecs"][0].pop("maxReplicas"), "$.spec.workerGroupSpecs[0]"),
        (
            lambda spec: spec["workerGroupSpecs"][0].update(replicas="3"),
            "$.spec.workerGroupSpecs[0].replicas",
        ),
        (lambda spec: spec.update(autoscaling=True), "$.spec"),
    ],
)
def test_wrong_rays_are_refused(change: Change, where: str) -> None:
    wrong = copy.deepcopy(RAY)
    change(wrong["spec"])
    assert refusal(wrong) == where
