// Prompts through a causal depthwise convolution.
#pragma once
#include "conv.h"
#include "team.h"
#include "vectors.h"

namespace {

struct ConvPrefill {
  const float* x;       // [tokens, channels], tokens x_stride apart
  const float* before;  // multiplies x: laid out like it; or null
  const float* after;   // multiplies the sums: laid out like x; or null
  const float *taps, *bias;  // [channels, width], [channels] or null
  void* pool;                // [slots, channels, width - 1]: each row's last inputs, oldest first
  const int64_t *read_slots, *write_slots;        // [rows]
  const uint8_t* has_initial;                     // [rows]
  const int64_t* starts;                          // [rows + 1], first token of each row
  const int64_t* row_snapshots;                   // [rows + 1], first snapshot of each row
  const int64_t *snapshot_ends, *snapshot_slots;  // [snapshots], token after each, and its slot
  float* out;                                     // [tokens, channels]
  int64_t rows, tokens, channels, x_stride, width, pool_stride, dtype;  // pool_stride in values
  int64_t silu;                                                         // of the sums

  int64_t lead() const { return width - 1; }
};

// Channels first .. first + count, and what their convolution reads besides its inputs.
struct ConvPart {
  int64_t first, count;
  float* taps;    // [width, count]
  float* window;  // [width - 1, count]: what a row's tokens begin with

