// Kernels for a CPU: operations at which torch is slow when a batch has few rows.
//
// ABI: `baton_run` runs a list of operations, each a function and a pointer to its arguments. The
// arguments are plain structs of pointers, 64-bit integers and doubles, whose layouts the list of
// `baton_operations` has (layout.h): Python makes its structs from them.
//
// The list runs in one parallel region. Every thread enters every operation, and its loops
// (`Team::each`) end when all of their work is done: operation i is complete before i + 1 begins.
//
// Activations are float32. Weights, KV and recurrent state may be bfloat16, weights also int8 with
// a scale a row, or 8-bit floats with scales of blocks. Every sum is taken in an order that depends
// on the row's own sizes alone, never on the number of rows or threads: a row's result is the same
// bits in every batch.
#include <cstdint>
#include <memory>

#include "attention.h"
#include "attention_prompts.h"
#include "collective.h"
#include "conv.h"
#include "conv_prompts.h"
#include "delta.h"
#include "delta_prompts.h"
#include "embedding.h"
#include "eight_bit.h"
#include "layout.h"
#include "linear.h"
#include "mamba2.h"
#include "mamba2_prompts.h"
#include "mla.h"
#include "mla_prompts.h"
#include "moe.h"
#include "ngrams.h"
#include "packed.h"
#include "past_cache.h"
#include "rows.h"
#include "sampling.h"
#include "several_tokens.h"
#include "team.h"
#include "tiles.h"

OPERATION(linear, Linear, NULLABLE(bias, rounded),
          x, weight, bias, y, rounded, rows, columns, outputs, x_stride, dtype)
OPERATION(packed_linear, PackedLinear, NULLABLE(bias, rounded),
          x, weight, bias, y, rounded, rows, columns, outputs, x_stride, y_stride, dtype)
OPERATION(packed_eight_bit, PackedEightBit, NULLABLE(bias, rounded),
          x, weight, scale, bias, y, rounded, rows, columns, outputs, x_stride, y_stride, dtype,
          group, integers)
OPERATION(embedding, Embedding, NULLABLE(scale),
          ids, table, scale, out, rows, width, dtype, first, count, packed, group, integers)
OPERATION(rms_norm, RmsNorm, NONE, x, weight, out, rows, heads, width, x_stride, eps)
OPERATION(square_sums, SquareSums, NONE, x, out, rows, width, x_stride, groups, group)
OPERATION(norm_by_sums, NormBySums, NONE,
          x, sums, weight, out, rows, width, x_stride, groups, group, whole, eps)
OPERATION(swiglu, SwiGlu, NONE, gate_up, out, rows, width)
OPERATION(geglu, GeGlu, NONE, gate_up, out, rows, width)
OPERATION(concat, Concat, NONE, x, y, out, rows, x_width, y_width, x_stride, y_stride)
OPERATION(add_scaled, AddScaled, NULLABLE(x), x, y, out, size, alpha)
OPERATION(select_rows, SelectRows, NONE, x, rows, out, count, width)
OPERATION(rope, Rope, NONE, x, cache, positions, out, rows, heads, head_dim, rotary, x_stride)
OPERATION(kv_write, KvWrite, NONE,
          k, v, k_pool, v_pool, pages, offsets, tokens, width, k_stride, v_stride, page_stride,
          dtype)
OPERATION(attn_decode, AttnDecode, NULLABLE(parts, nodes),
          q, k_pool, v_pool, tables, table_rows, kv_lens, nodes, out, parts, rows, heads, kv_heads,
          head_dim, page_size, q_stride, page_stride, table_stride, dtype, first_key, scale)
OPERATION(attn_prefill, AttnPrefill, NONE,
          q, k_pool, v_pool, tables, table_rows, starts, kv_lens, out, rows, tokens, heads,
          kv_heads, head_dim, page_size, q_stride, page_stride, table_stride, dtype, scale)
OPERATION(relu2, Relu2, NONE, x, out, size)
OPERATION(sigmoid_gated, SigmoidGated, NONE, x, gate, out, rows, width, gate_stride, single)
OPERATION(route_softmax, RouteSoftmax, NONE, logits, weights, chosen, rows, experts, top_k)
OPERATION(route_grouped, RouteGrouped, NONE,
          logits, correction, weights, chosen, rows, experts, top_k, groups, top_groups,
          normalised, factor)
