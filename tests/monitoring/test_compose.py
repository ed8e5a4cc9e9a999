"""The compose file and what it mounts and builds, as far as it can be checked without an engine."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from baton.deploy.commands.serve import serve

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "monitoring"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
KEYS = {
    "image", "build", "ports", "volumes", "environment", "shm_size", "healthcheck",
    "stop_grace_period",
}  # fmt: skip
"""The keys of a service that this file uses, all from the Compose specification."""


def of_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


SERVICES: dict[str, dict[str, Any]] = of_yaml(FOLDER / "compose.yml")["services"]


def container_ports(service: str) -> set[int]:
    return {int(port.split(":")[2]) for port in SERVICES[service]["ports"]}


def mounted(service: str, path: str) -> Path:
    """Return what lies at a path of a service's container."""
    for mount in SERVICES[service]["volumes"]:
        source, target, mode = mount.split(":")
        assert mode == "ro" and source.startswith("./")
        if path == target or path.startswith(target + "/"):
            return FOLDER / source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"nothing is mounted at {path} of {service}")


def serve_arguments() -> dict[str, Any]:
    """Return the options that the image starts Baton with, as its command line reads them."""
    entry, command = (
        json.loads(
            re.findall(rf"^{word} (\[.*?\])$", DOCKERFILE, re.M | re.S)[0].replace("\\\n", "")
        )
        for word in ("ENTRYPOINT", "CMD")
    )
    assert (entry, command[0]) == (["baton"], "serve")
    with serve.make_context("serve", command[1:]) as context:
        return dict(context.params)


def test_each_service_has_one_origin_and_ports_on_loopback_alone() -> None:
    assert set(of_yaml(FOLDER / "compose.yml")) == {"services"}
    for service in SERVICES.values():
        assert set(service) <= KEYS
        assert ("image" in service) != ("build" in service)
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service.get("image", "a:1.0.0"))
        assert service["ports"]
        for port in service["ports"]:
            assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())


def test_the_image_serves_at_the_port_that_compose_publishes() -> None:
    given = serve_arguments()
    assert container_ports("baton") == {given["http_port"]}
    assert given["host"] == "0.0.0.0", "loopback of a container cannot be reached"
    assert given["insecure"] and given["api_keys"] is None
    assert given["model"] is None, "the example model needs no name"


def test_the_image_is_built_of_what_is_there_with_versions_that_the_project_takes() -> None:
    build = SERVICES["baton"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == FOLDER / "Dockerfile"
    project = (ROOT / "pyproject.toml").read_text()
    least = re.search(r'requires-python = ">=3\.(\d+)"', project)
    image = re.search(r"^FROM python:3\.(\d+)-slim$", DOCKERFILE, re.M)
    assert least and image and int(image[1]) >= int(least[1])
    torch, wanted = (
        re.search(r"torch==2\.(\d+)", DOCKERFILE),
        re.search(r'"torch>=2\.(\d+)"', project),
    )
    assert torch and wanted and int(torch[1]) >= int(wanted[1])
    assert "-c /baton/constraints.txt" in DOCKERFILE
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    needed = (
        "pyproject.toml",
        "setup.py",
        "__init__.py",
        "monitoring",
        "constraints.txt",
        "examples",
        "proto",
        "engine",
        "kernels",
        "README.md",
    )
    for name in needed:
        assert (ROOT / name).exists() and name not in ignored and f"{name}/" not in ignored


def test_prometheus_reads_its_configuration_and_finds_the_router() -> None:
    config = mounted("prometheus", "/etc/prometheus/prometheus.yml")  # where its image looks
    read = of_yaml(config)
    for name in read["rule_files"]:
        assert of_yaml(config.parent / name)["groups"]
    (job,) = read["scrape_configs"]
    (discovery,) = job["http_sd_configs"]
    url = urlsplit(discovery["url"])
    assert url.hostname == "baton" and url.port in container_ports("baton")
    assert url.path == "/prometheus/targets"


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    provisioning = mounted("grafana", "/etc/grafana/provisioning")
    (source,) = of_yaml(provisioning / "datasources/prometheus.yml")["datasources"]
    url = urlsplit(source["url"])
    assert source["type"] == "prometheus" and source["isDefault"]
    assert url.hostname == "prometheus" and url.port in container_ports("prometheus")
    scraped = of_yaml(FOLDER / "prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    (provider,) = of_yaml(provisioning / "dashboards/baton.yml")["providers"]
    assert provider["type"] == "file"
    assert list(mounted("grafana", provider["options"]["path"]).glob("*.json"))


@pytest.mark.parametrize("port", sorted(p for s in SERVICES for p in container_ports(s)))
def test_ports_are_those_of_the_images(port: int) -> None:
    baton = next(o for o in serve.params if isinstance(o, click.Option) and o.name == "http_port")
    assert port in {baton.default, 9090, 3000}
