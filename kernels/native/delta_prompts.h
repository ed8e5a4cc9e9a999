// Prompts through a gated-delta mixer.
//
// A strip of 16 tokens meets the state S [K, V] at once. Where what lies between two tokens, or
// between one and the strip's ends, is decayed (a head or a key channel at a time), the corrections
// u are the solution of a triangular system (the WY form of products of I - beta k k^T):
//
//     u_i = beta_i (v_i - S^T (k_i, decayed since the entry) - sum over j < i of (k_i . k_j) u_j)
//     o_i = S^T (q_i, decayed since the entry) + sum over j <= i of (q_i . k_j) u_j
//     S'  = decayed S + sum over j of (k_j, decayed to the end) u_j^T
//
// A token costs three products with the state however long a strip is. All its other costs grow
// with the strip; with 16 a row of scores is one vector. Columns of the state do not
// meet, so a panel of them that the nearest cache holds goes through all of it at once.
#pragma once
#include "conv_prompts.h"
#include "delta.h"
#include "products.h"

namespace {

struct DeltaPrefill {
  const float* qkv;  // [tokens, queries | keys | values], tokens qkv_stride apart
  const float* z;    // [tokens, inner], tokens z_stride apart: the gate of the output
  const float* b;    // [tokens, heads], tokens b_stride apart: of how much is written
  const float* a;    // [tokens, heads, or heads * key_dim], tokens a_stride apart: of the decay
  const float* conv_weight;  // [channels, width]
  const float *A, *dt_bias;  // [heads], and as many as a token of `a` has
  const float* norm_weight;  // [value_dim]
  void *conv_pool, *state_pool;  // [slots, channels, width - 1], [slots, heads, key_dim, value_dim]
  const int64_t *read_slots, *write_slots;        // [rows]
  const uint8_t* has_initial;                     // [rows]
  const int64_t* starts;                          // [rows + 1], first token of each row
  const int64_t* row_snapshots;                   // [rows + 1], first snapshot of each row
  const int64_t *snapshot_ends, *snapshot_slots;  // [snapshots], token after each, and its slot
  const int64_t* row_chunks;                      // [rows + 1], first chunk of each row
  const int64_t* chunk_starts;                    // [chunks + 1], first token of each chunk
  const int64_t* chunk_slots;  // [chunks], where to keep the state after each, or 0
  float* y;                    // [tokens, inner]
  int64_t rows, tokens, qkv_stride, z_stride, b_stride, a_stride;
  int64_t key_heads, heads, key_dim, value_dim, width;
  int64_t conv_stride, state_stride, conv_dtype, state_dtype;  // slot strides in values
  int64_t channelwise, silu_gate;  // a decay a key channel; z silu's own factor, or a sigmoid's
  double eps;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t inner() const { return heads * value_dim; }
  int64_t each() const { return heads / key_heads; }  // value heads of a key head
};

inline ConvPrefill convolution(const DeltaPrefill& a) {
  return {a.qkv,         nullptr,       nullptr,          a.conv_weight, nullptr,
          a.conv_pool,   a.read_slots,  a.write_slots,    a.has_initial, a.starts,
          a.row_snapshots, a.snapshot_ends, a.snapshot_slots, nullptr,   a.rows,
          a.tokens,      2 * a.keys() + a.inner(), a.qkv_stride, a.width, a.conv_stride,
          a.conv_dtype,  /*silu=*/1};
}

constexpr int64_t STRIP = LANES;
constexpr int64_t PANEL = 2 * LANES;  // columns

// c [STRIP, PANEL] += a b, of a [STRIP, depth] and b [depth, PANEL].
inline void add_panel(const float* a, int64_t depth, const float* b, float* c, int64_t c_stride) {
  constexpr int HALF = STRIP / 2;
  for (int64_t r = 0; r < STRIP; r += HALF) {
    outer<HALF, 2>({a + r * depth, depth, 1}, b, PANEL, depth, c + r * c_stride, c_stride);
  }
}

// R rows of a panel: state = fade state + keys^T corrections, of `depth` tokens.
template <int R>
inline void fold_rows(float* state, const float* fade, const float* keys, int64_t stride,
                      const float* corrections, int64_t depth) {
  Vec low[R], high[R];
  UNROLL for (int r = 0; r < R; r++) {
    low[r] = load(state + r * PANEL) * fade[r];
    high[r] = load(state + r * PANEL + LANES) * fade[r];
  }
  for (int64_t j = 0; j < depth; j++) {
    const Vec u_low = load(corrections + j * PANEL), u_high = load(corrections + j * PANEL + LANES);
    UNROLL for (int r = 0; r < R; r++) {
      const Vec key = splat(keys[j * stride + r]);
      low[r] += key * u_low;
      high[r] += key * u_high;
    }
  }
  UNROLL for (int r = 0; r < R; r++) {
    store(state + r * PANEL, low[r]);
    store(state + r * PANEL + LANES, high[r]);
  }
}

// u = (I + system)^-1 u, of what lies below the diagonal of system [STRIP, STRIP]; u is
// [STRIP, PANEL].
inline void solve(const float* system, float* u) {
  for (int64_t first = 0; first < PANEL; first += LANES) {
    Vec rows[STRIP];
    UNROLL for (int i = 0; i < STRIP; i++) rows[i] = load(u + i * PANEL + first);
    UNROLL for (int j = 0; j < STRIP; j++) {
      UNROLL for (int i = 0; i < STRIP; i++) {
        if (i > j) rows[i] -= system[i * STRIP + j] * rows[j];
      }
    }
    UNROLL for (int i = 0; i < STRIP; i++) store(u + i * PANEL + first, rows[i]);
  }
}

// One key head of one row and its value heads, strip after strip. T: of the state's pool.
template <class T>
class DeltaHead {
 public:
  DeltaHead(const DeltaPrefill& a, int64_t row, int64_t key_head)
      : a(a), conv(convolution(a)), row(row), key_head(key_head), K(a.key_dim), V(a.value_dim) {
    struct Memory {};
    const int64_t values_wide = a.each() * V;
    wide = (V + PANEL - 1) / PANEL * PANEL;
    at = scratch<float, Memory>(ConvPart::size(conv, 2 * K + values_wide) + 5 * STRIP * K + K +
                                4 * STRIP * STRIP + a.each() * K * wide +
                                STRIP * (values_wide + wide + PANEL + 3) + PIECES * LANES);
    parts[0] = part(key_head * K, K);
    parts[1] = part(a.keys() + key_head * K, K);
    parts[2] = part(2 * a.keys() + key_head * values_wide, values_wide);
    for (float** rows : {&q, &k, &written, &decays, &turned}) *rows = take(STRIP * K);
    for (float** pairs : {&q_products, &k_products, &scores, &system}) *pairs = take(STRIP * STRIP);
    fade = take(K);
    states = take(a.each() * K * wide);
    values = take(STRIP * values_wide);
    outputs = take(STRIP * wide);
    corrections = take(STRIP * PANEL);
    for (float** each : {&rates, &entry, &rest}) *each = take(STRIP);
  }