  static int64_t size(const ConvPrefill& a, int64_t count) { return (a.width + a.lead()) * count; }
};

// In memory of ConvPart::size values; the window is still to be read.
inline ConvPart conv_part(const ConvPrefill& a, int64_t first, int64_t count, float* memory) {
  for (int64_t c = 0; c < count; c++) {
    for (int64_t tap = 0; tap < a.width; tap++) {
      memory[tap * count + c] = a.taps[(first + c) * a.width + tap];
    }
  }
  return {first, count, memory, memory + a.width * count};
}

template <class T>
void read_window_as(const ConvPrefill& a, int64_t row, const ConvPart& part) {
  const int64_t lead = a.lead();
  const T* from =
      static_cast<const T*>(a.pool) + a.read_slots[row] * a.pool_stride + part.first * lead;
  for (int64_t c = 0; c < part.count; c++) {
    for (int64_t tap = 0; tap < lead; tap++) {
      part.window[tap * part.count + c] = a.has_initial[row] ? value(from[c * lead + tap]) : 0.0f;
    }
  }
}

void read_window(const ConvPrefill& a, int64_t row, const ConvPart& part) {
  a.dtype == FLOAT32 ? read_window_as<float>(a, row, part) : read_window_as<Bf16>(a, row, part);
}

// Inputs i .. i + n of a part at a token: what lies there, or that times its gate.
inline Vec conv_input(const ConvPrefill& a, int64_t token, int64_t channel, int64_t n) {
  const int64_t place = token * a.x_stride + channel;
  const Vec x = load_run(a.x + place, n);
  return a.before ? x * load_run(a.before + place, n) : x;
}

// Finishes the sums of channels i .. i + n of a part at one token.
inline void finish_sums(const ConvPrefill& a, int64_t t, int64_t channel, Vec sums, float* to,
                        int64_t n) {
  if (a.silu) sums = silu(sums);
  if (a.after) sums *= load_run(a.after + t * a.x_stride + channel, n);
  store_run(to, sums, n);
}

// Tokens begin .. end of a row, to rows of `out` that lie `stride` apart. W: taps, or 0 for any
// number; where it is known, the inputs of the last tokens are kept in registers.
template <int W>
void convolve_tokens(const ConvPrefill& a, int64_t row, int64_t begin, int64_t end,
                     const ConvPart& part, float* out, int64_t stride) {
  const int64_t start = a.starts[row], width = W ? W : a.width, lead = width - 1;
  auto input = [&](int64_t from, int64_t i, int64_t n) {
    return from >= start ? conv_input(a, from, part.first + i, n)
                         : load_run(part.window + (from - start + lead) * part.count + i, n);
  };
  runs(part.count, [&](int64_t i, int64_t n) {
    const Vec bias = a.bias ? load_run(a.bias + part.first + i, n) : Vec{};
    auto weight = [&](int64_t tap) { return load_run(part.taps + tap * part.count + i, n); };
    float* to = out + i;
    if constexpr (W > 0) {
      Vec taps[W], inputs[W];
      UNROLL for (int tap = 0; tap < W; tap++) taps[tap] = weight(tap);
      UNROLL for (int tap = 1; tap < W; tap++) inputs[tap] = input(begin - W + tap, i, n);
      for (int64_t t = begin; t < end; t++, to += stride) {
        UNROLL for (int tap = 1; tap < W; tap++) inputs[tap - 1] = inputs[tap];
        inputs[W - 1] = conv_input(a, t, part.first + i, n);
        Vec sums = bias;
        UNROLL for (int tap = 0; tap < W; tap++) {
          sums = multiply_add(inputs[tap], taps[tap], sums);
        }
        finish_sums(a, t, part.first + i, sums, to, n);
      }
    } else {
      for (int64_t t = begin; t < end; t++, to += stride) {
        Vec sums = bias;
        for (int64_t tap = 0; tap < width; tap++) {
          sums = multiply_add(input(t - lead + tap, i, n), weight(tap), sums);
        }
        finish_sums(a, t, part.first + i, sums, to, n);
      }
    }
  });
}

void convolve_tokens(const ConvPrefill& a, int64_t row, int64_t begin, int64_t end,
                     const ConvPart& part, float* out, int64_t stride) {
  if (a.width == 4) return convolve_tokens<4>(a, row, begin, end, part, out, stride);
  if (a.width == 3) return convolve_tokens<3>(a, row, begin, end, part, out, stride);
  convolve_tokens<0>(a, row, begin, end, part, out, stride);
}

// The window after the tokens of a row before `end`, into a slot.
template <class T>
void write_window(const ConvPrefill& a, int64_t row, int64_t end, int64_t slot,
                  const ConvPart& part) {
  const int64_t lead = a.lead(), count = part.count;
  T* to = static_cast<T*>(a.pool) + slot * a.pool_stride + part.first * lead;
  for (int64_t tap = 0; tap < lead; tap++) {
    const int64_t from = end - lead + tap, before = from - a.starts[row];
    runs(count, [&](int64_t i, int64_t n) {
      const Vec x = before >= 0 ? conv_input(a, from, part.first + i, n)
                                : load_run(part.window + (before + lead) * count + i, n);
      for (int64_t lane = 0; lane < n; lane++) set(to[(i + lane) * lead + tap], x[lane]);
    });
  }
}

template <class T>
void leave_windows_as(const ConvPrefill& a, int64_t row, const ConvPart& part) {
  for (int64_t i = a.row_snapshots[row]; i < a.row_snapshots[row + 1]; i++) {
    write_window<T>(a, row, a.snapshot_ends[i], a.snapshot_slots[i], part);
  }
  write_window<T>(a, row, a.starts[row + 1], a.write_slots[row], part);
}

// A row's snapshots and its last window; the one that it began with has been read.
void leave_windows(const ConvPrefill& a, int64_t row, const ConvPart& part) {
  a.dtype == FLOAT32 ? leave_windows_as<float>(a, row, part) : leave_windows_as<Bf16>(a, row, part);
}

void conv_prefill(const ConvPrefill& a, Team& team) {
  struct Parts {};
  constexpr int64_t TOKENS = 64;
  const int64_t parts = (a.channels + CONV_PART - 1) / CONV_PART;
  const int64_t blocks = (a.tokens + TOKENS - 1) / TOKENS;
  auto part = [&](int64_t job) {
    const int64_t first = job % parts * CONV_PART;
    const int64_t count = first + CONV_PART < a.channels ? CONV_PART : a.channels - first;
    return conv_part(a, first, count, scratch<float, Parts>(ConvPart::size(a, count)));
  };
  team.each(blocks * parts, [&](int64_t job) {
    const int64_t begin = job / parts * TOKENS;
    const int64_t end = begin + TOKENS < a.tokens ? begin + TOKENS : a.tokens;
    const ConvPart here = part(job);
    for (int64_t row = 0; row < a.rows; row++) {
      const int64_t from = a.starts[row] > begin ? a.starts[row] : begin;
      const int64_t to = a.starts[row + 1] < end ? a.starts[row + 1] : end;
      if (from >= to) continue;
      if (from - a.starts[row] < a.lead()) read_window(a, row, here);
      convolve_tokens(a, row, from, to, here, a.out + from * a.channels + here.first, a.channels);
    }
  });
  team.each(a.rows * parts, [&](int64_t job) {  // all windows have been read: in place is safe
    const ConvPart here = part(job);
    read_window(a, job / parts, here);
    leave_windows(a, job / parts, here);
  });
}

}  // namespace
