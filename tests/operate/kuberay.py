"""The pods that the operator KubeRay makes of a RayCluster: commands, variables, and probes.

Written from `ray-operator/controllers/ray/common/pod.go` of ray-project/kuberay, as it was in
August 2026, for a Ray of 2.53 or later, whose nodes answer `/api/healthz`.
"""

import copy
from typing import Any

from operate.rendered import NAMESPACE, Manifest

PORT = 6379
AGENT_PORT = 52365
_UNITS = {"Gi": 1 << 30, "Mi": 1 << 20}
_WAIT = """
while true; do
  if ray health-check --address {address}; then break; fi
  sleep 5
done
"""


def head_service(cluster: Manifest) -> str:
    """Return the name in DNS of the Service that leads to the head."""
    return f"{cluster['metadata']['name']}-head-svc"


def head_pod(cluster: Manifest) -> Manifest:
    """Return the spec of the head's pod."""
    started = {"dashboard-host": "0.0.0.0"}
    return _pod(cluster, cluster["spec"]["headGroupSpec"], ["--head"], started)


def worker_pod(cluster: Manifest, group: Manifest) -> Manifest:
    """Return the spec of a pod of a group of workers, which waits for the head."""
    address = f"{head_service(cluster)}.{NAMESPACE}.svc.cluster.local:{PORT}"
    spec = _pod(cluster, group, [], {"address": address})
    (container,) = spec["containers"]
    waits = {"name": "wait-gcs-ready", "args": [_WAIT.format(address=address)]}
    spec["initContainers"] = [container | waits]
    return spec


def _pod(cluster: Manifest, group: Manifest, role: list[str], params: dict[str, str]) -> Manifest:
    spec: dict[str, Any] = copy.deepcopy(group["template"]["spec"])
    spec.setdefault("terminationGracePeriodSeconds", 30)  # Kubernetes' own
    (container,) = spec["containers"]
    memory = _bytes(container["resources"]["limits"]["memory"])
    given = params | group["rayStartParams"] | {
        "metrics-export-port": "8080", "dashboard-agent-listen-port": str(AGENT_PORT),
        "memory": str(memory),
    }  # fmt: skip
    words = ["ray", "start", *role, "--block", *(f"--{name}={given[name]}" for name in given)]
    container["command"] = ["/bin/bash", "-c", "--"]
    container["args"] = ["ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; " + " ".join(words)]
    token = {"name": cluster["spec"]["authOptions"]["secretName"], "key": "auth_token"}
    container["env"] = [
        *container["env"],
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": token}},
        {"name": "RAY_PORT", "value": str(PORT)},
        {"name": "RAY_ADDRESS", "value": params.get("address", f"127.0.0.1:{PORT}")},
        {"name": "RAY_USAGE_STATS_KUBERAY_IN_USE", "value": "1"},
        {"name": "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "value": "1"},
    ]
    asked = {"httpGet": {"path": "/api/healthz", "port": AGENT_PORT}, "periodSeconds": 5}
    timeout_s = 5 if role else 2
    container["livenessProbe"] = asked | {"timeoutSeconds": timeout_s, "failureThreshold": 120}
    container["readinessProbe"] = asked | {"timeoutSeconds": timeout_s, "failureThreshold": 10}
    if all(each["mountPath"] != "/dev/shm" for each in container["volumeMounts"]):
        shared = {"medium": "Memory", "sizeLimit": container["resources"]["limits"]["memory"]}
        container["volumeMounts"].append({"name": "shared-mem", "mountPath": "/dev/shm"})
        spec["volumes"].append({"name": "shared-mem", "emptyDir": shared})
    return spec


def _bytes(quantity: str) -> int:
    return int(quantity[:-2]) * _UNITS[quantity[-2:]]