  void run() {
    for (const ConvPart& part : parts) read_window(conv, row, part);
    load_states();
    for (int64_t chunk = a.row_chunks[row]; chunk < a.row_chunks[row + 1]; chunk++) {
      const int64_t end = a.chunk_starts[chunk + 1];
      for (int64_t t = a.chunk_starts[chunk]; t < end; t += STRIP) {
        take_strip(t, end - t < STRIP ? end - t : STRIP);
      }
      if (a.chunk_slots[chunk]) keep_states(a.chunk_slots[chunk]);
    }
    keep_states(a.write_slots[row]);
    for (const ConvPart& part : parts) leave_windows(conv, row, part);
  }

 private:
  static constexpr int64_t PIECES = 20;  // of memory; each may leave a line half empty
  float* take(int64_t size) {  // from where a line of the cache begins
    float* const taken = at;
    at += (size + LANES - 1) / LANES * LANES;
    return taken;
  }
  ConvPart part(int64_t first, int64_t count) {
    return conv_part(conv, first, count, take(ConvPart::size(conv, count)));
  }
  int64_t value_head(int64_t i) const { return key_head * a.each() + i; }

  // f(pool's column, columns, panel [K, PANEL]) for all columns of a value head's state.
  template <class F>
  void panels(int64_t i, F f) const {
    for (int64_t first = 0; first < V; first += PANEL) {
      f(first, V - first < PANEL ? V - first : PANEL, states + (i * wide + first) * K);
    }
  }
  T* slot(int64_t id, int64_t i) const {
    return static_cast<T*>(a.state_pool) + id * a.state_stride + value_head(i) * K * V;
  }

