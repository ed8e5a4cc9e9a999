"""Makes the context of a worker from its configuration and its engine."""

import os
from functools import partial

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.engine.engine import Engine
from baton.engine.layout.device import device_of, use_device
from baton.proto import common_pb2
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.rpc.trace_endpoint import open_tracing
from baton.text.model_folder import model_name
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.channels.poller import Poller
from baton.transfer.memory.rank_memory import RankMemory
from baton.transfer.memory.regions import EngineMemory, Memory
from baton.worker.config import WorkerConfig
from baton.worker.context import WorkerContext
from baton.worker.engine_port import EnginePort
from baton.worker.grammars import Grammars
from baton.worker.grpc_server import WorkerServer
from baton.worker.handoff_tracker import HandoffTracker
from baton.worker.host_process import this_process
from baton.worker.metrics import WorkerMetrics
from baton.worker.model_identity import worker_fingerprint
from baton.worker.profiler import Profiler

# A worker of both roles joins no cluster, so nobody reads its role.
ROLES = {
    Role.PREFILL: common_pb2.PREFILL,
    Role.DECODE: common_pb2.DECODE,
    Role.BOTH: common_pb2.ROLE_UNSPECIFIED,
}


def make_context(
    config: WorkerConfig,
    engine: Engine,
    incarnation: int,
    server: WorkerServer,
    owner: ProcessSupervisor,
    hub: LocalHub | None,
) -> WorkerContext:
    """Return what the worker's role is given. Called on the running loop.

    incarnation: above that of every earlier start of this worker. hub: where other engines of this
    process are found; None: there are none.
    """
    metrics = WorkerMetrics(config.worker_id, config.role)
    metrics.memory.show(engine.plan)
    model = model_name(config.engine.model)
    metrics.show_aliases(config.telemetry.metric_aliases, model, config.engine.page_size)
    if engine.followers is not None:
        metrics.memory.show_ranks([os.getpid(), *engine.followers.processes])
    memory = _memory(engine)
    port = EnginePort(engine, metrics.observe_step)
    device = device_of(config.engine.device)
    return WorkerContext(
        config=config,
        owner=owner,
        engine=engine,
        port=port,
        grammars=Grammars(engine.grammars, owner),
        memory=memory,
        hello=_hello(config, engine, incarnation, server.address, memory),
        metrics=metrics,
        handoffs=HandoffTracker(metrics.transfers),
        own_credentials=server.credentials,
        poller=Poller("transfers", owner, partial(use_device, device)),
        profiler=Profiler(port, device, config.worker_id, config.profile_folder),
        tracing=open_tracing(
            config.telemetry.otlp_traces_endpoint, **{"service.instance.id": config.worker_id}
        ),
        hub=hub,
    )


def _memory(engine: Engine) -> Memory:
    """Return the memory of all ranks of the engine."""
    followers = engine.followers
    if followers is None or followers.storages is None:
        return EngineMemory(engine.states, engine.pages)
    return RankMemory(followers.storages)


def _hello(
    config: WorkerConfig, engine: Engine, incarnation: int, address: str, memory: Memory
) -> common_pb2.Hello:
    identity = common_pb2.WorkerIdentity(
        worker_id=config.worker_id,
        incarnation=incarnation,
        address=address,
        role=ROLES[config.role],
        group=config.dp_group,
        rank=config.dp_rank,
    )
    on_device = any(span.device is not None for span in memory.spans)
    return common_pb2.Hello(
        protocol_major=PROTOCOL_MAJOR,
        protocol_minor=PROTOCOL_MINOR,
        worker=identity,
        process=this_process(on_device=on_device),
        fingerprint=worker_fingerprint(config.engine, engine.plan.model_config, memory),
    )
