"""The example for KubeRay: its schemas, and what its parts say of each other."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos.ray_hosts import ray_variables
from operate.rendered import ROOT, TOOLS
from ray._private import ray_constants

from baton.deploy.commands.serve import serve

FOLDER = ROOT / "examples" / "kuberay"
(RAY,) = yaml.safe_load_all((FOLDER / "raycluster.yaml").read_text())
CONFIG_MAP, DEPLOYMENT, SERVICE = yaml.safe_load_all((FOLDER / "serve.yaml").read_text())
CONFIG: dict[str, Any] = yaml.safe_load(CONFIG_MAP["data"]["baton.yaml"])
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VARIABLES = {each["name"]: each.get("value") for each in CONTAINER["env"]} | {"POD_IP": "10.0.0.9"}


def words() -> list[str]:
    """Return the words of `baton serve` in the container's script, with its variables."""
    script = CONTAINER["args"][0]
    for name, value in VARIABLES.items():
        script = script.replace(f"${name}", str(value))
    found = shlex.split(script.partition("exec baton serve")[2].replace("\\\n", " "))
    assert len(found) >= 4 and not any("$" in word for word in found)
    return found


@pytest.mark.operate
def test_its_manifests_follow_their_schemas() -> None:
    text = "\n---\n".join(path.read_text() for path in sorted(FOLDER.glob("*.yaml")))
    done = subprocess.run(
        [TOOLS / "bin/python", Path(__file__).with_name("valid.py"), TOOLS / "crds"],
        input=text, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_the_command_takes_its_options_and_those_of_its_file(tmp_path: Path) -> None:
    # Files and folders are looked for: those of the pod are not here.
    (tmp_path / "keys.json").write_text("{}")
    config = tmp_path / "baton.yaml"
    text: str = CONFIG_MAP["data"]["baton.yaml"]
    config.write_text(text.replace("/baton/keys/", f"{tmp_path}/"))
    given = [word.replace("/baton/config/baton.yaml", str(config)) for word in words()]
    with serve.make_context("serve", given) as context:
        params = context.params
    head = RAY["metadata"]["name"]
    assert params["ray_address"] == f"{head}-head-svc:6379"  # as KubeRay names the Service
    hook_s = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > hook_s + params["drain"] + 10
    (group,) = RAY["spec"]["workerGroupSpecs"]
    ray_s = ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
    assert group["template"]["spec"]["terminationGracePeriodSeconds"] > ray_s + 10
    cpus = int(group["rayStartParams"]["num-cpus"])
    assert params["threads"] <= cpus
    assert params["prefill"] + params["decode"] <= group["replicas"] * (cpus // params["threads"])


def test_all_pods_have_the_same_image_token_and_model() -> None:
    (group,) = RAY["spec"]["workerGroupSpecs"]
    ray_pods = [RAY["spec"]["headGroupSpec"]["template"]["spec"], group["template"]["spec"]]
    images = {each["containers"][0]["image"] for each in (*ray_pods, POD)}
    assert len(images) == 1
    token = next(each for each in CONTAINER["env"] if each["name"] == "RAY_AUTH_TOKEN")
    secret = token["valueFrom"]["secretKeyRef"]
    assert RAY["spec"]["authOptions"] == {"mode": "token", "secretName": secret["name"]}
    assert secret["key"] == "auth_token"  # the key that KubeRay reads
    worker = ray_pods[1]["containers"][0]
    mounted = {each["name"]: each["mountPath"] for each in worker["volumeMounts"]}
    assert mounted["model"] == CONFIG["model"]
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"]


def test_ray_has_the_settings_of_the_guide_for_hosts(tmp_path: Path) -> None:
    (head,) = RAY["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in head["env"] if each["name"] != "HOME"}
    told = ray_variables(tmp_path).items()
    assert given == {name: value for name, value in told if not name.startswith("RAY_AUTH_")}