  void load_states() {
    empty = !a.has_initial[row];
    memset(states, 0, a.each() * K * wide * sizeof(float));
    for (int64_t i = 0; i < a.each() && !empty; i++) {
      const T* from = slot(a.read_slots[row], i);
      panels(i, [&](int64_t first, int64_t count, float* to) {
        for (int64_t r = 0; r < K; r++) {
          runs(count, [&](int64_t c, int64_t n) {
            store_run(to + r * PANEL + c, load_run(from + r * V + first + c, n), n);
          });
        }
      });
    }
  }

  void keep_states(int64_t id) {
    for (int64_t i = 0; i < a.each(); i++) {
      T* to = slot(id, i);
      panels(i, [&](int64_t first, int64_t count, const float* from) {
        for (int64_t r = 0; r < K; r++) {
          runs(count, [&](int64_t c, int64_t n) {
            store_run(to + r * V + first + c, load_run(from + r * PANEL + c, n), n);
          });
        }
      });
    }
  }

  // Tokens t .. t + L: what a strip lacks of STRIP tokens is zero, and neither decays nor writes.
  void take_strip(int64_t t, int64_t L) {
    float* const convolved[] = {q, k, values};
    for (int i = 0; i < 3; i++) {
      const int64_t width = parts[i].count;
      convolve_tokens(conv, row, t, t + L, parts[i], convolved[i], width);
      memset(convolved[i] + L * width, 0, (STRIP - L) * width * sizeof(float));
    }
    for (int64_t i = 0; i < L; i++) {
      scale_to(q + i * K, K, 1.0f / sqrtf(static_cast<float>(K)), q + i * K);
      scale_to(k + i * K, K, 1.0f, k + i * K);
    }
    if (!a.channelwise) multiply_pairs();
    for (int64_t i = 0; i < a.each(); i++) {
      const int64_t head = value_head(i);
      memset(rates, 0, STRIP * sizeof(float));
      for (int64_t j = 0; j < L; j++) rates[j] = a.b[(t + j) * a.b_stride + head];
      store(rates, sigmoid(load(rates)));
      memset(rates + L, 0, (STRIP - L) * sizeof(float));
      a.channelwise ? decay_channels(t, L, head) : decay_tokens(t, L, head);
      panels(i, [&](int64_t first, int64_t count, float* panel) {
        pass_through(panel, values + i * V + first, count, outputs + first, L);
      });
      finish(t, L, head);
    }
    empty = false;
  }

  // Multiplies all queries and all keys with all keys.
  void multiply_pairs() {
    transpose(k, STRIP, K, turned);
    memset(q_products, 0, STRIP * STRIP * sizeof(float));
    memset(k_products, 0, STRIP * STRIP * sizeof(float));
    constexpr int HALF = STRIP / 2;
    for (int64_t r = 0; r < STRIP; r += HALF) {
      outer<HALF, 1>({q + r * K, K, 1}, turned, STRIP, K, q_products + r * STRIP, STRIP);
      outer<HALF, 1>({k + r * K, K, 1}, turned, STRIP, K, k_products + r * STRIP, STRIP);
    }
  }

