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

// One head of one row: h = exp(dt A) h + dt x B^T; y = (h C + D x) silu(z), or not yet the gate.
template <class T>
void advance(const Mamba2Step& a, int64_t row, int64_t head) {
  const int64_t P = a.head_dim, N = a.d_state, place = head * P * N;
  const float* projected = a.zxbcdt + row * a.stride;
  const float* x = a.convolved + row * a.channels() + head * P;
  const float* B =
      a.convolved + row * a.channels() + a.inner() + head / (a.heads / a.groups) * N;
  const float* C = B + a.groups * N;
  const float dt = step_size(projected[a.inner() + a.channels() + head] + a.dt_bias[head],
                             a.dt_low, a.dt_high);
  const float decay = expf(dt * a.A[head]);
  const bool empty = a.starts_empty(row);
  const T* from = static_cast<const T*>(a.ssm_pool) + a.read_slots[row] * a.ssm_stride + place;
  T* to = static_cast<T*>(a.ssm_pool) + a.write_slots[row] * a.ssm_stride + place;
  float* y = a.y + row * a.inner() + head * P;
  for (int64_t p = 0; p < P; p++) {
    const float step = dt * x[p];
    Vec total = {};
    runs(N, [&](int64_t i, int64_t n) {
      Vec state = empty ? Vec{} : load_run(from + p * N + i, n) * decay;
      state += step * load_run(B + i, n);
      store_run(to + p * N + i, state, n);
      total += state * load_run(C + i, n);
    });
    y[p] = sum(total) + a.D[head] * x[p];
  }
  if (a.gate_last) return;
  runs(P, [&](int64_t i, int64_t n) {
    store_run(y + i, load_run(y + i, n) * silu(load_run(projected + head * P + i, n)), n);
  });
}

template <class T>
void advance_all(const Mamba2Step& a, Team& team) {
  team.each(a.rows * a.heads,
            [&](int64_t job) { advance<T>(a, job / a.heads, job % a.heads); });
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
