"""Checks before anything starts, so that a wrong folder fails within a second."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from baton.core.errors import ConfigError
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.device_choice import ONE, unusable
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.errors import StartError
from baton.deploy.files.model_folder import check_folder
from baton.engine.assembly.loader import check_weights, open_checkpoint, planned_memory
from baton.engine.models.family_table import configured_model
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.available import check_budget
from baton.engine.sizing.device_overhead import DeviceOverhead
from baton.engine.sizing.readable import readable
from baton.text.chat_template import ChatTemplate
from baton.text.template_options import TemplateOptions
from baton.text.tokenizer import Tokenizer
from baton.transfer.channels import registry
from baton.transfer.channels.names import AUTO
from baton.transfer.channels.trusted_network import TrustedNetwork
from baton.transfer.errors import ChannelError
from baton.worker.state_options import StateReturn

GIB = 1 << 30


def check_model(config: EngineConfig, template: TemplateOptions | None = None) -> None:
    """Check a model's folder, config, tensor names and shapes, tokenizer and chat template.

    template: options for the chat template. Reads headers, not weights. Raises StartError.
    """
    folder = config.model
    check_folder(folder)
    try:
        model = configured_model(config)
        check_weights(model, open_checkpoint(model))
        Tokenizer.from_folder(folder)
        ChatTemplate.from_folder(folder, template)
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err


def with_ends(config: EngineConfig, template: TemplateOptions) -> EngineConfig:
    """Return options of an engine that ends answers where the operator's chat template ends turns.

    An engine finds the ends of the model's own template by itself.
    """
    if template.file is None:
        return config
    ends = Tokenizer.from_folder(config.model, template).stop_ids
    return replace(config, end_ids=tuple(sorted(ends)))


def check_device(config: EngineConfig, *, here: bool, demand: GpuDemand = ONE) -> None:
    """Raise StartError for a device that torch does not know, or that workers cannot use here.

    here: workers run on this machine. demand: what they ask of its GPUs.
    """
    try:
        device = torch.device(config.device)
    except RuntimeError as err:
        raise StartError(f"--device {config.device}: expected cpu, cuda or cuda:N") from err
    if device.type not in ("cpu", "cuda"):
        raise StartError(f"--device {config.device}: expected cpu, cuda or cuda:N")
    if config.weight_format is WeightFormat.INT8 and device.type != "cpu":
        raise StartError(
            f"--weight-format {config.weight_format} is for the CPU; got --device {config.device}"
        )
    if here and device.type == "cuda":
        against = unusable(demand, device.index or 0)
        if against is not None:
            raise StartError(f"--device {config.device}: {against}")
        _check_card(config, demand.sharers)


def _check_card(config: EngineConfig, sharers: int) -> None:
    """Raise StartError where workers that share a GPU have named budgets beyond its memory."""
    if sharers == 1 or config.memory_bytes is None:
        return
    total = torch.cuda.get_device_properties(0).total_memory
    beside = DeviceOverhead(running=1, layers=0, window=1, ranks=1).total
    if sharers * (config.memory_bytes + beside) > total:
        most = max(0, total // sharers - beside)
        raise StartError(
            f"--memory-gb {config.memory_bytes / GIB:g}: {sharers} workers share a GPU of "
            f"{readable(total)}, and each takes about {readable(beside)} beside its budget: give "
            f"at most --memory-gb {int(10 * most / GIB) / 10:g}, or leave it out, and each has its "
            "part of --memory-fraction"
        )


def check_fits(worker: str, config: EngineConfig) -> int:
    """Return the bytes that this worker's memory plan takes on this machine.

    Raises StartError if they do not suffice.
    """
    try:
        return config.tp * planned_memory(config).budget_bytes
    except ConfigError as err:
        raise StartError(f"{worker}: {err}") from err


def check_together(budgets: Mapping[str, int], beside: int = 0) -> None:
    """Raise StartError for workers that may take more than this machine has, together.

    budgets: the bytes of each, by worker_id. beside: the bytes that each takes of it beside those.
    """
    many = f"{len(budgets)} workers together" if len(budgets) > 1 else next(iter(budgets), "")
    try:
        check_budget(sum(budgets.values()) + len(budgets) * beside, many)
    except ConfigError as err:
        raise StartError(str(err)) from err


def settle_state_return(config: ClusterConfig) -> tuple[StateReturn, str]:
    """Return when states go back in a cluster, and why it is not as in `config`.

    The reason is empty where it is. What nobody asked for takes no room that hand-offs need, and is
    not tried between replicas of several ranks: that is measured for one only.
    """
    if config.state_return is not StateReturn.AUTO:
        return config.state_return, ""
    if max(config.prefill_tp, config.decode_tp) > 1:
        return StateReturn.OFF, "workers have several tensor-parallel ranks"
    if config.ray_address is None:  # the room of other hosts is not known here
        try:
            registry.check_room(config.channel, _ends(config, config.state_return))
        except ChannelError as err:
            try:
                registry.check_room(config.channel, _ends(config, StateReturn.OFF))
            except ChannelError:
                return config.state_return, ""  # `settle_channel` finds another
            return StateReturn.OFF, str(err)
    return config.state_return, ""


def _ends(config: ClusterConfig, returns: StateReturn) -> int:
    """Return the ends of channels between all workers."""
    pairs = config.prefill * config.decode * config.decode_dp
    ends = 2 * pairs  # a sender and a receiver
    if returns is not StateReturn.OFF:  # and back, a reader, and a lender each
        ends += 3 * pairs + len(config.members)
    return ends


def settle_channel(config: ClusterConfig) -> tuple[str, str]:
    """Return the channel for a cluster on this machine, and why it is not the one in `config`.

    The reason is empty where it is. Raises StartError where the one that is named cannot be used.
    """
    wanted = config.channel
    try:
        registry.check_settings(wanted, TrustedNetwork(interfaces=config.nixl_interfaces))
        registry.check_room(wanted, _ends(config, config.state_return))
    except ConfigError as err:
        raise StartError(str(err)) from err
    except ChannelError as err:
        if wanted != AUTO:
            raise StartError(f"--channel {wanted}: {err}") from err
        return registry.fallbacks()[0].name, str(err)
    return wanted, ""
