"""Checks before anything starts, so that a wrong folder fails within a second."""

from baton.core.errors import ConfigError
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.errors import StartError
from baton.engine.config import EngineConfig
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.family_table import read_config
from baton.engine.models.loader import check_weights, planned_memory
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer
from baton.transfer.channels import registry
from baton.transfer.channels.trusted_network import TrustedNetwork
from baton.transfer.errors import ChannelError
from baton.worker.config import StateReturn


def check_model(config: EngineConfig) -> None:
    """Check a model's folder, config, tensor names and shapes, tokenizer and chat template.

    Reads headers, not weights. Raises StartError.
    """
    folder = config.model
    if not folder.is_dir():
        raise StartError(
            f"--model {folder}: no such folder; expected one with config.json, *.safetensors and "
            "tokenizer.json, or the id (owner/name) of a model on the Hugging Face hub"
        )
    try:
        model = read_config(folder, config.dtype, config.ssm_dtype)
        check_weights(model, Checkpoint(folder))
        Tokenizer.from_folder(folder)
        ChatTemplate.from_folder(folder)
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err


def check_fits(worker: str, config: EngineConfig) -> int:
    """Return the bytes that this worker's memory plan takes on this machine.

    Raises StartError if they do not suffice.
    """
    try:
        return planned_memory(config).budget_bytes
    except ConfigError as err:
        raise StartError(f"{worker}: {err}") from err


def settle_channel(config: ClusterConfig) -> tuple[str, str]:
    """Return the channel for a cluster on this machine, and why it is not the one in `config`.

    The reason is empty where it is. Raises StartError where the one that is named cannot be used.
    """
    wanted = config.channel
    pairs = config.prefill * config.decode * config.decode_dp
    ends = 2 * pairs  # a sender and a receiver
    if config.state_return is not StateReturn.OFF:  # and back, a reader, and a lender each
        ends += 3 * pairs + len(config.members)
    try:
        registry.check_settings(wanted, TrustedNetwork(interfaces=config.nixl_interfaces))
        registry.check_room(wanted, ends)
    except ConfigError as err:
        raise StartError(str(err)) from err
    except ChannelError as err:
        if wanted != registry.AUTO:
            raise StartError(f"--channel {wanted}: {err}") from err
        return registry.fallbacks()[0].name, str(err)
    return wanted, ""
