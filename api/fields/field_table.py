"""The uses of all known fields of request bodies.

A field that a body's class reads says it in its type, by `works` or `label`. The table below has
all others that clients of OpenAI, vLLM and SGLang send. `request_fields` joins the two: bodies are
checked against them as they are parsed; docs/requests.md and the tests are made from them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from baton.core.errors import InvariantError


class FieldPlace(StrEnum):
    """An object of a request that has fields of its own. The value is how documents name it."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"
    RESPONSES_TEXT = "/v1/responses: text"
    RESPONSES_REASONING = "/v1/responses: reasoning"
    RESPONSES_STREAM = "/v1/responses: stream_options"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    MESSAGES_TOOL = "/v1/messages: tools"
    MESSAGES_CHOICE = "/v1/messages: tool_choice"
    MESSAGES_THINKING = "/v1/messages: thinking"
    MESSAGES_OUTPUT = "/v1/messages: output_config"
    MESSAGES_FORMAT = "/v1/messages: output_config.format"
    MESSAGES_METADATA = "/v1/messages: metadata"
    GENERATE = "/generate"
    SAMPLING = "/generate: sampling_params"
    STREAM_OPTIONS = "stream_options"
    RESPONSE_FORMAT = "response_format"
    JSON_SCHEMA = "response_format.json_schema"
    STRUCTURED = "structured_outputs"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    PREDICTION = "prediction"
    ABORT = "/abort_request"


class FieldClass(StrEnum):
    """The use that the server makes of a field that it knows."""

    WORKS = "works"
    LABEL = "label"  # accepted with any value that is listed, or any at all; changes no token
    NEUTRAL = "neutral"  # only the values that ask for nothing; any other is refused
    EXTRA = "extra"  # as NEUTRAL, but any other value is left out: it changes no answer's text


@dataclass(frozen=True)
class FieldUse:
    """The use of one field. `values`: what a field of another class than WORKS may say; none for a
    LABEL: anything."""

    kind: FieldClass
    goes: str
    values: tuple[object, ...] = ()
    carried: bool = False  # it goes into the call's log line, span and dump

    def takes(self, value: object) -> bool:
        """Return True if a field of another class than WORKS may have this value."""
        if self.kind is FieldClass.LABEL:
            return not self.values or value in self.values
        return value in self.values or value in ("", [], {})


def works(goes: str, *, carried: bool = False) -> FieldUse:
    """Return the mark of a field that a body's class reads. goes: what becomes of it."""
    return FieldUse(FieldClass.WORKS, _purpose(goes, carried), carried=carried)


def label(goes: str, *, carried: bool = False) -> FieldUse:
    """Return the mark of a label of which a body's class checks the type."""
    return FieldUse(FieldClass.LABEL, _purpose(goes, carried), carried=carried)


def _purpose(goes: str, carried: bool) -> str:
    return f"{goes}; carried" if carried else goes


FORM = works("a grammar")
TURN = works("a larger one goes first wherever requests wait")
DEADLINE = works("seconds until the last token; 504 then; above 0")
RANK = works("the decode rank to use")
SHARERS = works("who shares cached prefixes")
REASONS = works("true: the reply says why the request was placed as it was")
"""The mark of a field that asks for a form of the answer."""

_CHAT = (FieldPlace.CHAT,)
_COMPLETIONS = (FieldPlace.COMPLETIONS,)
_OPENAI = (FieldPlace.COMPLETIONS, FieldPlace.CHAT)
_GENERATE = (FieldPlace.GENERATE,)
_RESPONSES = (FieldPlace.RESPONSES,)
_MESSAGES = (FieldPlace.MESSAGES,)
_CONVERSATION = (FieldPlace.MESSAGES, FieldPlace.COUNT_TOKENS)
_TOKENIZE = (FieldPlace.TOKENIZE,)
_LIKE_OPENAI = (*_OPENAI, *_RESPONSES)
_SAMPLING_OF_OPENAI = (*_OPENAI, FieldPlace.SAMPLING)
_EVERY_REQUEST = (*_OPENAI, FieldPlace.GENERATE)


