// One decode step of a Mamba-2 mixer.
#pragma once
#include "conv.h"
#include "rows.h"
#include "team.h"
#include "vectors.h"

namespace {

struct Mamba2Step {
  const float* zxbcdt;  // [rows, z | x B C | dt], rows stride apart
  const float *conv_weight, *conv_bias;  // [channels, width], [channels] or null
  const float *A, *D, *dt_bias;          // [heads]
  const float* norm_weight;              // [inner] or null: no norm
  void *conv_pool, *ssm_pool;  // [slots, channels, width - 1], [slots, heads, head_dim, d_state]
  const int64_t *read_slots, *write_slots;  // [rows]
  const uint8_t* has_initial;               // [rows] or null: every row has one
  float* convolved;                         // [rows, channels], scratch
  float* y;                                 // [rows, inner]
  int64_t rows, stride, heads, head_dim, groups, d_state, width;
  int64_t conv_stride, ssm_stride, conv_dtype, ssm_dtype;  // slot strides in values
  int64_t gate_last;                                       // the gate comes after the norm
  double dt_low, dt_high, eps;

  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * d_state; }
  bool starts_empty(int64_t row) const { return has_initial && !has_initial[row]; }
};

// The convolution of [x | B | C].
inline ConvStep convolution(const Mamba2Step& a) {
  return {a.zxbcdt + a.inner(), nullptr,       nullptr,       a.conv_weight, a.conv_bias,
          a.conv_pool,          a.read_slots,  a.write_slots, a.has_initial, a.convolved,
          a.rows,               a.channels(),  a.stride,      a.width,       a.conv_stride,
          a.conv_dtype,         /*silu=*/1};
}

// clamp(softplus(raw))
inline float step_size(float raw, double low, double high) {
  const float step = (raw > 0.0f ? raw : 0.0f) + log1pf(expf(-fabsf(raw)));
  return step < low ? static_cast<float>(low) : step > high ? static_cast<float>(high) : step;
}

// One row's tokens, in order.
struct RowTokens {
  const float* convolved;  // [count, x B C], channels() apart
  const float* raw;        // [count, heads], stride apart: dt before its bias
  const float* z;          // [count, inner], stride apart; null: no gate
  float* y;                // [count, inner]; null: no output is wanted
  int64_t count, stride;
};

// Where one head's state lies. Several of these may be one place.
template <class T>
struct HeadState {
  const T* from;      // null: zeros
  T* to;              // after the last token; null: it is not written
  T* track;           // a copy after `tracked` tokens; null: none
  int64_t tracked;
};

// The tokens of one head as its state meets them: steps of x, decays and the sums of y.
struct HeadTokens {
  const float *x, *B, *C;  // of the first token, the others channels() apart
  const float *dt, *decay;
  Vec* totals;  // [count]
};

// Values of a state that are asked for before they are needed: the work of several tokens is too
// long for the CPU to look past it by itself. One token over 2-byte values is not: there, the
// instruction costs a tenth more than it saves.
constexpr int64_t PREFETCHED = 1024;

// V vectors of a row of the state, from `i` on, through all tokens. They stay in registers, rounded
// between two tokens as memory would round them. Products and sums are told apart by hand, so that
// the bits do not depend on how many tokens or vectors there are, nor on whether sums are wanted.
template <class T, int V, bool OUT>
inline void advance_values(const RowTokens& row, int64_t channels, const HeadTokens& head, int64_t p,
                           int64_t i, int64_t n, HeadState<T> at) {
  Vec state[V];
  UNROLL for (int v = 0; v < V; v++) {
    const T* from = at.from ? at.from + i + v * LANES : nullptr;
    state[v] = from ? load_run(from, n) : Vec{};
    if (from && (row.count > 1 || sizeof(T) == sizeof(float))) __builtin_prefetch(from + PREFETCHED);
  }
  for (int64_t t = 0; t < row.count; t++) {
    const Vec step = splat(head.dt[t] * head.x[t * channels + p]), decay = splat(head.decay[t]);
    const float *B = head.B + t * channels + i, *C = head.C + t * channels + i;
    Vec total = head.totals[t];
    UNROLL for (int v = 0; v < V; v++) {
      state[v] = multiply_add(step, load_run(B + v * LANES, n), state[v] * decay);
      if (OUT) total = multiply_add(state[v], load_run(C + v * LANES, n), total);
    }
    if (OUT) head.totals[t] = total;
    if (at.track && at.tracked == t + 1) {
      UNROLL for (int v = 0; v < V; v++) store_run(at.track + i + v * LANES, state[v], n);
    }
    if (t + 1 < row.count) UNROLL for (int v = 0; v < V; v++) state[v] = rounded(T{}, state[v]);
  }
  if (!at.to) return;
  UNROLL for (int v = 0; v < V; v++) store_run(at.to + i + v * LANES, state[v], n);
}

