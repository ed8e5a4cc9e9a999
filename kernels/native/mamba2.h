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

// One head of one token: h = exp(dt A) h + dt x B^T; y = (h C + D x) silu(z), or not yet the gate,
// nor where z is null. h lies at `from` (null: zeros) and goes to `to`; both may be one place. Not
// inlined: one code, so the same bits whoever calls it.
//
// convolved: the token's [x | B | C]. raw: its dt, of this head.
template <class T>
__attribute__((noinline)) void advance(const Mamba2Step& a, int64_t head, const float* convolved,
                                       float raw, const float* z, const T* from, T* to, float* y) {
  const int64_t P = a.head_dim, N = a.d_state;
  const float* x = convolved + head * P;
  const float* B = convolved + a.inner() + head / (a.heads / a.groups) * N;
  const float* C = B + a.groups * N;
  const float dt = step_size(raw + a.dt_bias[head], a.dt_low, a.dt_high);
  const float decay = expf(dt * a.A[head]);
  for (int64_t p = 0; p < P; p++) {
    const float step = dt * x[p];
    Vec total = {};
    runs(N, [&](int64_t i, int64_t n) {
      Vec state = from ? load_run(from + p * N + i, n) * decay : Vec{};
      state += step * load_run(B + i, n);
      store_run(to + p * N + i, state, n);
      total += state * load_run(C + i, n);
    });
    y[p] = sum(total) + a.D[head] * x[p];
  }
  if (a.gate_last || !z) return;
  runs(P, [&](int64_t i, int64_t n) {
    store_run(y + i, load_run(y + i, n) * silu(load_run(z + head * P + i, n)), n);
  });
}

template <class T>
void advance_all(const Mamba2Step& a, Team& team) {
  T* pool = static_cast<T*>(a.ssm_pool);
  team.each(a.rows * a.heads, [&](int64_t job) {
    const int64_t row = job / a.heads, head = job % a.heads;
    const float* projected = a.zxbcdt + row * a.stride;
    T* state = pool + head * a.head_dim * a.d_state;
    advance<T>(a, head, a.convolved + row * a.channels(),
               projected[a.inner() + a.channels() + head], projected,
               a.starts_empty(row) ? nullptr : state + a.read_slots[row] * a.ssm_stride,
               state + a.write_slots[row] * a.ssm_stride, a.y + row * a.inner() + head * a.head_dim);
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
