// Products with a bfloat16 matrix that lies as it is multiplied.
#pragma once
#include <type_traits>

#include "linear.h"
#include "team.h"
#include "vectors.h"

namespace {

struct PackedLinear {
  const float* x;      // [rows, in], rows x_stride apart
  const Bf16* weight;  // [panels, pairs, 16, 2]: 16 outputs a panel, two inputs a pair
  const float* bias;   // [out] or null
  float* y;            // [rows, out]
  Bf16* rounded;       // [rows, padded width], scratch; null where rows are few
  int64_t rows, in, out, x_stride;

  int64_t pairs() const { return (in + 1) / 2; }
  const Bf16* panel(int64_t index) const { return weight + index * pairs() * DOT_LANES; }
};

#ifdef BATON_DOT_BF16
typedef __m512bh PairVec;
inline PairVec load_pairs(const Bf16* p) { return (PairVec)_mm512_loadu_si512(p); }
inline PairVec splat_pair(const Bf16* p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return (PairVec)_mm512_set1_epi32(pair);
}
inline void add_dots(Vec& total, PairVec a, PairVec b) {
  total = (Vec)_mm512_dpbf16_ps((__m512)total, a, b);
}
#else
typedef BitVec PairVec;
inline PairVec load_pairs(const Bf16* p) { return *reinterpret_cast<const BitVec*>(p); }
inline PairVec splat_pair(const Bf16* p) {
  uint32_t pair;
  memcpy(&pair, p, sizeof pair);
  return BitVec{} + pair;
}
inline void add_dots(Vec& total, PairVec a, PairVec b) {
  total += reinterpret_cast<Vec>(a << 16) * reinterpret_cast<Vec>(b << 16);
  total += reinterpret_cast<Vec>(a & 0xffff0000) * reinterpret_cast<Vec>(b & 0xffff0000);
}
#endif

// R rows of activations times V panels, pair after pair: a lane is an output, so nothing is left to
// add up, and a row's sums do not depend on which rows it is multiplied with.
template <int R, int V>
inline void panel_tile(const Bf16* x, int64_t x_stride, const Bf16* w, int64_t pairs,
                       Vec (&total)[R][V]) {
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) total[r][v] = Vec{};
  for (int64_t k = 0; k < pairs; k++) {
    PairVec weights[V];
    UNROLL for (int v = 0; v < V; v++) weights[v] = load_pairs(w + (v * pairs + k) * DOT_LANES);
    UNROLL for (int r = 0; r < R; r++) {
      const PairVec values = splat_pair(x + r * x_stride + 2 * k);
      UNROLL for (int v = 0; v < V; v++) add_dots(total[r][v], weights[v], values);
    }
  }
}

// All rows times V panels from `panel` on.
template <int V>
void panels(const PackedLinear& a, const Bf16* x, int64_t x_stride, int64_t panel) {
  const int64_t first = panel * LANES, pairs = a.pairs();
  int64_t row = 0;
  auto block = [&](auto count) {
    for (; row + count <= a.rows; row += count) {
      Vec total[count][V];
      panel_tile<count, V>(x + row * x_stride, x_stride, a.panel(panel), pairs, total);
      UNROLL for (int v = 0; v < V; v++) {
        const int64_t o = first + v * LANES, n = a.out - o < LANES ? a.out - o : LANES;
        const Vec bias = a.bias ? load_run(a.bias + o, n) : Vec{};
        UNROLL for (int r = 0; r < count; r++) {
          store_run(a.y + (row + r) * a.out + o, total[r][v] + bias, n);
        }
      }
    }
  };
  if constexpr (V > 1) block(std::integral_constant<int, 6>{});
  if constexpr (V > 1) block(std::integral_constant<int, 3>{});
  block(std::integral_constant<int, 1>{});
}

template <class F>
void multiply_panels(const PackedLinear& a, Team& team, int64_t x_stride, F activations) {
  constexpr int64_t PART = 4;  // panels of one piece of work
  const int64_t all = (a.out + LANES - 1) / LANES;
  team.each((all + PART - 1) / PART, [&](int64_t part) {
    int64_t panel = part * PART;
    const int64_t end = panel + PART < all ? panel + PART : all;
    const Bf16* x = activations();
    // One row meets panel after panel, as they lie: 10 % faster than four streams at once.
    if (a.rows > 1 && panel + 4 == end) panels<4>(a, x, x_stride, panel), panel += 4;
    for (; a.rows > 1 && panel + 2 <= end; panel += 2) panels<2>(a, x, x_stride, panel);
    for (; panel < end; panel++) panels<1>(a, x, x_stride, panel);
  });
}

void packed_linear(const PackedLinear& a, Team& team) {
  const int64_t padded = padded_width(a.in);
  auto round = [&](int64_t row, Bf16* to) {
    convert_row(a.x + row * a.x_stride, to, a.in, padded);
  };
  if (a.rounded) {
    team.each(a.rows, [&](int64_t row) { round(row, a.rounded + row * padded); });
    multiply_panels(a, team, padded, [&] { return a.rounded; });
  } else {  // few rows: each thread for itself, at its first part, rather than wait for another
    struct Rounded {};
    Bf16* x = nullptr;
    multiply_panels(a, team, padded, [&] {
      if (!x) {
        x = scratch<Bf16, Rounded>(a.rows * padded);
        for (int64_t row = 0; row < a.rows; row++) round(row, x + row * padded);
      }
      return x;
    });
  }
}

}  // namespace
