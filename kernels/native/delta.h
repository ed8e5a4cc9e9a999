// One decode step of a gated-delta mixer.
#pragma once
#include <type_traits>

#include "conv.h"
#include "mamba2.h"
#include "rows.h"
#include "team.h"
#include "vectors.h"

namespace {

struct DeltaStep {
  const float* qkv;  // [rows, queries | keys | values], rows qkv_stride apart
  const float* z;    // [rows, inner], rows z_stride apart: the gate of the output
  const float* b;    // [rows, heads], rows b_stride apart: how much is written, before a sigmoid
  const float* a;    // [rows, heads, or heads * key_dim], rows a_stride apart: of the decay
  const float* conv_weight;  // [channels, width]
  const float *A, *dt_bias;  // [heads], and as many as a row of `a` has
  const float* norm_weight;  // [value_dim]
  void *conv_pool, *state_pool;  // [slots, channels, width - 1], [slots, heads, key_dim, value_dim]
  const int64_t *read_slots, *write_slots;  // [rows]
  const uint8_t* has_initial;               // [rows] or null: every row has one
  float* convolved;                         // [rows, channels], scratch
  float* y;                                 // [rows, inner]
  int64_t rows, qkv_stride, z_stride, b_stride, a_stride;
  int64_t key_heads, heads, key_dim, value_dim, width;
  int64_t conv_stride, state_stride, conv_dtype, state_dtype;  // slot strides in values
  int64_t channelwise, silu_gate;  // a decay a key channel; z silu's own factor, or a sigmoid's
  double eps;

