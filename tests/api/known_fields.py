"""The names of the request fields of three other servers, as their sources had them in
November 2026: vLLM's and SGLang's protocol classes. OpenAI's come from its client."""

from collections.abc import Mapping
from typing import get_type_hints

from anthropic.types import message_count_tokens_params as anthropic_count
from anthropic.types import message_create_params as anthropic_messages
from openai.types import completion_create_params as openai_completions
from openai.types.chat import completion_create_params as openai_chat
from openai.types.responses import response_create_params as openai_responses

from baton.api.fields.field_table import FieldPlace

_VLLM_BOTH = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop
stream stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty
watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_special_tokens
structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
guided_json guided_regex guided_choice guided_grammar guided_decoding_backend
guided_whitespace_pattern structural_tag
"""
_VLLM_COMPLETIONS = "prompt suffix prompt_embeds"
_VLLM_CHAT = """
messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
_VLLM_TOKENIZE = """
model prompt add_special_tokens return_token_strs messages add_generation_prompt
continue_final_message chat_template chat_template_kwargs mm_processor_kwargs tools
"""
_SGLANG_BOTH = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options temperature top_p user return_hidden_states return_routed_experts
routed_experts_start_len return_cached_tokens_details return_token_ids top_k min_p min_tokens regex
ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos skip_special_tokens
lora_path session_id session_params response_format custom_params custom_logit_processor
images_config bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank
data_parallel_rank rid extra_key cache_salt ngram_corpus_id priority custom_labels
"""
_SGLANG_COMPLETIONS = "prompt best_of echo suffix json_schema"
_SGLANG_CHAT = """
messages top_logprobs max_completion_tokens tools tool_choice parallel_tool_calls
return_prompt_token_ids return_meta_info reasoning_effort reasoning task continue_final_message
separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch
use_audio_in_video input_ids
"""
_SGLANG_GENERATE = """
rid session_id text input_ids input_embeds image_data video_data audio_data mm_hashes
mm_content_hashes use_audio_in_video video_config sampling_params return_logprob logprob_start_len
top_logprobs_num token_ids_logprob return_sampling_mask return_text_in_logprobs
return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64 stream log_metrics
return_hidden_states return_routed_experts routed_experts_start_len return_indexer_topk modalities
session_params lora_path lora_id custom_logit_processor positional_embed_overrides bootstrap_host
bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size routed_dp_rank data_parallel_rank
disagg_prefill_dp_rank kv_router_hint routing_key conversation_id http_worker_ipc background
require_reasoning max_thinking_tokens priority extra_key no_logs custom_labels return_bytes
return_entropy return_prompt_token_ids external_trace_header received_time need_wait_for_mm_inputs
num_items_assigned encoder_urls max_dynamic_patch min_dynamic_patch image_max_dynamic_patch
video_max_dynamic_patch images_config multi_item_delimiter_indices cache_salt
"""
_SGLANG_SAMPLING = """
max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty
presence_penalty repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag
ignore_eos skip_special_tokens spaces_between_special_tokens no_stop_trim custom_params
stream_interval logit_bias sampling_seed
"""


def _openai(module: object) -> str:
    """Return the names of the fields of one of the OpenAI client's methods."""
    base = module.CompletionCreateParamsBase  # type: ignore[attr-defined]
    return " ".join([*base.__annotations__, "stream"])


KNOWN: Mapping[FieldPlace, frozenset[str]] = {
    FieldPlace.COMPLETIONS: frozenset(
        (_VLLM_BOTH + _VLLM_COMPLETIONS + _SGLANG_BOTH + _SGLANG_COMPLETIONS).split()
        + _openai(openai_completions).split()
    ),
    FieldPlace.CHAT: frozenset(
        (_VLLM_BOTH + _VLLM_CHAT + _SGLANG_BOTH + _SGLANG_CHAT).split()
        + _openai(openai_chat).split()
    ),
    FieldPlace.RESPONSES: frozenset(
        [*get_type_hints(openai_responses.ResponseCreateParamsBase), "stream"]
    ),
    FieldPlace.MESSAGES: frozenset(
        [*get_type_hints(anthropic_messages.MessageCreateParamsBase), "stream"]
    ),
    FieldPlace.COUNT_TOKENS: frozenset(get_type_hints(anthropic_count.MessageCountTokensParams)),
    FieldPlace.TOKENIZE: frozenset(_VLLM_TOKENIZE.split()),
    FieldPlace.DETOKENIZE: frozenset(["model", "tokens"]),
    FieldPlace.GENERATE: frozenset(_SGLANG_GENERATE.split()),
    FieldPlace.SAMPLING: frozenset(_SGLANG_SAMPLING.split()),
    FieldPlace.STREAM_OPTIONS: frozenset(
        ["include_usage", "include_obfuscation", "continuous_usage_stats"]
    ),
    FieldPlace.RESPONSE_FORMAT: frozenset(["type", "json_schema"]),
    FieldPlace.JSON_SCHEMA: frozenset(["name", "description", "schema", "strict"]),
    FieldPlace.STRUCTURED: frozenset(
        "json regex choice grammar json_object disable_fallback disable_any_whitespace "
        "disable_additional_properties whitespace_pattern structural_tag".split()
    ),
}
"""The fields that clients of these servers may send, by the object that they stand in."""
