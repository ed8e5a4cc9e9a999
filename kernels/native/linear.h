// Products with a weight matrix.
#pragma once
#include <type_traits>

#include "team.h"
#include "vectors.h"

namespace {

struct Linear {
  const float* x;  // [rows, columns], rows x_stride apart
  const void* weight;  // [outputs, columns]
  const float* bias;   // [outputs] or null
  float* y;            // [rows, outputs]
  void* rounded;  // [rows, columns rounded up to 32] bfloat16, scratch; null where rows are few
  int64_t rows, columns, outputs, x_stride, dtype;
};

// The end of a tile. Not a function: gcc would keep `total` in memory to pass it.
#define SUM_TOTALS                                                                       \
  UNROLL for (int b = 0; b < NB; b++) {                                                  \
    float* out = y + b * y_stride;                                                       \
    if constexpr (R % 4 == 0) {                                                          \
      UNROLL for (int r = 0; r < R; r += 4)                                              \
        sum4((Vec)total[r][b], (Vec)total[r + 1][b], (Vec)total[r + 2][b],               \
             (Vec)total[r + 3][b], out + r);                                             \
    } else {                                                                             \
      UNROLL for (int r = 0; r < R; r++) out[r] = sum((Vec)total[r][b]);                 \
    }                                                                                    \
  }

// R weight rows times NB activation rows; y[b * y_stride + r].
template <class W, int R, int NB>
inline void tile(const float* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t in,
                 float* y, int64_t y_stride) {
  Vec total[R][NB] = {};
  int64_t k = 0;
  for (; k + LANES <= in; k += LANES) {
    Vec weights[R];
    UNROLL for (int r = 0; r < R; r++) {
      weights[r] = load(w + r * w_stride + k);
      if (NB > 1) __builtin_prefetch(w + (R + r) * w_stride + k);  // of a tile to come
    }
    UNROLL for (int b = 0; b < NB; b++) {
      Vec values = load(x + b * x_stride + k);
      UNROLL for (int r = 0; r < R; r++) total[r][b] += weights[r] * values;
    }
  }
  if (k < in) {
    UNROLL for (int b = 0; b < NB; b++) {
      Vec values = load(x + b * x_stride + k, in - k);
      UNROLL for (int r = 0; r < R; r++) total[r][b] += load(w + r * w_stride + k, in - k) * values;
    }
  }
  SUM_TOTALS
}

#ifdef BATON_DOT_BF16
// Computes a tile from bfloat16 activations, padded with zeros to a multiple of 32: two products a lane.
template <int R, int NB>
inline void tile_bf16(const Bf16* x, int64_t x_stride, const Bf16* w, int64_t in, float* y,
                      int64_t y_stride) {
  __m512 total[R][NB];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < NB; b++) {
    total[r][b] = _mm512_setzero_ps();
  }
  auto step = [&](int64_t k, auto weight) __attribute__((always_inline)) {
    __m512bh weights[R];
    UNROLL for (int r = 0; r < R; r++) {
      weights[r] = weight(w + r * in + k);
      if (NB > 1) __builtin_prefetch(w + (R + r) * in + k);  // of a tile to come
    }
    UNROLL for (int b = 0; b < NB; b++) {
      __m512bh values = (__m512bh)_mm512_loadu_si512(x + b * x_stride + k);
      UNROLL for (int r = 0; r < R; r++) {
        total[r][b] = _mm512_dpbf16_ps(total[r][b], weights[r], values);
      }
    }
  };
  int64_t k = 0;
  for (; k + DOT_LANES <= in; k += DOT_LANES)
    step(k, [](const Bf16* p) { return (__m512bh)_mm512_loadu_si512(p); });
  if (k < in) {
    const __mmask32 mask = (1u << (in - k)) - 1;
    step(k, [=](const Bf16* p) { return (__m512bh)_mm512_maskz_loadu_epi16(mask, p); });
  }
  SUM_TOTALS
}
#endif

template <class W>
struct FloatTile {
  typedef W Weight;
  typedef float Value;
  template <int R, int NB>
  static void run(const float* x, int64_t xs, const W* w, int64_t in, float* y, int64_t ys) {
    tile<W, R, NB>(x, xs, w, in, in, y, ys);
  }
};

#ifdef BATON_DOT_BF16
struct DotTile {
  typedef Bf16 Weight;
  typedef Bf16 Value;
  template <int R, int NB>
  static void run(const Bf16* x, int64_t xs, const Bf16* w, int64_t in, float* y, int64_t ys) {
    tile_bf16<R, NB>(x, xs, w, in, y, ys);
  }
};
#endif

