"""Tests of the scheduling priority of the processes that Ray starts for us."""

import os

import psutil
import pytest

from baton.deploy.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster


def test_workers_and_router_run_no_nicer_than_who_started_them(cluster: Cluster) -> None:
    ours = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("ray::") and "Host" in process.name()
    ]
    assert len(ours) >= len(cluster.router.server_info()["workers"]) + 1
    assert {process.nice() for process in ours} == {os.nice(0)}
