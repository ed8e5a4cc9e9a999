// Prompts through a Mamba-2 mixer.
#pragma once
#include "conv_prompts.h"
#include "linear.h"
#include "mamba2.h"
#include "products.h"

namespace {

struct Mamba2Prefill {
  const float* zxbcdt;  // [tokens, z | x B C | dt], tokens stride apart
  const float *conv_weight, *conv_bias;  // [channels, width], [channels] or null
  const float *A, *D, *dt_bias;          // [heads]
  const float* norm_weight;              // [inner] or null: no norm
  void *conv_pool, *ssm_pool;  // [slots, channels, width - 1], [slots, heads, head_dim, d_state]
  const int64_t *read_slots, *write_slots;  // [rows]
  const uint8_t* has_initial;               // [rows]
  const int64_t* starts;                    // [rows + 1], first token of each row
  const int64_t* row_chunks;                // [rows + 1], first chunk of each row
  const int64_t* chunk_starts;              // [chunks + 1], first token of each chunk
  const int64_t* chunk_slots;     // [chunks], where to keep the state after each, or 0
  const int64_t* row_snapshots;   // [rows + 1], first snapshot of each row
  const int64_t *snapshot_ends, *snapshot_slots;  // [snapshots], token after each, and its slot
  float* convolved;                               // [tokens, channels], scratch
  float* scores;                                  // [chunks, groups, chunk, chunk], scratch
  float* y;                                       // [tokens, inner]
  int64_t rows, tokens, chunks, chunk, stride, heads, head_dim, groups, d_state, width;
  int64_t conv_stride, ssm_stride, conv_dtype, ssm_dtype;  // slot strides in values
  int64_t gate_last;                                       // the gate comes after the norm
  double dt_low, dt_high, eps;

  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * d_state; }
};

// The convolution of [x | B | C].
inline ConvPrefill convolution(const Mamba2Prefill& a) {
  return {a.zxbcdt + a.inner(), nullptr,         nullptr,         a.conv_weight,    a.conv_bias,
          a.conv_pool,          a.read_slots,    a.write_slots,   a.has_initial,    a.starts,
          a.row_snapshots,      a.snapshot_ends, a.snapshot_slots, a.convolved,     a.rows,
          a.tokens,             a.channels(),    a.stride,        a.width,          a.conv_stride,
          a.conv_dtype,         /*silu=*/1};
}

// y[b, r] = x[b] . w[r]: rows of both are `in` long.
void dots(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride,
          int64_t outputs, int64_t in, float* y, int64_t y_stride) {
  int64_t o = 0;
  auto weights = [&](auto count) {
    for (; o + count <= outputs; o += count) {
      int64_t b = 0;
      auto block = [&](auto several) {
        for (; b + several <= rows; b += several) {
          tile<float, count, several>(x + b * x_stride, x_stride, w + o * w_stride, w_stride, in,
                                      y + b * y_stride + o, y_stride);
        }
      };
      block(std::integral_constant<int, 6>{});
      block(std::integral_constant<int, 1>{});
    }
  };
  weights(std::integral_constant<int, 4>{});
  weights(std::integral_constant<int, 1>{});
}