template <class T, bool OUT>
void advance_head(const Mamba2Step& a, int64_t head, const RowTokens& row, const HeadTokens& tokens,
                  HeadState<T> at) {
  const int64_t P = a.head_dim, N = a.d_state, channels = a.channels();
  for (int64_t p = 0; p < P; p++) {
    for (int64_t t = 0; OUT && t < row.count; t++) tokens.totals[t] = Vec{};
    int64_t i = 0;
    for (; i + 8 * LANES <= N; i += 8 * LANES) {
      advance_values<T, 8, OUT>(row, channels, tokens, p, i, LANES, at);
    }
    for (; i + 4 * LANES <= N; i += 4 * LANES) {
      advance_values<T, 4, OUT>(row, channels, tokens, p, i, LANES, at);
    }
    for (; i < N; i += LANES) {
      advance_values<T, 1, OUT>(row, channels, tokens, p, i, N - i < LANES ? N - i : LANES, at);
    }
    for (int64_t t = 0; OUT && t < row.count; t++) {
      row.y[t * a.inner() + head * P + p] =
          sum(tokens.totals[t]) + a.D[head] * tokens.x[t * channels + p];
    }
    at = {at.from ? at.from + N : nullptr, at.to ? at.to + N : nullptr,
          at.track ? at.track + N : nullptr, at.tracked};
  }
}

// One head of a row's tokens, one after another: h = exp(dt A) h + dt x B^T;
// y = (h C + D x) silu(z), or not yet the gate. Not inlined: steps, verification and commits run the
// same instructions, and so get the same bits.
template <class T>
__attribute__((noinline)) void advance(const Mamba2Step& a, int64_t head, const RowTokens& row,
                                       HeadState<T> at) {
  struct Factors {};
  struct Totals {};
  const int64_t P = a.head_dim, N = a.d_state;
  float* dt = scratch<float, Factors>(2 * row.count);
  float* decay = dt + row.count;
  for (int64_t t = 0; t < row.count; t++) {
    dt[t] = step_size(row.raw[t * row.stride + head] + a.dt_bias[head], a.dt_low, a.dt_high);
    decay[t] = expf(dt[t] * a.A[head]);
  }
  const float* B = row.convolved + a.inner() + head / (a.heads / a.groups) * N;
  const HeadTokens tokens{row.convolved + head * P, B, B + a.groups * N, dt, decay,
                          scratch<Vec, Totals>(row.count)};
  if (!row.y) return advance_head<T, false>(a, head, row, tokens, at);
  advance_head<T, true>(a, head, row, tokens, at);
  if (a.gate_last || !row.z) return;
  for (int64_t t = 0; t < row.count; t++) {
    float* y = row.y + t * a.inner() + head * P;
    const float* z = row.z + t * row.stride + head * P;
    runs(P, [&](int64_t i, int64_t n) {
      store_run(y + i, load_run(y + i, n) * silu(load_run(z + i, n)), n);
    });
  }
}

template <class T>
void advance_all(const Mamba2Step& a, Team& team) {
  T* pool = static_cast<T*>(a.ssm_pool);
  team.each(a.rows * a.heads, [&](int64_t job) {
    const int64_t row = job / a.heads, head = job % a.heads;
    const float* projected = a.zxbcdt + row * a.stride;
    T* state = pool + head * a.head_dim * a.d_state;
    const RowTokens token{a.convolved + row * a.channels(), projected + a.inner() + a.channels(),
                          projected, a.y + row * a.inner(), 1, a.stride};
    advance<T>(a, head, token,
               {a.starts_empty(row) ? nullptr : state + a.read_slots[row] * a.ssm_stride,
                state + a.write_slots[row] * a.ssm_stride, nullptr, 0});
  });
}

// In place: the norm of each group of channels of each row, then the gate silu(z) if there is one.
void group_norm(float* rows, int64_t count, int64_t width, int64_t groups, const float* weights,
                double eps, const float* gates, int64_t gate_stride, Team& team) {
  const int64_t size = width / groups;
  team.each(count * groups, [&](int64_t job) {
    const int64_t first = job % groups * size;
    float* y = rows + job * size;
    const float* gate = gates ? gates + job / groups * gate_stride + first : nullptr;
    const float scale = 1.0f / sqrtf(mean_square(y, size) + static_cast<float>(eps));
    runs(size, [&](int64_t i, int64_t n) {
      const Vec normed = load_run(y + i, n) * scale * load_run(weights + first + i, n);
      store_run(y + i, gate ? normed * silu(load_run(gate + i, n)) : normed, n);
    });
  });
}

void mamba2_step(const Mamba2Step& a, Team& team) {
  conv_step(convolution(a), team);
  a.ssm_dtype == FLOAT32 ? advance_all<float>(a, team) : advance_all<Bf16>(a, team);
  if (!a.norm_weight) return;
  const float* gates = a.gate_last ? a.zxbcdt : nullptr;
  group_norm(a.y, a.rows, a.inner(), a.groups, a.norm_weight, a.eps, gates, a.stride, team);
}

}  // namespace