  // One decay a token and head: factors on products, which are not of the head's own.
  void decay_tokens(int64_t t, int64_t L, int64_t head) {
    float logs[STRIP] = {};
    for (int64_t j = 0; j < L; j++) logs[j] = a.a[(t + j) * a.a_stride + head] + a.dt_bias[head];
    store(logs, softplus(load(logs)) * a.A[head]);
    double since[STRIP], total = 0.0;  // sums grow, their differences stay small
    for (int64_t j = 0; j < STRIP; j++) since[j] = total += j < L ? logs[j] : 0.0f;
    const IntVec place{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t i = 0; i < STRIP; i++) {
      for (int64_t j = 0; j < STRIP; j++) logs[j] = static_cast<float>(since[i] - since[j]);
      const Vec decay = exp(load(logs));
      const Vec by_query = load(q_products + i * STRIP) * decay;
      const Vec by_key = load(k_products + i * STRIP) * decay * rates[i];
      store(scores + i * STRIP, place <= static_cast<int32_t>(i) ? by_query : Vec{});
      store(system + i * STRIP, by_key);
    }
    for (int64_t j = 0; j < STRIP; j++) logs[j] = static_cast<float>(since[j]);
    store(entry, exp(load(logs)));
    for (int64_t j = 0; j < STRIP; j++) logs[j] = static_cast<float>(total - since[j]);
    store(rest, exp(load(logs)));
    for (int64_t r = 0; r < K; r++) fade[r] = entry[STRIP - 1];
  }

  // One decay a token and key channel, in products that only shrink.
  void decay_channels(int64_t t, int64_t L, int64_t head) {
    for (int64_t i = 0; i < L; i++) {
      const float* raw = a.a + (t + i) * a.a_stride + head * K;
      runs(K, [&](int64_t c, int64_t n) {
        const Vec step = softplus(load_run(raw + c, n) + load_run(a.dt_bias + head * K + c, n));
        store_run(decays + i * K + c, exp(step * a.A[head]), n);
      });
    }
    memset(scores, 0, STRIP * STRIP * sizeof(float));
    memset(system, 0, STRIP * STRIP * sizeof(float));
    int64_t first = 0;
    for (; first + 8 * LANES <= K; first += 8 * LANES) walk_pairs<8>(first, LANES, L);
    for (; first < K; first += LANES) {
      walk_pairs<1>(first, K - first < LANES ? K - first : LANES, L);
    }
    for (int64_t i = 0; i < STRIP; i++) {
      store(system + i * STRIP, load(system + i * STRIP) * rates[i]);
    }
    runs(K, [&](int64_t c, int64_t n) {
      Vec decayed = splat(1.0f);
      for (int64_t i = STRIP - 1; i >= 0; i--) {
        store_run(written + i * K + c, load_run(k + i * K + c, n) * decayed, n);
        if (i < L) decayed *= load_run(decays + i * K + c, n);
      }
      store_run(fade + c, decayed, n);
      decayed = splat(1.0f);
      for (int64_t i = 0; i < L; i++) {
        decayed *= load_run(decays + i * K + c, n);
        store_run(q + i * K + c, load_run(q + i * K + c, n) * decayed, n);
        store_run(k + i * K + c, load_run(k + i * K + c, n) * decayed, n);
      }
    });
    store(entry, splat(1.0f));
    store(rest, splat(1.0f));
  }

  // N vectors of channels from `first` on, the last of n: what they add to the products of tokens
  // with those before them, each key decaying on its way.
  template <int N>
  void walk_pairs(int64_t first, int64_t n, int64_t L) {
    auto part = [&](const float* rows, int64_t i, int v) {
      return load_run(rows + i * K + first + v * LANES, N > 1 ? LANES : n);
    };
    for (int64_t j = 0; j < L; j++) {
      Vec key[N], itself = {};
      UNROLL for (int v = 0; v < N; v++) {
        key[v] = part(k, j, v);
        itself += part(q, j, v) * key[v];
      }
      scores[j * STRIP + j] += sum(itself);
      for (int64_t i = j + 1; i < L; i++) {
        Vec by_key = {}, by_query = {};
        UNROLL for (int v = 0; v < N; v++) {
          key[v] *= part(decays, i, v);
          by_query += part(q, i, v) * key[v];
          by_key += part(k, i, v) * key[v];
        }
        scores[i * STRIP + j] += sum(by_query);
        system[i * STRIP + j] += sum(by_key);
      }
    }
  }