Uses = Iterator[tuple[FieldPlace, str, FieldUse]]


def _each(places: tuple[FieldPlace, ...], names: str, use: FieldUse) -> Uses:
    return ((place, name, use) for place in places for name in names.split())


def _label(places: tuple[FieldPlace, ...], names: str, goes: str) -> Uses:
    return _each(places, names, label(goes))


def _carried(places: tuple[FieldPlace, ...], names: str, goes: str) -> Uses:
    """A label of the request as a whole, by which its log line, span and dump can be found."""
    return _each(places, names, label(goes, carried=True))


def _neutral(places: tuple[FieldPlace, ...], names: str, *values: object) -> Uses:
    return _each(places, names, FieldUse(FieldClass.NEUTRAL, "not supported", values))


def _extra(places: tuple[FieldPlace, ...], names: str, *values: object) -> Uses:
    return _each(places, names, FieldUse(FieldClass.EXTRA, "not supported", values))


def _not_stored(what: str, where: str = "") -> FieldUse:
    return FieldUse(
        FieldClass.NEUTRAL,
        f"not supported, as {what} are not stored here: send the whole conversation{where}",
    )


def _table(*uses: Uses) -> Mapping[FieldPlace, Mapping[str, FieldUse]]:
    table: dict[FieldPlace, dict[str, FieldUse]] = {place: {} for place in FieldPlace}
    for place, name, use in chain(*uses):
        if name in table[place]:
            raise InvariantError(f"two rows say what becomes of {name} at {place}; keep one")
        table[place][name] = use
    return table