OPERATION(route_softmax_grouped, RouteSoftmaxGrouped, NONE,
          logits, weights, chosen, rows, experts, top_k, groups, top_groups, normalised, factor)
OPERATION(apply_partial_rope, PartialRope, NONE,
          x, cache, positions, out, rows, heads, rotated, x_stride, head_stride, interleaved)
OPERATION(latent_write, LatentWrite, NONE,
          latents, pool, pages, offsets, tokens, width, latent_stride, page_stride, dtype)
OPERATION(mla_query, MlaQuery, NONE,
          plain, rotated, up, out, rows, heads, keys, values, rank, tail, plain_stride,
          plain_head, rotated_stride, rotated_head, dtype)
OPERATION(mla_decode, MlaDecode, NULLABLE(parts, nodes),
          q, pool, tables, table_rows, kv_lens, nodes, out, parts, rows, heads, width, rank, page_size,
          page_stride, table_stride, dtype, first_key, scale)
OPERATION(latent_read, LatentRead, NONE,
          pool, tables, table_rows, kv_lens, out, rows, tokens, width, page_size, page_stride,
          table_stride, dtype)
OPERATION(mla_prefill, MlaPrefill, NONE,
          plain, rotated, expanded, latents, starts, kv_lens, out, rows, tokens, heads, keys,
          values, rank, tail, plain_stride, plain_head, rotated_stride, rotated_head, out_stride,
          scale)
OPERATION(from_latent, FromLatent, NONE, mean, up, out, rows, heads, keys, values, rank, dtype)
OPERATION(experts, Experts, NULLABLE(up_scale, down_scale),
          x, weights, chosen, up, down, up_scale, down_scale, gathered, activated, outer, order,
          y, up_group, down_group, up_integers, down_integers, rows, width, inner, experts, top_k,
          x_stride, dtype, gated)
OPERATION(conv_step, ConvStep, NULLABLE(before, after, bias, has_initial),
          x, before, after, taps, bias, pool, read_slots, write_slots, has_initial, out, rows,
          channels, x_stride, width, pool_stride, dtype, silu)
OPERATION(conv_prefill, ConvPrefill, NULLABLE(before, after, bias),
          x, before, after, taps, bias, pool, read_slots, write_slots, has_initial, starts,
          row_snapshots, snapshot_ends, snapshot_slots, out, rows, tokens, channels, x_stride,
          width, pool_stride, dtype, silu)
OPERATION(delta_step, DeltaStep, NULLABLE(has_initial),
          qkv, z, b, a, conv_weight, A, dt_bias, norm_weight, conv_pool, state_pool, read_slots,
          write_slots, has_initial, convolved, y, rows, qkv_stride, z_stride, b_stride, a_stride,
          key_heads, heads, key_dim, value_dim, width, conv_stride, state_stride, conv_dtype,
          state_dtype, channelwise, silu_gate, eps)
OPERATION(delta_prefill, DeltaPrefill, NONE,
          qkv, z, b, a, conv_weight, A, dt_bias, norm_weight, conv_pool, state_pool, read_slots,
          write_slots, has_initial, starts, row_snapshots, snapshot_ends, snapshot_slots,
          row_chunks, chunk_starts, chunk_slots, y, rows, tokens, qkv_stride, z_stride, b_stride,
          a_stride, key_heads, heads, key_dim, value_dim, width, conv_stride, state_stride,
          conv_dtype, state_dtype, channelwise, silu_gate, eps)
OPERATION(mamba2_step, Mamba2Step, NULLABLE(conv_bias, norm_weight, has_initial),
          zxbcdt, conv_weight, conv_bias, A, D, dt_bias, norm_weight, conv_pool, ssm_pool,
          read_slots, write_slots, has_initial, convolved, y, rows, stride, heads, head_dim,
          groups, d_state, width, conv_stride, ssm_stride, conv_dtype, ssm_dtype, gate_last,
          dt_low, dt_high, eps)
