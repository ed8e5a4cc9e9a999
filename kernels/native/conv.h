// One token a row through a causal depthwise convolution.
#pragma once
#include "team.h"
#include "vectors.h"

namespace {

struct ConvStep {
  const float* x;       // [rows, channels], rows x_stride apart
  const float* before;  // multiplies x: laid out like it; or null
  const float* after;   // multiplies the sums: laid out like x; or null
  const float *taps, *bias;  // [channels, width], [channels] or null
  void* pool;                // [slots, channels, width - 1]: each row's last inputs, oldest first
  const int64_t *read_slots, *write_slots;  // [rows]
  const uint8_t* has_initial;               // [rows] or null: every row has one
  float* out;                               // [rows, channels]; null: only the windows move on
  int64_t rows, channels, x_stride, width, pool_stride, dtype;  // pool_stride in values
  int64_t silu;                                                 // of the sums
};

constexpr int64_t CONV_PART = 256;  // channels of one piece of work

// The sums of channels first .. first + count, whose window is followed by x: [count]. Products are
// added to the bias from the oldest on, as in convolve_tokens: a step has the bits of a prompt.
inline void convolve_window(const ConvStep& a, int64_t first, int64_t count, const float* window,
                            const float* x, float* total) {
  const int64_t lead = a.width - 1;
  if (a.bias) memcpy(total, a.bias + first, count * sizeof(float));
  const float* taps = a.taps + first * a.width;
  if (lead == 3) {
    for (int64_t c = 0; c < count; c++) {
      float sum = multiply_add(window[3 * c], taps[4 * c], total[c]);
      sum = multiply_add(window[3 * c + 1], taps[4 * c + 1], sum);
      sum = multiply_add(window[3 * c + 2], taps[4 * c + 2], sum);
      total[c] = multiply_add(x[c], taps[4 * c + 3], sum);
    }
    return;
  }
  for (int64_t c = 0; c < count; c++) {
    const float* w = window + c * lead;
    float sum = total[c];
    for (int64_t tap = 0; tap < lead; tap++) {
      sum = multiply_add(w[tap], taps[c * a.width + tap], sum);
    }
    total[c] = multiply_add(x[c], taps[c * a.width + lead], sum);
  }
}

// The window of `count` channels with their inputs `x` behind it, without the oldest: to `to`.
template <class T>
inline void move_window(float* window, int64_t lead, int64_t count, const float* x, T* to) {
  for (int64_t c = 0; c < count; c++) {
    float* w = window + c * lead;
    if (lead == 3) {
      w[0] = w[1], w[1] = w[2], w[2] = x[c];
    } else {
      for (int64_t tap = 0; tap + 1 < lead; tap++) w[tap] = w[tap + 1];
      w[lead - 1] = x[c];
    }
  }
  runs(count * lead, [&](int64_t i, int64_t n) { store_run(to + i, load_run(window + i, n), n); });
}

// Channels first .. first + count of one token, convolved behind the window at `from` (null: zeros),
// which moves on to `to` (null: nowhere); both may be one place. Not inlined: one code, so the same
// bits whoever calls it.
template <class T>
__attribute__((noinline)) void convolve(const ConvStep& a, int64_t token, int64_t first,
                                        int64_t count, const T* from, T* to) {
  const int64_t lead = a.width - 1, place = token * a.x_stride + first;
  const float* x = a.x + place;
  float inputs[CONV_PART], total[CONV_PART] = {};
  if (a.before) {
    runs(count, [&](int64_t i, int64_t n) {
      store_run(inputs + i, load_run(x + i, n) * load_run(a.before + place + i, n), n);
    });
    x = inputs;
  }
  struct Windows {};
  float* window = scratch<float, Windows>(CONV_PART * lead);  // in place: read whole, then written
  if (!from) {
    memset(window, 0, count * lead * sizeof(float));
  } else {
    runs(count * lead, [&](int64_t i, int64_t n) {
      store_run(window + i, load_run(from + i, n), n);
    });
  }
  if (a.out) convolve_window(a, first, count, window, x, total);
  if (to) move_window(window, lead, count, x, to);
  if (!a.out) return;
  float* out = a.out + token * a.channels + first;
  runs(count, [&](int64_t i, int64_t n) {
    Vec sums = load_run(total + i, n);
    if (a.silu) sums = silu(sums);
    store_run(out + i, a.after ? sums * load_run(a.after + place + i, n) : sums, n);
  });
}

template <class T>
void convolve_row(const ConvStep& a, int64_t row, int64_t first, int64_t count) {
  T* pool = static_cast<T*>(a.pool) + first * (a.width - 1);
  const bool empty = a.has_initial && !a.has_initial[row];
  convolve<T>(a, row, first, count, empty ? nullptr : pool + a.read_slots[row] * a.pool_stride,
              pool + a.write_slots[row] * a.pool_stride);
}

void conv_step(const ConvStep& a, Team& team) {
  const int64_t parts = (a.channels + CONV_PART - 1) / CONV_PART;
  team.each(a.rows * parts, [&](int64_t job) {
    const int64_t row = job / parts, first = job % parts * CONV_PART;
    const int64_t count = first + CONV_PART < a.channels ? CONV_PART : a.channels - first;
    if (a.dtype == FLOAT32) {
      convolve_row<float>(a, row, first, count);
    } else {
      convolve_row<Bf16>(a, row, first, count);
    }
  });
}

}  // namespace
