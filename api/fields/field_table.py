"""The fields of request bodies that are known, and what becomes of each: one row a field.

The union of what OpenAI's, vLLM's and SGLang's clients send. Bodies are checked against it as they
are parsed; docs/requests.md and the tests are made from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


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
class RequestField:
    """One row. `values`: what a field of another class than WORKS may say; none for a LABEL:
    anything."""

    name: str
    places: tuple[FieldPlace, ...]
    kind: FieldClass
    goes: str
    values: tuple[object, ...] = ()
    carried: bool = False  # it goes into the call's log line, span and dump

    def takes(self, value: object) -> bool:
        """Return True if a field of another class than WORKS may have this value."""
        if self.kind is FieldClass.LABEL:
            return not self.values or value in self.values
        return value in self.values or value in ("", [], {})


_CHAT = (FieldPlace.CHAT,)
_COMPLETIONS = (FieldPlace.COMPLETIONS,)
_OPENAI = (FieldPlace.COMPLETIONS, FieldPlace.CHAT)
_GENERATE = (FieldPlace.GENERATE,)
_SAMPLING = (FieldPlace.SAMPLING,)
_RESPONSES = (FieldPlace.RESPONSES,)
_MESSAGES = (FieldPlace.MESSAGES,)
_CONVERSATION = (FieldPlace.MESSAGES, FieldPlace.COUNT_TOKENS)
_TOKENIZE = (FieldPlace.TOKENIZE,)
_EVERY_CHAT = (*_CHAT, *_RESPONSES, *_CONVERSATION)
_LIKE_OPENAI = (*_OPENAI, *_RESPONSES)
_EVERY_SAMPLING = (*_LIKE_OPENAI, FieldPlace.SAMPLING)
_SAMPLING_OF_OPENAI = (*_OPENAI, FieldPlace.SAMPLING)
_EVERY_REQUEST = (*_OPENAI, FieldPlace.GENERATE)
_EVERY_ANSWER = (*_EVERY_REQUEST, *_RESPONSES, *_MESSAGES)


def _works(places: tuple[FieldPlace, ...], names: str, goes: str) -> Iterator[RequestField]:
    for name in names.split():
        yield RequestField(name, places, FieldClass.WORKS, goes)


def _label(
    places: tuple[FieldPlace, ...], names: str, goes: str, *values: object
) -> Iterator[RequestField]:
    for name in names.split():
        yield RequestField(name, places, FieldClass.LABEL, goes, values)


def _carried(
    places: tuple[FieldPlace, ...], names: str, goes: str, *values: object
) -> Iterator[RequestField]:
    """A label of the request as a whole, by which its log line, span and dump can be found."""
    for field in _label(places, names, f"{goes}; carried", *values):
        yield replace(field, carried=True)


def _neutral(places: tuple[FieldPlace, ...], names: str, *values: object) -> Iterator[RequestField]:
    for name in names.split():
        yield RequestField(name, places, FieldClass.NEUTRAL, "not supported", values)


def _extra(places: tuple[FieldPlace, ...], names: str, *values: object) -> Iterator[RequestField]:
    for name in names.split():
        yield RequestField(name, places, FieldClass.EXTRA, "not supported", values)


_NO_STATE = "not supported, as {} are not stored here: send the whole conversation"
FIELDS: tuple[RequestField, ...] = (
    # The prompt.
    *_works(_COMPLETIONS, "prompt", "one prompt or several, as text or token ids"),
    *_works((*_CHAT, *_TOKENIZE), "messages", "the chat template, unchanged"),
    *_works(_CHAT, "tools", "the chat template, unchanged; calls are found in the answer"),
    *_works(_TOKENIZE, "tools", "the chat template, unchanged"),
    *_works(_TOKENIZE, "prompt", "a text; or else messages"),
    *_works(
        (*_CHAT, *_RESPONSES),
        "tool_choice",
        "which tools the template is given; a grammar that forces calls",
    ),
    *_works(
        (*_CHAT, *_RESPONSES), "parallel_tool_calls", "false: the answer has at most its first call"
    ),
    *_works((*_EVERY_CHAT, *_TOKENIZE), "chat_template_kwargs", "variables of the chat template"),
    *_works(_CHAT, "documents", "variables of the chat template"),
    *_works(_CHAT, "reasoning_effort", "variable of the chat template; none: thinking is off"),
    *_works((*_CHAT, *_TOKENIZE), "add_generation_prompt", "variable of the chat template"),
    *_works(_CHAT, "continue_final_message", "the answer continues the last message"),
    *_works(_CHAT, "separate_reasoning", "false: the reasoning stays in the content"),
    *_works(_CHAT, "thinking enable_thinking reasoning", "variables of the chat template"),
    *_works(_CHAT, "prediction", "guesses for draft tokens; changes no token"),
    *_works((FieldPlace.PREDICTION,), "type", "content"),
    *_works((FieldPlace.PREDICTION,), "content", "the text that the answer may be"),
    *_works(_GENERATE, "text input_ids", "one prompt or several"),
    *_works(_GENERATE, "sampling_params", "one object, or one for each prompt"),
    *_works(
        (*_LIKE_OPENAI, *_CONVERSATION, *_TOKENIZE, FieldPlace.DETOKENIZE),
        "model",
        "the served name; default and an empty one are any",
    ),
    *_works(
        (*_OPENAI, *_TOKENIZE), "add_special_tokens", "the tokenizer; a chat's default is false"
    ),
    *_works(_OPENAI, "truncate_prompt_tokens", "most prompt tokens; -1: what the context leaves"),
    *_works(_OPENAI, "truncation_side", "left (the default) or right: the side that is cut"),
    # Tokens.
    *_works((*_EVERY_SAMPLING, *_MESSAGES), "temperature top_k top_p min_p", "sampling"),
    *_works(
        _EVERY_SAMPLING,
        "repetition_penalty presence_penalty frequency_penalty",
        "sampling, before the temperature",
    ),
    *_works((*_EVERY_SAMPLING, *_MESSAGES), "seed", "the noise of sampling"),
    *_works(_SAMPLING, "sampling_seed", "as seed"),
    *_works(_EVERY_SAMPLING, "logit_bias", "added to logits, after the penalties"),
    *_works(_EVERY_SAMPLING, "allowed_token_ids", "no other token comes, an end token included"),
    *_works(_EVERY_SAMPLING, "bad_words", "never spelt by the tokens that they are made of"),
    *_works(_SAMPLING_OF_OPENAI, "n", "answers to each prompt"),
    *_works(_COMPLETIONS, "best_of", "answers computed to each prompt, of which the n best come"),
    # The end.
    *_works(_OPENAI, "max_tokens min_tokens", "most and fewest tokens of an answer"),
    *_works(_RESPONSES, "max_output_tokens min_tokens", "most and fewest tokens of an answer"),
    *_works(_MESSAGES, "max_tokens", "most tokens of an answer"),
    *_works(_MESSAGES, "stop_sequences", "ends the answer"),
    *_works(_CHAT, "max_completion_tokens", "as max_tokens"),
    *_works(_OPENAI, "repeat_penalty", "as repetition_penalty"),
    *_works(_SAMPLING, "max_new_tokens min_new_tokens", "most and fewest tokens of an answer"),
    *_works(_EVERY_SAMPLING, "stop stop_token_ids", "ends the answer"),
    *_works(_EVERY_SAMPLING, "stop_regex", "ends the answer; no anchors, no looking around"),
    *_works(_EVERY_SAMPLING, "ignore_eos", "true: the end token does not end the answer"),
    *_works(_OPENAI, "include_stop_str_in_output", "true: a stop string stays in the text"),
    *_works((*_OPENAI, FieldPlace.SAMPLING), "no_stop_trim", "as include_stop_str_in_output"),
    *_works(_SAMPLING_OF_OPENAI, "skip_special_tokens", "false: special tokens are shown"),
    # The form.
    *_works(_OPENAI, "response_format", "a grammar"),
    *_works(_SAMPLING_OF_OPENAI, "json_schema regex ebnf structural_tag", "a grammar"),
    *_works(_OPENAI, "guided_json guided_regex guided_choice guided_grammar", "a grammar"),
    *_works(_OPENAI, "structured_outputs", "a grammar"),
    *_label(_OPENAI, "guided_decoding_backend", "llguidance compiles every grammar"),
    *_works(
        (FieldPlace.RESPONSE_FORMAT,),
        "type json_schema schema structures triggers format",
        "a grammar",
    ),
    *_works((FieldPlace.JSON_SCHEMA,), "schema", "a grammar"),
    *_label((FieldPlace.JSON_SCHEMA,), "name description", "changes no answer"),
    *_works((FieldPlace.JSON_SCHEMA,), "strict", "what cannot be enforced is refused"),
    *_works((FieldPlace.STRUCTURED,), "json regex choice grammar json_object", "a grammar"),
    *_works((FieldPlace.STRUCTURED,), "structural_tag", "a grammar"),
    *_label(
        (FieldPlace.STRUCTURED,), "disable_any_whitespace", "JSON is compact with it or without"
    ),
    *_label((FieldPlace.STRUCTURED,), "disable_fallback", "there is one compiler of grammars"),
    *_works((FieldPlace.STRUCTURED,), "disable_additional_properties", "true: as --closed-objects"),
    *_neutral((FieldPlace.STRUCTURED,), "whitespace_pattern"),
    # The reply.
    *_works(_EVERY_ANSWER, "stream", "the reply comes in parts"),
    *_works(_LIKE_OPENAI, "stream_options", "what a stream has besides its parts"),
    *_works((FieldPlace.STREAM_OPTIONS,), "include_usage", "the numbers of tokens, at the end"),
    *_label(
        (FieldPlace.STREAM_OPTIONS,),
        "include_obfuscation continuous_usage_stats",
        "changes no part",
    ),
    *_works(_OPENAI, "logprobs", "log probabilities of the answer"),
    *_works(_OPENAI, "prompt_logprobs", "alternatives at each token of the prompt"),
    *_works((*_CHAT, *_RESPONSES), "top_logprobs", "alternatives at each token of the answer"),
    *_works(_COMPLETIONS, "echo", "the reply begins with the prompt"),
    *_works(_COMPLETIONS, "return_token_ids", "the reply has the answer's token ids"),
    *_works(_GENERATE, "return_logprob logprob_start_len", "log probabilities, from where on"),
    *_works(_GENERATE, "top_logprobs_num token_ids_logprob", "which log probabilities"),
    *_works(_GENERATE, "return_text_in_logprobs", "the text of each scored token"),
    # Placement and order.
    *_works(_EVERY_ANSWER, "priority", "a larger one goes first wherever requests wait"),
    *_works(_EVERY_ANSWER, "timeout", "seconds until the last token; 504 then; above 0"),
    *_works(_EVERY_ANSWER, "routed_dp_rank", "the decode rank to use"),
    *_works(_EVERY_REQUEST, "data_parallel_rank", "the decode rank to use"),
    *_works(_EVERY_ANSWER, "cache_salt", "who shares cached prefixes"),
    *_works(_EVERY_REQUEST, "extra_key", "who shares cached prefixes"),
    *_works(_EVERY_REQUEST, "explain", "true: the reply says why the request was placed as it was"),
    *_neutral((*_RESPONSES, *_MESSAGES), "explain", False),
    RequestField(
        "rid",
        _EVERY_REQUEST,
        FieldClass.WORKS,
        "the id that /abort_request takes; carried",
        carried=True,
    ),
    *_works((FieldPlace.ABORT,), "rid abort_all", "which requests"),
    *_label((FieldPlace.ABORT,), "abort_message", "changes nothing"),
    # Labels.
    *_carried(_OPENAI, "user request_id", "the id that /abort_request takes, if there is no rid"),
    *_carried(
        _OPENAI,
        "metadata store safety_identifier prompt_cache_key prompt_cache_retention "
        "prompt_cache_options verbosity service_tier",
        "changes no answer",
    ),
    *_carried(_EVERY_REQUEST, "session_id custom_labels", "changes no answer"),
    *_carried(_GENERATE, "conversation_id routing_key", "changes no answer"),
    *_label(_GENERATE, "no_logs external_trace_header received_time", "changes no answer"),
    *_label(_SAMPLING_OF_OPENAI, "spaces_between_special_tokens", "fast tokenizers have one way"),
    *_label(_SAMPLING_OF_OPENAI, "stream_interval", "the server decides: `--stream-interval`"),
    *_label(_OPENAI, "return_mm_kwargs", "no reply has any"),
    # What this server lacks.
    *_neutral(_COMPLETIONS, "suffix prompt_embeds"),
    *_neutral(_CHAT, "modalities", ["text"]),
    *_neutral(_CHAT, "audio functions chat_template"),
    *_extra(_CHAT, "web_search_options moderation task"),
    *_neutral(_CHAT, "function_call", "auto", "none"),
    *_neutral(_CHAT, "input_ids"),
    *_neutral(_CHAT, "echo", False),
    *_extra(_CHAT, "max_dynamic_patch min_dynamic_patch"),
    *_extra(_CHAT, "use_audio_in_video return_token_ids return_meta_info", False),
    *_extra(_CHAT, "include_reasoning stream_reasoning", True),
    *_extra(_CHAT, "mm_processor_kwargs media_io_kwargs return_prompt_text", False),
    *_neutral(_OPENAI, "use_beam_search watermarking", False),
    *_extra(_OPENAI, "models top_a"),  # OpenRouter's
    *_extra(_OPENAI, "return_tokens_as_token_ids", False),
    *_extra(_OPENAI, "return_token_offsets return_cached_tokens_details", False),
    *_neutral(_OPENAI, "length_penalty", 1),
    *_neutral(_OPENAI, "thinking_token_budget", -1),
    *_extra(_OPENAI, "routed_experts_prompt_start", 0),
    *_neutral(_OPENAI, "logprob_token_ids repetition_detection guided_whitespace_pattern"),
    *_neutral(_OPENAI, "kv_transfer_params ec_transfer_params vllm_xargs"),
    *_neutral(_OPENAI, "ngram_corpus_id"),
    *_neutral((*_OPENAI, FieldPlace.SAMPLING), "custom_params"),
    *_neutral(_SAMPLING_OF_OPENAI, "beam_width", 1),
    *_extra(_EVERY_REQUEST, "return_hidden_states return_routed_experts", False),
    *_extra(_EVERY_REQUEST, "return_prompt_token_ids", False),
    *_extra(_EVERY_REQUEST, "routed_experts_start_len", 0),
    *_neutral(_EVERY_REQUEST, "lora_path session_params custom_logit_processor images_config"),
    *_neutral(_EVERY_REQUEST, "bootstrap_host bootstrap_port bootstrap_room"),
    *_neutral(_EVERY_REQUEST, "disagg_prefill_dp_rank"),
    *_neutral(_GENERATE, "input_embeds image_data audio_data video_data mm_hashes"),
    *_neutral(_GENERATE, "mm_content_hashes video_config modalities lora_id"),
    *_neutral(_GENERATE, "positional_embed_overrides bootstrap_pair_key decode_tp_size"),
    *_neutral(_GENERATE, "kv_router_hint http_worker_ipc max_thinking_tokens encoder_urls"),
    *_neutral(_GENERATE, "num_items_assigned max_dynamic_patch min_dynamic_patch"),
    *_neutral(_GENERATE, "image_max_dynamic_patch video_max_dynamic_patch"),
    *_neutral(_GENERATE, "multi_item_delimiter_indices"),
    *_neutral(_GENERATE, "require_reasoning background", False),
    *_extra(_GENERATE, "use_audio_in_video return_sampling_mask", False),
    *_extra(_GENERATE, "return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64", False),
    *_extra(_GENERATE, "return_indexer_topk return_bytes", False),
    *_extra(_GENERATE, "return_entropy need_wait_for_mm_inputs", False),
    *_extra(_GENERATE, "log_metrics", True),
    # OpenAI's Responses.
    *_works(_RESPONSES, "input instructions", "the conversation"),
    *_works(_RESPONSES, "tools", "functions, for the chat template; calls are found in the answer"),
    *_works(_RESPONSES, "text", "a grammar"),
    *_works(_RESPONSES, "reasoning", "variable of the chat template"),
    *_works(
        _RESPONSES,
        "include",
        "message.output_text.logprobs: log probabilities of the answer; "
        "reasoning.encrypted_content: the reasoning in a form that can be sent back",
    ),
    *_label(_RESPONSES, "client_metadata", "changes no answer"),
    *_carried(_RESPONSES, "user", "the id that /abort_request takes"),
    *_carried(
        _RESPONSES,
        "metadata store safety_identifier prompt_cache_key prompt_cache_retention "
        "prompt_cache_options max_tool_calls service_tier",
        "changes no answer",
    ),
    *_neutral(_RESPONSES, "prompt"),
    *_extra(_RESPONSES, "context_management access_programs moderation image"),
    *_neutral(_RESPONSES, "background", False),
    *_extra(_RESPONSES, "truncation", "disabled"),
    RequestField(
        "previous_response_id",
        _RESPONSES,
        FieldClass.NEUTRAL,
        _NO_STATE.format("responses") + " in input",
    ),
    RequestField("conversation", _RESPONSES, FieldClass.NEUTRAL, _NO_STATE.format("conversations")),
    *_works((FieldPlace.RESPONSES_TEXT,), "format", "a grammar"),
    *_label((FieldPlace.RESPONSES_TEXT,), "verbosity", "changes no answer"),
    *_works((FieldPlace.RESPONSES_REASONING,), "effort", "variable of the chat template"),
    *_works(
        (FieldPlace.RESPONSES_REASONING,),
        "summary generate_summary",
        "any value but none: the reasoning is the item's summary too, whole",
    ),
    *_label((FieldPlace.RESPONSES_REASONING,), "context mode", "changes no answer"),
    *_label((FieldPlace.RESPONSES_STREAM,), "include_obfuscation", "changes no part"),
    # Anthropic's Messages.
    *_works(_CONVERSATION, "messages system", "the conversation"),
    *_works(_CONVERSATION, "tools", "for the chat template; calls are found in the answer"),
    *_works(_CONVERSATION, "tool_choice", "a grammar that forces calls"),
    *_works(_CONVERSATION, "thinking", "variable of the chat template"),
    *_works(_CONVERSATION, "output_config output_format", "a grammar"),
    RequestField(
        "metadata",
        _MESSAGES,
        FieldClass.WORKS,
        "its user_id is the id that /abort_request takes; carried",
        carried=True,
    ),
    *_label(_CONVERSATION, "cache_control", "prefixes are cached by themselves"),
    *_carried(_MESSAGES, "service_tier", "changes no answer"),
    *_extra(_CONVERSATION, "user_profile_id workspace_id diagnostics mcp_servers"),
    *_extra(_CONVERSATION, "context_management"),
    *_extra(_CONVERSATION, "speed", "standard"),
    *_extra(_MESSAGES, "inference_geo"),
    *_neutral(_MESSAGES, "container"),
    RequestField("thread", _CONVERSATION, FieldClass.NEUTRAL, _NO_STATE.format("threads")),
    *_works((FieldPlace.MESSAGES_TOOL,), "name description input_schema", "the chat template"),
    *_works((FieldPlace.MESSAGES_TOOL,), "type", "custom; other types are Anthropic's services"),
    *_works((FieldPlace.MESSAGES_TOOL,), "strict", "what cannot be enforced is refused"),
    *_label((FieldPlace.MESSAGES_TOOL,), "cache_control", "prefixes are cached by themselves"),
    *_label(
        (FieldPlace.MESSAGES_TOOL,),
        "eager_input_streaming defer_loading input_examples allowed_callers",
        "changes no answer",
    ),
    *_works((FieldPlace.MESSAGES_CHOICE,), "type name", "a grammar that forces calls"),
    *_works(
        (FieldPlace.MESSAGES_CHOICE,),
        "disable_parallel_tool_use",
        "true: the answer has at most its first call",
    ),
    *_works((FieldPlace.MESSAGES_THINKING,), "type", "variable of the chat template"),
    *_works(
        (FieldPlace.MESSAGES_THINKING,),
        "budget_tokens",
        "most tokens of the reasoning, where the template has marks of it",
    ),
    *_label((FieldPlace.MESSAGES_THINKING,), "display", "changes no answer"),
    *_works((FieldPlace.MESSAGES_OUTPUT,), "format", "a grammar"),
    *_label((FieldPlace.MESSAGES_OUTPUT,), "effort", "changes no answer"),
    *_works((FieldPlace.MESSAGES_FORMAT,), "type schema", "a grammar"),
    *_works((FieldPlace.MESSAGES_METADATA,), "user_id", "the id that /abort_request takes"),
    # Token ids.
    *_works(_TOKENIZE, "return_token_strs", "the text of each token"),
    *_neutral(_TOKENIZE, "continue_final_message", False),
    *_neutral(_TOKENIZE, "chat_template mm_processor_kwargs"),
    *_works((FieldPlace.DETOKENIZE,), "tokens", "the ids"),
)