OPERATION(mamba2_prefill, Mamba2Prefill, NULLABLE(conv_bias, norm_weight),
          zxbcdt, conv_weight, conv_bias, A, D, dt_bias, norm_weight, conv_pool, ssm_pool,
          read_slots, write_slots, has_initial, starts, row_chunks, chunk_starts, chunk_slots,
          row_snapshots, snapshot_ends, snapshot_slots, convolved, scores, y, rows, tokens,
          chunks, chunk, stride, heads, head_dim, groups, d_state, width, conv_stride, ssm_stride,
          conv_dtype, ssm_dtype, gate_last, dt_low, dt_high, eps)

OPERATION(guess_ngrams, GuessNgrams, NONE,
          tokens, rows, ends, guesses, found, count, stride, searched, shortest, longest, most)
OPERATION(guess_tree, GuessTree, NONE,
          tokens, rows, ends, guesses, nodes, found, count, stride, searched, shortest, longest,
          most, branches, depth)
OPERATION(conv_tokens, ConvTokens,
          NULLABLE(before, after, taps, bias, write_slots, has_initial, counts,
                   track_slots, track_counts, nodes, kept, out),
          x, before, after, taps, bias, pool, read_slots, write_slots, has_initial, counts,
          track_slots, track_counts, nodes, kept, out, rows, tokens, channels, x_stride, width,
          pool_stride, kept_stride, dtype, silu, layers, x_layer, pool_layer)
OPERATION(mamba2_tokens, Mamba2Tokens,
          NULLABLE(z, conv_bias, norm_weight, write_slots, has_initial, counts,
                   track_slots, track_counts, nodes, kept, y),
          inputs, z, conv_weight, conv_bias, A, D, dt_bias, norm_weight, conv_pool, ssm_pool,
          read_slots, write_slots, has_initial, counts, track_slots, track_counts, nodes, kept,
          convolved, y, rows, tokens, stride, kept_stride, heads, head_dim, groups, d_state, width,
          conv_stride, ssm_stride, conv_dtype, ssm_dtype, gate_last, layers, input_layer,
          conv_layer, ssm_layer, dt_low, dt_high, eps)
OPERATION(delta_tokens, DeltaTokens,
          NULLABLE(z, write_slots, has_initial, counts, track_slots, track_counts, nodes,
                   kept, y),
          qkv, z, b, a, conv_weight, A, dt_bias, norm_weight, conv_pool, state_pool, read_slots,
          write_slots, has_initial, counts, track_slots, track_counts, nodes, kept, convolved, y,
          rows, tokens, qkv_stride, z_stride, b_stride, a_stride, kept_stride, key_heads, heads,
          key_dim, value_dim, width, conv_stride, state_stride, conv_dtype, state_dtype,
          channelwise, silu_gate, layers, input_layer, conv_layer, state_layer, eps)

OPERATION(all_reduce, AllReduce, NONE,
          x, shared, state, count, rank, ranks, capacity, parent, limit)
OPERATION(gather_columns, GatherColumns, NONE,
          x, out, widths, shared, state, rows, rank, ranks, capacity, parent, limit)

OPERATION(sample_tokens, SampleTokens, NULLABLE(top_k, top_p, min_p),
          logits, rows, temperature, seeds, positions, top_k, top_p, min_p, tokens, count, vocab,
          stride)

extern "C" {

struct Operation {
  void (*run)(const void*, void*);
  const void* arguments;
};

const Exported* baton_operations() { return exported; }

int64_t baton_dots_bf16() {  // whether bfloat16 products are the CPU's own
#ifdef BATON_DOT_BF16
  return 1;
#else
  return 0;
#endif
}

int64_t baton_tiles() { return tiles_allowed(); }  // whether packed bfloat16 weights use tiles

int64_t baton_wide_vectors() {  // whether a vector of 16 floats is one register
#ifdef __AVX512F__
  return 1;
#else
  return 0;
#endif
}

void baton_run(const Operation* operations, int64_t count, int64_t threads) {
  constexpr int64_t MOST_LOOPS = 5;  // of one operation
  const std::unique_ptr<Loop[]> loops(new Loop[MOST_LOOPS * count]);
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    Team team(loops.get(), threads);
    for (int64_t i = 0; i < count; i++) operations[i].run(operations[i].arguments, &team);
  }
}

// Outside of any list: one thread's work.
void baton_copy_past_cache(void* to, const void* from, int64_t bytes) {
  copy_past_cache(static_cast<char*>(to), static_cast<const char*>(from), bytes);
}

}  // extern "C"
