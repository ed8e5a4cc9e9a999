// Several tokens a row through a recurrent mixer, each computed by the decode step's own functions.
//
// Verifying computes all tokens of each row and keeps their inputs; no state is written. Committing
// computes the first counts[row] of them again and writes the state that they leave behind, in all
// layers of one kind and shape at once. Between two tokens a state is rounded to the pool's dtype, as
// between two steps.
//
// What the layers have lies apart by *_layer values, their weights and scratch one after another.
#pragma once
#include "conv.h"
#include "delta.h"
#include "mamba2.h"
#include "team.h"
#include "vectors.h"

namespace {

// Token t of row r is token r * tokens + t of the inputs. Where tokens are the nodes of a tree, each
// follows its parent, and the paths from node 0 to the leaves are computed one after another.
struct Rows {
  const int64_t *read_slots, *write_slots;  // [rows]; write_slots null: no state is written
  const uint8_t* has_initial;               // [rows] or null: every row has one
  const int64_t* counts;                    // [rows], tokens to compute; null: all
  const int64_t *track_slots, *track_counts;  // [rows]: a copy of the state after so many tokens
  int64_t rows, tokens;
  // [rows * tokens], a node's ancestors and itself by their bits, up to 64 of a row; null: each token
  // follows the one before.
  const int64_t* nodes;

  // Whether the row's tokens are not all in one path.
  bool branches(int64_t row) const {
    return nodes && __builtin_popcountll(nodes[(row + 1) * tokens - 1]) < tokens;
  }

  // f(token, first) for the tokens of each path in order. Nodes of several paths come again, with
  // the same inputs. first: token 0, which follows the row's state.
  template <class F>
  void paths(int64_t row, F f) const {
    const int64_t* mine = nodes + row * tokens;
    for (int64_t last = 0; last < tokens; last++) {
      bool followed = false;
      for (int64_t t = last + 1; t < tokens; t++) followed = followed || mine[t] >> last & 1;
      for (int64_t t = 0; t <= last && !followed; t++) {
        if (mine[last] >> t & 1) f(row * tokens + t, t == 0);
      }
    }
  }

  int64_t count(int64_t row) const { return counts ? counts[row] : tokens; }

