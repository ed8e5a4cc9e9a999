"""The chart as helm renders it with each set of values: schemas, and what it promises."""

import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from operate.rendered import NAMESPACE, RELEASE, ROLES, TOOLS, VALUES, Rendered, helm, options_of
from operate.rendered import render as render_with

pytestmark = pytest.mark.operate
MARGIN_S = 10  # of a grace period, above what the hook and the drain take
ALWAYS = {"StatefulSet": 3, "Service": 4, "PodDisruptionBudget": 3, "Secret": 1}
OTHERWISE = {
    "06-cert-manager": {"Secret": 0},
    "07-gateway": {"HTTPRoute": 1, "InferencePool": 1},
    "08-watched": {"HTTPRoute": 1, "NetworkPolicy": 1, "PodMonitor": 3},
    "09-scaled": {"Secret": 0},
    "10-placed": {"PodDisruptionBudget": 0},
}
OPEN = ["--set", "access.insecure=true"]


@cache
def render(values: Path) -> Rendered:
    return render_with("--values", values)


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(request.param)


def mounts(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["mountPath"]: each for each in container["volumeMounts"]}


def volumes(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod["spec"]["volumes"]}


def test_all_manifests_follow_their_schemas(rendered: Rendered) -> None:
    done = subprocess.run(
        [TOOLS / "bin/python", Path(__file__).with_name("valid.py"), TOOLS / "crds"],
        input=rendered.text, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(rendered.manifests) >= 7


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_each_set_of_values_makes_the_kinds_that_it_enables(values: Path) -> None:
    found = Counter(each["kind"] for each in render(values).manifests)
    assert found == Counter(ALWAYS | OTHERWISE.get(values.stem, {}))


@pytest.mark.parametrize("role", ROLES)
def test_each_pod_has_the_certificate_of_its_own_name(rendered: Rendered, role: str) -> None:
    pod = rendered.pod(role)
    (container,) = pod["spec"]["containers"]
    folder = options_of(container)["--credentials"][0]
    mounted = mounts(container)[folder]
    assert mounted["readOnly"] is True
    volume = volumes(pod)[mounted["name"]]
    if "csi" in volume:
        names = volume["csi"]["volumeAttributes"]["csi.cert-manager.io/dns-names"].split(",")
        assert names[0] == f"${{POD_NAME}}.{role}.blue.baton"
        assert names[1:] == (["router.blue.baton"] if role == "router" else [])
        assert pod["spec"].get("initContainers") is None
        return
    (issuer,) = pod["spec"]["initContainers"]
    assert issuer["command"] == ["baton", "certs", "issue", role, "$(POD_NAME)"]
    options = options_of(issuer)
    assert mounts(issuer)[options["--to"][0]]["name"] == mounted["name"]
    authority = mounts(issuer)[options["--folder"][0]]
    assert authority["readOnly"] is True
    assert authority["name"] not in {each["name"] for each in container["volumeMounts"]}
    assert volume["emptyDir"]["medium"] == "Memory"
    if role != "router":
        assert options_of(container)["--worker-id"] == ["$(POD_NAME)"]


@pytest.mark.parametrize("role", ROLES)
def test_probes_ask_three_different_things(rendered: Rendered, role: str) -> None:
    (container,) = rendered.pod(role)["spec"]["containers"]
    startup, live, ready = (
        container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")
    )
    assert [each["httpGet"]["path"] for each in (startup, live, ready)] == [
        "/health", "/health", "/ready"
    ]  # fmt: skip
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600  # weights are read
    assert live["periodSeconds"] * live["failureThreshold"] >= 30  # a busy node kills nothing
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 5
    tls = "--ssl-certfile" in options_of(container)
    for each in (startup, live, ready):
        assert each["httpGet"]["scheme"] == ("HTTPS" if tls else "HTTP")
        assert each["httpGet"]["port"] in {port["name"] for port in container["ports"]}


@pytest.mark.parametrize("role", ROLES)
def test_the_grace_period_is_above_the_hook_and_the_drain(rendered: Rendered, role: str) -> None:
    spec = rendered.pod(role)["spec"]
    (container,) = spec["containers"]
    drain = float(options_of(container)["--drain"][0])
    hook = container.get("lifecycle", {}).get("preStop")
    waits = float(hook["exec"]["command"][1]) if hook else 0.0
    assert spec["terminationGracePeriodSeconds"] >= waits + drain + MARGIN_S
    if role == "router":
        assert waits >= 5  # clients come until the network knows


@pytest.mark.parametrize("role", ROLES)
def test_containers_are_confined(rendered: Rendered, role: str) -> None:
    spec = rendered.pod(role)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert {"name": "temporary", "mountPath": "/tmp"} in each["volumeMounts"]


@pytest.mark.parametrize("role", ROLES)
def test_services_and_budgets_select_the_pods(rendered: Rendered, role: str) -> None:
    stateful = rendered.of_role("StatefulSet", role)
    service = rendered.of_role("Service", role)
    labels = rendered.pod(role)["metadata"]["labels"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True  # workers register before
    selectors = [stateful["spec"]["selector"]["matchLabels"], service["spec"]["selector"]]
    if rendered.kinds("PodDisruptionBudget"):
        budget = rendered.of_role("PodDisruptionBudget", role)
        selectors.append(budget["spec"]["selector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        other = rendered.pod(next(each for each in ROLES if each != role))
        assert not selector.items() <= other["metadata"]["labels"].items()


@pytest.mark.parametrize("role", ("prefill", "decode"))
def test_workers_know_every_router_by_its_name_in_dns(rendered: Rendered, role: str) -> None:
    routers = rendered.of_role("StatefulSet", "router")
    name, service = routers["metadata"]["name"], routers["spec"]["serviceName"]
    (container,) = rendered.pod(role)["spec"]["containers"]
    told = options_of(container)["--router"]
    assert len(told) == routers["spec"]["replicas"]
    (router,) = rendered.pod("router")["spec"]["containers"]
    port = options_of(router)["--internal-port"][0]
    for number, address in enumerate(told):
        assert address.startswith(f"{name}-{number}.{service}.{NAMESPACE}.svc.")
        assert address.endswith(f":{port}")
    assert options_of(router)["--routers"] == [str(len(told))]


def test_an_inference_pool_selects_the_routers_that_have_the_aliases() -> None:
    rendered = render(VALUES[6])
    (pool,) = rendered.kinds("InferencePool")
    selector = pool["spec"]["selector"]["matchLabels"]
    assert selector.items() <= rendered.pod("router")["metadata"]["labels"].items()
    (router,) = rendered.pod("router")["spec"]["containers"]
    assert options_of(router)["--metric-aliases"] == ["vllm,sglang"]
    assert [str(each["number"]) for each in pool["spec"]["targetPorts"]] == options_of(router)[
        "--http-port"
    ]
    (route,) = rendered.kinds("HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == pool["metadata"]["name"]


def test_what_a_pod_asks_of_its_node_is_passed_through() -> None:
    spec = render(VALUES[3]).pod("decode")["spec"]
    assert spec["runtimeClassName"] == "nvidia" and spec["tolerations"]
    assert spec["topologySpreadConstraints"][0]["maxSkew"] == 1
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["rdma/ib"] == 1
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert options_of(container)["--nixl-interface"] == ["net1", "net2"]
    assert render(VALUES[3]).pod("prefill")["spec"]["priorityClassName"] == "serving"
    claimed = render(VALUES[4]).pod("decode")["spec"]
    assert claimed["resourceClaims"][0]["name"] == "gpu"
    assert "podAntiAffinity" in claimed["affinity"]
    assert claimed["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_options_of_a_role_win_over_those_of_all() -> None:
    (container,) = render(VALUES[9]).pod("decode")["spec"]["containers"]
    options = options_of(container)
    assert options["--threads"] == ["3"] and options["--lease"] == ["2.5"]
    assert options["--offline"] == [""] and "--dump-prompts" not in options
    (prefill,) = render(VALUES[9]).pod("prefill")["spec"]["containers"]
    assert options_of(prefill)["--threads"] == ["$(CPU_LIMIT)"]


def test_another_controller_may_set_the_replicas() -> None:
    rendered = render(VALUES[8])
    assert "replicas" not in rendered.of_role("StatefulSet", "decode")["spec"]
    assert rendered.of_role("StatefulSet", "router")["spec"]["replicas"] == 2
    assert not rendered.kinds("Secret")  # the operator's own authority


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "set access.apiKeysSecret"),
        ([*OPEN, "--set", "decode.options.drain=3"], "invalid propertyName 'drain'"),
        ([*OPEN, "--set", "certificates.source=cert-manager"], "set certificates.issuer.name"),
        ([*OPEN, "--set", "model.hub=a/b,model.volume.emptyDir.medium=Memory"], "not both"),
        ([*OPEN, "--set", "httpRoute.enabled=true"], "set httpRoute.parentRefs"),
        ([*OPEN, "--set", "inferencePool.enabled=true"], "set inferencePool.picker.name"),
    ],
)
def test_values_that_cannot_work_are_refused(words: list[str], named: str) -> None:
    done = helm("template", RELEASE, "charts/baton", *words)
    assert done.returncode != 0 and named in done.stderr, done.stderr


def test_helm_finds_nothing_to_say() -> None:
    done = helm("lint", "--strict", "charts/baton", *OPEN)
    assert done.returncode == 0, done.stdout