// R rows of the weight against all activation rows, NB of them at a time.
template <class Tile, int R, int NB>
inline void weight_rows(const Linear& a, const typename Tile::Value* x, int64_t x_stride,
                        int64_t o) {
  const auto* w = static_cast<const typename Tile::Weight*>(a.weight) + o * a.columns;
  float* y = a.y + o;
  int64_t b = 0;
  auto block = [&](auto rows) {
    for (; b + rows <= a.rows; b += rows) {
      float* out = y + b * a.outputs;
      Tile::template run<R, rows>(x + b * x_stride, x_stride, w, a.columns, out, a.outputs);
    }
  };
  if constexpr (NB > 4) block(std::integral_constant<int, NB>{});
  if constexpr (NB >= 4) block(std::integral_constant<int, 4>{});
  if constexpr (NB >= 2) block(std::integral_constant<int, 2>{});
  block(std::integral_constant<int, 1>{});
  for (int r = 0; a.bias && r < R; r++) {
    for (int64_t row = 0; row < a.rows; row++) y[row * a.outputs + r] += a.bias[o + r];
  }
}

// Outputs first .. end of all activation rows. A block of activations stays in the second-level
// cache while it meets this part of the weight.
template <class Tile>
void linear_part(const Linear& a, const typename Tile::Value* x, int64_t x_stride, int64_t first,
                 int64_t end) {
  constexpr int64_t BLOCK = 48;
  Linear block = a;
  for (int64_t row = 0; row < a.rows; row += BLOCK) {
    block.rows = row + BLOCK < a.rows ? BLOCK : a.rows - row;
    block.y = a.y + row * a.outputs;
    const auto* values = x + row * x_stride;
    int64_t o = first;
    if (a.rows == 1)  // one weight row after another, as they lie: that is read fastest
      for (; o < end; o++) weight_rows<Tile, 1, 1>(block, values, x_stride, o);
    for (; o + 4 <= end; o += 4) weight_rows<Tile, 4, 6>(block, values, x_stride, o);
    for (; o < end; o++) weight_rows<Tile, 1, 6>(block, values, x_stride, o);
  }
}

constexpr int64_t WEIGHT_PART = 64;  // weight rows of one piece of work

template <class Tile, class F>
void linear_as(const Linear& a, Team& team, int64_t x_stride, F activations) {
  team.each((a.outputs + WEIGHT_PART - 1) / WEIGHT_PART, [&](int64_t part) {
    const int64_t first = part * WEIGHT_PART;
    const int64_t end = first + WEIGHT_PART < a.outputs ? first + WEIGHT_PART : a.outputs;
    linear_part<Tile>(a, activations(), x_stride, first, end);
  });
}

// One row of activations as a tile reads it: `padded` values, zeros from the `count`th on.
template <class T>
inline void convert_row(const float* from, T* to, int64_t count, int64_t padded) {
  runs(count, [&](int64_t i, int64_t n) { store_run(to + i, load_run(from + i, n), n); });
  memset(to + count, 0, (padded - count) * sizeof(T));
}

inline int64_t padded_width(int64_t width) {
  return (width + DOT_LANES - 1) / DOT_LANES * DOT_LANES;
}

void linear(const Linear& a, Team& team) {
  auto given = [&] { return a.x; };
  if (a.dtype == FLOAT32) return linear_as<FloatTile<float>>(a, team, a.x_stride, given);
#ifdef BATON_DOT_BF16
  const int64_t padded = padded_width(a.columns);
  auto round = [&](int64_t row, Bf16* to) {
    convert_row(a.x + row * a.x_stride, to, a.columns, padded);
  };
  if (a.rounded) {
    Bf16* x = static_cast<Bf16*>(a.rounded);
    team.each(a.rows, [&](int64_t row) { round(row, x + row * padded); });
    linear_as<DotTile>(a, team, padded, [&] { return x; });
  } else {  // few rows: each thread for itself, at its first part, rather than wait for another
    struct Rounded {};
    Bf16* x = nullptr;
    linear_as<DotTile>(a, team, padded, [&] {
      if (!x) {
        x = scratch<Bf16, Rounded>(a.rows * padded);
        for (int64_t row = 0; row < a.rows; row++) round(row, x + row * padded);
      }
      return x;
    });
  }
#else
  linear_as<FloatTile<Bf16>>(a, team, a.x_stride, given);
#endif
}

}  // namespace