  int64_t inner() const { return heads * value_dim; }
  int64_t channels() const { return 2 * key_heads * key_dim + inner(); }
};

// x brought to `length`: [size].
inline void scale_to(const float* x, int64_t size, float length, float* to) {
  Vec total = {};
  runs(size, [&](int64_t i, int64_t n) { total += load_run(x + i, n) * load_run(x + i, n); });
  const float factor = length / sqrtf(sum(total) + 1e-6f);
  runs(size, [&](int64_t i, int64_t n) { store_run(to + i, load_run(x + i, n) * factor, n); });
}

// Columns first .. first + n of one head's state, up to 16 * V of them:
// S' = decay S; S = S' + k correction^T with correction = beta (v - S'^T k); out = S^T q.
// Without OUT neither q, kq nor out is read. A product and a sum that both come before a rounding are
// told apart by hand, so that the state's bits do not depend on OUT.
template <class T, int V, bool OUT>
inline void delta_columns(const T* from, T* to, int64_t stride, int64_t n, bool empty, int64_t K,
                          const float* decay, const float* q, const float* k, float kq,
                          const float* v, float beta, float* out) {
  auto count = [&](int i) { return V > 1 ? LANES : n; };
  Vec by_key[V] = {}, by_query[V] = {};
  for (int64_t row = 0; row < K && !empty; row++) {
    const Vec with_key = splat(k[row] * decay[row]);
    const Vec with_query = OUT ? splat(q[row] * decay[row]) : Vec{};
    UNROLL for (int i = 0; i < V; i++) {
      const Vec state = load_run(from + row * stride + i * LANES, count(i));
      by_key[i] = multiply_add(state, with_key, by_key[i]);
      if (OUT) by_query[i] = multiply_add(state, with_query, by_query[i]);
    }
  }
  UNROLL for (int i = 0; i < V; i++) {
    by_key[i] = (load_run(v + i * LANES, count(i)) - by_key[i]) * beta;  // the correction
    if (OUT) store_run(out + i * LANES, by_query[i] + by_key[i] * kq, count(i));
  }
  for (int64_t row = 0; to && row < K; row++) {
    UNROLL for (int i = 0; i < V; i++) {
      Vec state = by_key[i] * k[row];
      if (!empty) {
        const Vec before = load_run(from + row * stride + i * LANES, count(i));
        state = multiply_add(before, splat(decay[row]), state);
      }
      store_run(to + row * stride + i * LANES, state, count(i));
    }
  }
}

// One head of one token. Its state lies at `from` (null: zeros) and goes to `to` (null: nowhere);
// both may be one place. y: [value_dim], normed and gated but where a.z is null. Not inlined: one
// code, so the same bits whoever calls it.
template <class T>
__attribute__((noinline)) void delta_head(const DeltaStep& a, int64_t row, int64_t head,
                                          const T* from, T* to, float* y) {
  struct Vectors {};
  const int64_t K = a.key_dim, V = a.value_dim, keys = a.key_heads * K;
  const int64_t key_head = head / (a.heads / a.key_heads);
  float* q = scratch<float, Vectors>(3 * K);
  float* k = q + K;
  float* decay = k + K;
  const float* convolved = a.convolved + row * a.channels();
  scale_to(convolved + key_head * K, K, 1.0f / sqrtf(static_cast<float>(K)), q);
  scale_to(convolved + keys + key_head * K, K, 1.0f, k);
  const float* v = convolved + 2 * keys + head * V;
  auto decays = [&](int64_t i, int64_t n) {  // n of them, from place i of the row on
    const Vec raw = load_run(a.a + row * a.a_stride + i, n) + load_run(a.dt_bias + i, n);
    return exp(softplus(raw) * a.A[head]);
  };
  if (a.channelwise) {
    runs(K, [&](int64_t i, int64_t n) { store_run(decay + i, decays(head * K + i, n), n); });
  } else {
    const Vec all = splat(decays(head, 1)[0]);
    runs(K, [&](int64_t i, int64_t n) { store_run(decay + i, all, n); });
  }
  Vec product = {};
  runs(K, [&](int64_t i, int64_t n) { product += load_run(q + i, n) * load_run(k + i, n); });
  const float kq = sum(product), beta = 1.0f / (1.0f + expf(-a.b[row * a.b_stride + head]));
  const bool empty = !from;
  auto columns = [&](auto wanted) {
    constexpr bool OUT = decltype(wanted)::value;
    int64_t first = 0;
    for (; first + 4 * LANES <= V; first += 4 * LANES) {
      delta_columns<T, 4, OUT>(from + first, to ? to + first : nullptr, V, LANES, empty, K, decay,
                               q, k, kq, v + first, beta, y + first);
    }
    for (; first < V; first += LANES) {
      const int64_t left = V - first;
      delta_columns<T, 1, OUT>(from + first, to ? to + first : nullptr, V,
                               left < LANES ? left : LANES, empty, K, decay, q, k, kq, v + first,
                               beta, y + first);
    }
  };
  if (!y) return columns(std::false_type{});
  columns(std::true_type{});
  const float scale = 1.0f / sqrtf(mean_square(y, V) + static_cast<float>(a.eps));
  const float* z = a.z + row * a.z_stride + head * V;
  runs(V, [&](int64_t i, int64_t n) {
    const Vec gate = load_run(z + i, n), open = a.silu_gate ? silu(gate) : sigmoid(gate);
    store_run(y + i, load_run(y + i, n) * scale * load_run(a.norm_weight + i, n) * open, n);
  });
}

template <class T>
void delta_heads(const DeltaStep& a, Team& team) {
  team.each(a.rows * a.heads, [&](int64_t job) {
    const int64_t row = job / a.heads, head = job % a.heads;
    T* state = static_cast<T*>(a.state_pool) + head * a.key_dim * a.value_dim;
    const bool empty = a.has_initial && !a.has_initial[row];
    delta_head<T>(a, row, head, empty ? nullptr : state + a.read_slots[row] * a.state_stride,
                  state + a.write_slots[row] * a.state_stride,
                  a.y + row * a.inner() + head * a.value_dim);
  });
}

void delta_step(const DeltaStep& a, Team& team) {
  const ConvStep conv{a.qkv,         nullptr,    nullptr,       a.conv_weight, nullptr,
                      a.conv_pool,   a.read_slots, a.write_slots, a.has_initial, a.convolved,
                      a.rows,        a.channels(), a.qkv_stride,  a.width,       a.conv_stride,
                      a.conv_dtype,  /*silu=*/1};
  conv_step(conv, team);
  a.state_dtype == FLOAT32 ? delta_heads<float>(a, team) : delta_heads<Bf16>(a, team);
}

}  // namespace
