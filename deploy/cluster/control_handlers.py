"""The requests that a running cluster takes, by name: the one list of them."""

from functools import partial

from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.rolling_handlers import handle_drain, handle_restart
from baton.deploy.cluster.rolling_requests import DRAIN, RESTART
from baton.deploy.cluster.scale_request import SCALE
from baton.deploy.cluster.scaling import handle_scale
from baton.deploy.messages.control import Handlers


def control_handlers(cluster: Cluster) -> Handlers:
    return {
        SCALE: partial(handle_scale, cluster),
        RESTART: partial(handle_restart, cluster),
        DRAIN: partial(handle_drain, cluster),
    }