UNREAD_FIELDS = _table(
    _label(_OPENAI, "guided_decoding_backend", "llguidance compiles every grammar"),
    _label((FieldPlace.JSON_SCHEMA,), "name description", "changes no answer"),
    _label(
        (FieldPlace.STRUCTURED,), "disable_any_whitespace", "JSON is compact with it or without"
    ),
    _label((FieldPlace.STRUCTURED,), "disable_fallback", "there is one compiler of grammars"),
    _neutral((FieldPlace.STRUCTURED,), "whitespace_pattern"),
    _label(
        (FieldPlace.STREAM_OPTIONS,),
        "include_obfuscation continuous_usage_stats",
        "changes no part",
    ),
    _neutral((*_RESPONSES, *_MESSAGES), "explain", False),
    _label((FieldPlace.ABORT,), "abort_message", "changes nothing"),
    _carried(
        _OPENAI,
        "metadata store safety_identifier prompt_cache_key prompt_cache_retention "
        "prompt_cache_options verbosity service_tier",
        "changes no answer",
    ),
    _carried(_EVERY_REQUEST, "session_id custom_labels", "changes no answer"),
    _carried(_GENERATE, "conversation_id routing_key", "changes no answer"),
    _label(_GENERATE, "no_logs external_trace_header received_time", "changes no answer"),
    _label(_SAMPLING_OF_OPENAI, "spaces_between_special_tokens", "fast tokenizers have one way"),
    _label(_SAMPLING_OF_OPENAI, "stream_interval", "the server decides: `--stream-interval`"),
    _label(_OPENAI, "return_mm_kwargs", "no reply has any"),
    # What this server lacks.
    _neutral(_COMPLETIONS, "suffix prompt_embeds"),
    _neutral(_CHAT, "modalities", ["text"]),
    _neutral(_CHAT, "audio functions chat_template"),
    _extra(_CHAT, "web_search_options moderation task"),
    _neutral(_CHAT, "function_call", "auto", "none"),
    _neutral(_CHAT, "input_ids"),
    _neutral(_CHAT, "echo", False),
    _extra(_CHAT, "max_dynamic_patch min_dynamic_patch"),
    _extra(_CHAT, "use_audio_in_video return_token_ids return_meta_info", False),
    _extra(_CHAT, "include_reasoning stream_reasoning", True),
    _extra(_CHAT, "mm_processor_kwargs media_io_kwargs return_prompt_text", False),
    _neutral(_OPENAI, "use_beam_search watermarking", False),
    _extra(_OPENAI, "models top_a"),  # OpenRouter's
    _extra(_OPENAI, "return_tokens_as_token_ids", False),
    _extra(_OPENAI, "return_token_offsets", False),
    _neutral(_OPENAI, "length_penalty", 1),
    _neutral(_OPENAI, "thinking_token_budget", -1),
    _extra(_OPENAI, "routed_experts_prompt_start", 0),
    _neutral(_OPENAI, "logprob_token_ids repetition_detection guided_whitespace_pattern"),
    _neutral(_OPENAI, "kv_transfer_params ec_transfer_params vllm_xargs"),
    _neutral(_OPENAI, "ngram_corpus_id"),
    _neutral((*_OPENAI, FieldPlace.SAMPLING), "custom_params"),
    _neutral(_SAMPLING_OF_OPENAI, "beam_width", 1),
    _extra(_EVERY_REQUEST, "return_hidden_states return_routed_experts", False),
    _extra(_EVERY_REQUEST, "return_prompt_token_ids", False),
    _extra(_EVERY_REQUEST, "routed_experts_start_len", 0),
    _neutral(_EVERY_REQUEST, "lora_path session_params custom_logit_processor images_config"),
    _neutral(_EVERY_REQUEST, "bootstrap_host bootstrap_port bootstrap_room"),
    _neutral(_EVERY_REQUEST, "disagg_prefill_dp_rank"),
    _neutral(_GENERATE, "input_embeds image_data audio_data video_data mm_hashes"),
    _neutral(_GENERATE, "mm_content_hashes video_config modalities lora_id"),
    _neutral(_GENERATE, "positional_embed_overrides bootstrap_pair_key decode_tp_size"),
    _neutral(_GENERATE, "kv_router_hint http_worker_ipc max_thinking_tokens encoder_urls"),
    _neutral(_GENERATE, "num_items_assigned max_dynamic_patch min_dynamic_patch"),
    _neutral(_GENERATE, "image_max_dynamic_patch video_max_dynamic_patch"),
    _neutral(_GENERATE, "multi_item_delimiter_indices"),
    _neutral(_GENERATE, "require_reasoning background", False),
    _extra(_GENERATE, "use_audio_in_video return_sampling_mask", False),
    _extra(_GENERATE, "return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64", False),
    _extra(_GENERATE, "return_indexer_topk return_bytes", False),
    _extra(_GENERATE, "return_entropy need_wait_for_mm_inputs", False),
    _extra(_GENERATE, "log_metrics", True),
    # OpenAI's Responses.
    _neutral(_RESPONSES, "prompt"),
    _extra(_RESPONSES, "context_management access_programs moderation image"),
    _neutral(_RESPONSES, "background", False),
    _extra(_RESPONSES, "truncation", "disabled"),
    _each(_RESPONSES, "previous_response_id", _not_stored("responses", " in input")),
    _each(_RESPONSES, "conversation", _not_stored("conversations")),
    # Anthropic's Messages.
    _extra(_CONVERSATION, "user_profile_id workspace_id diagnostics mcp_servers"),
    _extra(_CONVERSATION, "context_management"),
    _extra(_CONVERSATION, "speed", "standard"),
    _extra(_MESSAGES, "inference_geo"),
    _neutral(_MESSAGES, "container"),
    _each(_CONVERSATION, "thread", _not_stored("threads")),
    # Token ids.
    _neutral(_TOKENIZE, "continue_final_message", False),
    _neutral(_TOKENIZE, "chat_template mm_processor_kwargs"),
)
"""The fields that no body's class reads, by their place."""