// One head of one row, chunk after chunk: inside a chunk the recurrence is a masked matrix product
// (Dao and Gu, 2024), between chunks only the state is passed on. What a chunk's tokens read of the
// state S that enters it and of each other is one product: [C | scores] times [S^T; dt x].
template <class T>
void scan(const Mamba2Prefill& a, int64_t row, int64_t head) {
  struct Memory {};
  const int64_t P = a.head_dim, N = a.d_state, most = a.chunk, channels = a.channels();
  const int64_t group = head / (a.heads / a.groups), size = P * N, wide = N + most;
  float* state = scratch<float, Memory>(size + wide * P + most * (wide + P + 4));
  float* right = state + size;         // [N + chunk, P]: S^T, then dt x
  float* left = right + wide * P;      // [chunk, N + chunk]: C, decayed from the entry; scores
  float* ended = left + most * wide;   // [chunk, P]: dt x, decayed to the chunk's end
  float* steps = ended + most * P;     // [chunk]
  float* logs = steps + most;          // [chunk]: log decay from the chunk's entry
  float* rests = logs + most;          // [chunk]: what float32 lacks of it
  float* factors = rests + most;       // [chunk]
  const int64_t place = head * size;
  auto slot = [&](int64_t id) { return static_cast<T*>(a.ssm_pool) + id * a.ssm_stride + place; };
  auto keep = [&](int64_t id) {
    runs(size, [&](int64_t i, int64_t n) { store_run(slot(id) + i, load_run(state + i, n), n); });
  };
  bool empty = !a.has_initial[row];
  const T* from = slot(a.read_slots[row]);
  runs(size, [&](int64_t i, int64_t n) {
    store_run(state + i, empty ? Vec{} : load_run(from + i, n), n);
  });
  for (int64_t chunk = a.row_chunks[row]; chunk < a.row_chunks[row + 1]; chunk++) {
    const int64_t start = a.chunk_starts[chunk], L = a.chunk_starts[chunk + 1] - start;
    const float* x = a.convolved + start * channels + head * P;
    const float* B = a.convolved + start * channels + a.inner() + group * N;
    const float* C = B + a.groups * N;
    float* y = a.y + start * a.inner() + head * P;
    // A long sum of logarithms loses the small ones in float32, and so does a difference of two.
    double total = 0.0;
    for (int64_t t = 0; t < L; t++) {
      const float raw = a.zxbcdt[(start + t) * a.stride + a.inner() + channels + head];
      steps[t] = step_size(raw + a.dt_bias[head], a.dt_low, a.dt_high);
      total += steps[t] * a.A[head];
      logs[t] = static_cast<float>(total);
      rests[t] = static_cast<float>(total - logs[t]);
    }
    auto decay_to = [&](int64_t i, int64_t j, int64_t n) {  // token i's, since tokens j .. j + n
      return exp((logs[i] - load_run(logs + j, n)) + (rests[i] - load_run(rests + j, n)));
    };
    runs(L, [&](int64_t t, int64_t n) { store_run(factors + t, decay_to(L - 1, t, n), n); });
    for (int64_t t = 0; t < L; t++) {
      runs(P, [&](int64_t p, int64_t n) {
        const Vec value = load_run(x + t * channels + p, n), stepped = value * steps[t];
        store_run(right + (N + t) * P + p, stepped, n);
        store_run(ended + t * P + p, stepped * factors[t], n);
        store_run(y + t * a.inner() + p, value * a.D[head], n);
      });
    }
    const float* scores = a.scores + (chunk * a.groups + group) * most * most;
    for (int64_t i = 0; i < L; i++) {
      float* weights = left + i * wide + N;
      runs(i + 1, [&](int64_t j, int64_t n) {
        store_run(weights + j, decay_to(i, j, n) * load_run(scores + i * most + j, n), n);
      });
      memset(weights + i + 1, 0, (L - i - 1 < MOST_ROWS ? L - i - 1 : MOST_ROWS) * sizeof(float));
    }
    if (empty) {  // nothing to read of the state
      add_product({left + N, wide, 1}, right + N * P, P, y, a.inner(), L, L, P, 0);
    } else {
      runs(L, [&](int64_t t, int64_t n) {
        store_run(factors + t, exp(load_run(logs + t, n)), n);
      });
      for (int64_t t = 0; t < L; t++) {
        runs(N, [&](int64_t i, int64_t n) {
          store_run(left + t * wide + i, load_run(C + t * channels + i, n) * factors[t], n);
        });
      }
      transpose(state, P, N, right);
      add_product({left, wide, 1}, right, P, y, a.inner(), L, N + L, P, N);
    }
    for (int64_t t = 0; t < L && !a.gate_last; t++) {
      float* out = y + t * a.inner();
      const float* z = a.zxbcdt + (start + t) * a.stride + head * P;
      runs(P, [&](int64_t p, int64_t n) {
        store_run(out + p, load_run(out + p, n) * silu(load_run(z + p, n)), n);
      });
    }
    const float decay = expf(logs[L - 1]);
    runs(size, [&](int64_t i, int64_t n) {
      store_run(state + i, load_run(state + i, n) * decay, n);
    });
    add_product({ended, 1, P}, B, channels, state, N, P, L, N, L);
    empty = false;
    if (a.chunk_slots[chunk]) keep(a.chunk_slots[chunk]);
  }
  keep(a.write_slots[row]);
}

void mamba2_prefill(const Mamba2Prefill& a, Team& team) {
  conv_prefill(convolution(a), team);
  team.each(a.chunks * a.groups, [&](int64_t job) {
    const int64_t chunk = job / a.groups, group = job % a.groups, start = a.chunk_starts[chunk];
    const int64_t L = a.chunk_starts[chunk + 1] - start, channels = a.channels();
    const float* B = a.convolved + start * channels + a.inner() + group * a.d_state;
    dots(B + a.groups * a.d_state, channels, L, B, channels, L, a.d_state,
         a.scores + job * a.chunk * a.chunk, a.chunk);
  });
  team.each(a.rows * a.heads, [&](int64_t job) {
    a.ssm_dtype == FLOAT32 ? scan<float>(a, job / a.heads, job % a.heads)
                           : scan<Bf16>(a, job / a.heads, job % a.heads);
  });
  if (!a.norm_weight) return;
  const float* gates = a.gate_last ? a.zxbcdt : nullptr;
  group_norm(a.y, a.tokens, a.inner(), a.groups, a.norm_weight, a.eps, gates, a.stride, team);
}

}  // namespace