  // `count` columns of the values and the state, to outputs [STRIP, wide].
  void pass_through(float* state, const float* v, int64_t count, float* out, int64_t L) {
    memset(corrections, 0, STRIP * PANEL * sizeof(float));
    for (int64_t i = 0; i < STRIP; i++) memset(out + i * wide, 0, PANEL * sizeof(float));
    if (!empty) {
      add_panel(q, K, state, out, wide);
      add_panel(k, K, state, corrections, PANEL);
    }
    for (int64_t i = 0; i < STRIP; i++) {
      float *o = out + i * wide, *u = corrections + i * PANEL;
      const float* value = v + i * a.each() * V;
      runs(PANEL, [&](int64_t c, int64_t n) { store(o + c, load(o + c) * entry[i]); });
      runs(count, [&](int64_t c, int64_t n) {
        const Vec told = load(u + c) * entry[i];
        store(u + c, (load_run(value + c, n) - told) * rates[i]);
      });
    }
    solve(system, corrections);
    add_panel(scores, STRIP, corrections, out, wide);
    for (int64_t i = 0; i < STRIP; i++) {
      float* u = corrections + i * PANEL;
      runs(PANEL, [&](int64_t c, int64_t n) { store(u + c, load(u + c) * rest[i]); });
    }
    const float* keys = a.channelwise ? written : k;
    int64_t r = 0;
    for (; r + 8 <= K; r += 8) {
      fold_rows<8>(state + r * PANEL, fade + r, keys + r, K, corrections, L);
    }
    for (; r < K; r++) fold_rows<1>(state + r * PANEL, fade + r, keys + r, K, corrections, L);
  }

  // The strip's outputs of one value head: normed, gated.
  void finish(int64_t t, int64_t L, int64_t head) {
    for (int64_t i = 0; i < L; i++) {
      const float* o = outputs + i * wide;
      const float* z = a.z + (t + i) * a.z_stride + head * V;
      float* y = a.y + (t + i) * a.inner() + head * V;
      const float scale = 1.0f / sqrtf(mean_square(o, V) + static_cast<float>(a.eps));
      runs(V, [&](int64_t c, int64_t n) {
        const Vec gate = load_run(z + c, n), open = a.silu_gate ? silu(gate) : sigmoid(gate);
        store_run(y + c, load_run(o + c, n) * scale * load_run(a.norm_weight + c, n) * open, n);
      });
    }
  }

  const DeltaPrefill& a;
  const ConvPrefill conv;
  const int64_t row, key_head, K, V;
  int64_t wide;     // V in whole panels
  bool empty;       // the state is zero
  ConvPart parts[3];  // of queries, keys and values
  float* at;          // memory that is still to be taken
  float *q, *k, *written, *decays;  // [STRIP, K]
  float* turned;                    // [K, STRIP]: k
  float *q_products, *k_products;   // [STRIP, STRIP]: with each key, not decayed
  float *scores, *system;           // [STRIP, STRIP]: decayed; of the outputs, the corrections
  float* fade;                      // [K]: decay of the state over the strip
  float* states;                    // [value heads, panels, K, PANEL]
  float* values;                    // [STRIP, value heads, V]
  float* outputs;                   // [STRIP, wide]
  float* corrections;               // [STRIP, PANEL]
  float *rates, *entry, *rest;      // [STRIP]: beta; decays since the entry, and to the end
};

void delta_prefill(const DeltaPrefill& a, Team& team) {
  team.each(a.rows * a.key_heads, [&](int64_t job) {
    const int64_t row = job / a.key_heads, key_head = job % a.key_heads;
    if (a.state_dtype == FLOAT32) {
      DeltaHead<float>(a, row, key_head).run();
    } else {
      DeltaHead<Bf16>(a, row, key_head).run();
    }
  });
}

}  // namespace