  // Where one row's part of a state lies, in a pool from `pool` on.
  template <class T>
  HeadState<T> state(int64_t row, T* pool, int64_t stride) const {
    const bool written = write_slots && count(row), tracks = written && track_slots[row];
    return {has_initial && !has_initial[row] ? nullptr : pool + read_slots[row] * stride,
            written ? pool + write_slots[row] * stride : nullptr,
            tracks ? pool + track_slots[row] * stride : nullptr, tracks ? track_counts[row] : 0};
  }
};

// One row's part of a state: `size` values of each slot of the pool, from `pool` on.
//
// step(token, from, to) computes one token; from is null where the state is zeros, to is null where
// nobody needs the state behind the token.
template <class T, class F>
void walk(const Rows& a, int64_t row, T* pool, int64_t stride, int64_t size, T* memory, F step) {
  const T* from = a.has_initial && !a.has_initial[row] ? nullptr : pool + a.read_slots[row] * stride;
  if (a.branches(row)) {  // of a tree, no state is written
    return a.paths(row, [&](int64_t token, bool first) {
      step(token, first ? from : memory, memory);
    });
  }
  const int64_t count = a.count(row);
  T* last = a.write_slots ? pool + a.write_slots[row] * stride : nullptr;
  for (int64_t t = 0; t < count; t++) {
    T* to = t == count - 1 ? last : memory;
    step(row * a.tokens + t, from, to);
    if (a.write_slots && a.track_slots[row] && a.track_counts[row] == t + 1) {
      memcpy(pool + a.track_slots[row] * stride, to, size * sizeof(T));
    }
    from = to;
  }
}

struct ConvTokens {
  const float* x;       // [rows * tokens, channels], tokens x_stride apart
  const float* before;  // multiplies x: laid out like it; or null
  const float* after;   // multiplies the sums: laid out like x; or null
  const float *taps, *bias;  // [channels, width], [channels] or null
  void* pool;                // [slots, channels, width - 1]: each row's last inputs, oldest first
  const int64_t *read_slots, *write_slots;
  const uint8_t* has_initial;
  const int64_t *counts, *track_slots, *track_counts, *nodes;  // see Rows
  float* kept;  // [rows * tokens, channels], kept_stride apart: the inputs; null: not kept
  float* out;   // [rows * tokens, channels]; null: only the windows move on
  int64_t rows, tokens, channels, x_stride, width, pool_stride, kept_stride, dtype, silu;
  int64_t layers, x_layer, pool_layer;  // nothing is kept of several layers
};

template <class T>
void conv_all_tokens(const ConvTokens& a, Team& team) {
  const Rows rows{a.read_slots,  a.write_slots,  a.has_initial, a.counts,
                  a.track_slots, a.track_counts, a.rows,        a.tokens, a.nodes};
  const int64_t parts = (a.channels + CONV_PART - 1) / CONV_PART, lead = a.width - 1;
  team.each(a.layers * a.rows * parts, [&](int64_t job) {
    struct Window {};
    const int64_t layer = job / parts / a.rows, row = job / parts % a.rows;
    const int64_t first = job % parts * CONV_PART;
    const int64_t count = first + CONV_PART < a.channels ? CONV_PART : a.channels - first;
    const float* bias = a.bias ? a.bias + layer * a.channels : nullptr;
    float* out = a.out ? a.out + layer * a.rows * a.tokens * a.channels : nullptr;
    T* pool = static_cast<T*>(a.pool) + layer * a.pool_layer;
    const ConvStep conv{a.x + layer * a.x_layer, a.before, a.after,
                        a.taps + layer * a.channels * a.width, bias, pool,
                        nullptr, nullptr, nullptr, out, a.rows, a.channels,
                        a.x_stride, a.width, a.pool_stride, a.dtype, a.silu};
    T* window = scratch<T, Window>(CONV_PART * lead);
    walk<T>(rows, row, pool + first * lead, a.pool_stride, count * lead, window,
            [&](int64_t token, const T* from, T* to) {
              convolve<T>(conv, token, first, count, from, to);
              if (!a.kept) return;
              const float* x = a.x + token * a.x_stride + first;
              float* kept = a.kept + token * a.kept_stride + first;
              const float* before = a.before + token * a.x_stride + first;
              runs(count, [&](int64_t i, int64_t n) {
                const Vec input = load_run(x + i, n);
                store_run(kept + i, a.before ? input * load_run(before + i, n) : input, n);
              });
            });
  });
}

void conv_tokens(const ConvTokens& a, Team& team) {
  a.dtype == FLOAT32 ? conv_all_tokens<float>(a, team) : conv_all_tokens<Bf16>(a, team);
}

struct Mamba2Tokens {
  const float* inputs;  // [rows * tokens, x B C | dt], stride apart
  const float* z;       // [rows * tokens, inner], stride apart; null: no output is wanted
  const float *conv_weight, *conv_bias, *A, *D, *dt_bias, *norm_weight;  // as of Mamba2Step
  void *conv_pool, *ssm_pool;
  const int64_t *read_slots, *write_slots;
  const uint8_t* has_initial;
  const int64_t *counts, *track_slots, *track_counts, *nodes;  // see Rows
  float* kept;       // [rows * tokens, x B C | dt], kept_stride apart; null: not kept
  float* convolved;  // [rows * tokens, channels], scratch
  float* y;          // [rows * tokens, inner]; null where z is
  int64_t rows, tokens, stride, kept_stride, heads, head_dim, groups, d_state, width;
  int64_t conv_stride, ssm_stride, conv_dtype, ssm_dtype, gate_last;
  int64_t layers, input_layer, conv_layer, ssm_layer;  // no output is wanted of several layers
  double dt_low, dt_high, eps;
};

template <class T>
void mamba2_all_tokens(const Mamba2Tokens& a, const Mamba2Step& first, Team& team) {
  const Rows rows{a.read_slots,  a.write_slots,  a.has_initial, a.counts,
                  a.track_slots, a.track_counts, a.rows,        a.tokens, a.nodes};
  const int64_t size = a.head_dim * a.d_state, channels = first.channels();
  team.each(a.layers * a.rows * a.heads, [&](int64_t job) {
    const int64_t layer = job / a.heads / a.rows, row = job / a.heads % a.rows;
    const int64_t head = job % a.heads, token = row * a.tokens;
    Mamba2Step mixer = first;
    mixer.A += layer * a.heads, mixer.dt_bias += layer * a.heads;
    const float* raw = a.inputs + layer * a.input_layer + token * a.stride + channels;
    auto from = [&](int64_t at, int64_t count) {  // tokens of the row, from the given one on
      const int64_t place = at - token;
      return RowTokens{a.convolved + (layer * a.rows * a.tokens + at) * channels,
                       raw + place * a.stride, a.z ? a.z + at * a.stride : nullptr,
                       a.y ? a.y + at * mixer.inner() : nullptr, count, a.stride};
    };
    T* pool = static_cast<T*>(a.ssm_pool) + layer * a.ssm_layer + head * size;
    const HeadState<T> states = rows.state(row, pool, a.ssm_stride);
    if (rows.branches(row)) {
      struct State {};
      T* state = scratch<T, State>(size);
      rows.paths(row, [&](int64_t at, bool first) {
        advance<T>(mixer, head, from(at, 1), {first ? states.from : state, state, nullptr, 0});
      });
    } else {
      advance<T>(mixer, head, from(token, rows.count(row)), states);
    }
    for (int64_t t = 0; a.kept && t < a.tokens; t++) {
      a.kept[(token + t) * a.kept_stride + channels + head] = raw[t * a.stride + head];
    }
  });
}

void mamba2_tokens(const Mamba2Tokens& a, Team& team) {
  Mamba2Step mixer{};
  mixer.A = a.A, mixer.D = a.D, mixer.dt_bias = a.dt_bias;
  mixer.heads = a.heads, mixer.head_dim = a.head_dim;
  mixer.groups = a.groups, mixer.d_state = a.d_state;
  mixer.gate_last = a.gate_last, mixer.dt_low = a.dt_low, mixer.dt_high = a.dt_high;
  conv_tokens({a.inputs,       nullptr,        nullptr,       a.conv_weight, a.conv_bias,
               a.conv_pool,    a.read_slots,   a.write_slots, a.has_initial, a.counts,
               a.track_slots,  a.track_counts, a.nodes,       a.kept,        a.convolved,
               a.rows, a.tokens, mixer.channels(), a.stride,  a.width,       a.conv_stride,
               a.kept_stride,  a.conv_dtype,   /*silu=*/1,    a.layers,      a.input_layer,
               a.conv_layer},
              team);
  if (a.ssm_dtype == FLOAT32) {
    mamba2_all_tokens<float>(a, mixer, team);
  } else {
    mamba2_all_tokens<Bf16>(a, mixer, team);
  }
  if (!a.norm_weight || !a.z) return;
  group_norm(a.y, a.rows * a.tokens, mixer.inner(), a.groups, a.norm_weight, a.eps,
             a.gate_last ? a.z : nullptr, a.stride, team);
}

struct DeltaTokens {
  const float *qkv, *z, *b, *a;  // as of DeltaStep, a token each; z null: no output is wanted
  const float *conv_weight, *A, *dt_bias, *norm_weight;
  void *conv_pool, *state_pool;
  const int64_t *read_slots, *write_slots;
  const uint8_t* has_initial;
  const int64_t *counts, *track_slots, *track_counts, *nodes;  // see Rows
  float* kept;       // [rows * tokens, qkv | b | a], kept_stride apart; null: not kept
  float* convolved;  // [rows * tokens, channels], scratch
  float* y;          // [rows * tokens, inner]; null where z is
  int64_t rows, tokens, qkv_stride, z_stride, b_stride, a_stride, kept_stride;
  int64_t key_heads, heads, key_dim, value_dim, width;
  int64_t conv_stride, state_stride, conv_dtype, state_dtype, channelwise, silu_gate;
  // Of several layers no output is wanted; their qkv, b and a lie equally far apart.
  int64_t layers, input_layer, conv_layer, state_layer;
  double eps;
};

template <class T>
void delta_all_tokens(const DeltaTokens& a, const DeltaStep& first, Team& team) {
  const Rows rows{a.read_slots,  a.write_slots,  a.has_initial, a.counts,
                  a.track_slots, a.track_counts, a.rows,        a.tokens, a.nodes};
  const int64_t size = a.key_dim * a.value_dim, channels = first.channels();
  const int64_t decays = a.channelwise ? a.key_dim : 1;
  team.each(a.layers * a.rows * a.heads, [&](int64_t job) {
    struct State {};
    const int64_t layer = job / a.heads / a.rows, row = job / a.heads % a.rows;
    const int64_t head = job % a.heads;
    DeltaStep mixer = first;
    mixer.b += layer * a.input_layer, mixer.a += layer * a.input_layer;
    mixer.A += layer * a.heads, mixer.dt_bias += layer * a.heads * decays;
    mixer.convolved += layer * a.rows * a.tokens * channels;
    T* pool = static_cast<T*>(a.state_pool) + layer * a.state_layer + head * size;
    T* state = scratch<T, State>(size);
    walk<T>(rows, row, pool, a.state_stride, size, state,
            [&](int64_t token, const T* from, T* to) {
              delta_head<T>(mixer, token, head, from, to,
                            a.y ? a.y + token * mixer.inner() + head * a.value_dim : nullptr);
              if (!a.kept) return;
              float* kept = a.kept + token * a.kept_stride + channels;
              kept[head] = a.b[token * a.b_stride + head];
              memcpy(kept + a.heads + head * decays, a.a + token * a.a_stride + head * decays,
                     decays * sizeof(float));
            });
  });
}

void delta_tokens(const DeltaTokens& a, Team& team) {
  DeltaStep mixer{};
  mixer.z = a.z, mixer.b = a.b, mixer.a = a.a;
  mixer.A = a.A, mixer.dt_bias = a.dt_bias, mixer.norm_weight = a.norm_weight;
  mixer.convolved = a.convolved;
  mixer.z_stride = a.z_stride, mixer.b_stride = a.b_stride, mixer.a_stride = a.a_stride;
  mixer.key_heads = a.key_heads, mixer.heads = a.heads;
  mixer.key_dim = a.key_dim, mixer.value_dim = a.value_dim;
  mixer.channelwise = a.channelwise, mixer.silu_gate = a.silu_gate, mixer.eps = a.eps;
  conv_tokens({a.qkv,         nullptr,        nullptr,       a.conv_weight, nullptr,
               a.conv_pool,   a.read_slots,   a.write_slots, a.has_initial, a.counts,
               a.track_slots, a.track_counts, a.nodes,       a.kept,        a.convolved,
               a.rows, a.tokens, mixer.channels(), a.qkv_stride, a.width,   a.conv_stride,
               a.kept_stride, a.conv_dtype,   /*silu=*/1,     a.layers,      a.input_layer,
               a.conv_layer},
              team);
  if (a.state_dtype == FLOAT32) {
    delta_all_tokens<float>(a, mixer, team);
  } else {
    delta_all_tokens<Bf16>(a, mixer, team);
  }
}

}  // namespace
