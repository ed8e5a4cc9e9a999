// Products with a matrix that lies as it is multiplied.
#pragma once
#include <type_traits>

#include "linear.h"
#include "team.h"
#include "tiles.h"
#include "vectors.h"

namespace {

struct PackedLinear {
  const float* x;      // [rows, columns], rows x_stride apart
  const void* weight;  // [panels, steps, 16, inputs a step]: 16 outputs a panel
  const float* bias;   // [outputs] or null
  float* y;            // [rows, outputs], rows y_stride apart
  Bf16* rounded;       // [rows up to a multiple of 16, padded width], scratch; null where rows are
                       // few, or in float32
  int64_t rows, columns, outputs, x_stride, y_stride, dtype;
};

// One input of float32 a step, or two of bfloat16.
constexpr int64_t depth(float) { return 1; }
constexpr int64_t depth(Bf16) { return 2; }

inline Vec load_step(const float* p) { return load(p); }
inline Vec splat_step(const float* p) { return splat(*p); }
inline void add_products(Vec& total, Vec a, Vec b) { total += a * b; }

#ifdef BATON_DOT_BF16
typedef __m512bh PairVec;
inline PairVec load_step(const Bf16* p) { return (PairVec)_mm512_loadu_si512(p); }
inline PairVec splat_step(const Bf16* p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return (PairVec)_mm512_set1_epi32(pair);
}
inline void add_products(Vec& total, PairVec a, PairVec b) {
  total = (Vec)_mm512_dpbf16_ps((__m512)total, a, b);
}
#else
typedef BitVec PairVec;
inline PairVec load_step(const Bf16* p) { return *reinterpret_cast<const BitVec*>(p); }
inline PairVec splat_step(const Bf16* p) {
  uint32_t pair;
  memcpy(&pair, p, sizeof pair);
  return BitVec{} + pair;
}
inline void add_products(Vec& total, PairVec a, PairVec b) {
  total += reinterpret_cast<Vec>(a << 16) * reinterpret_cast<Vec>(b << 16);
  total += reinterpret_cast<Vec>(a & 0xffff0000) * reinterpret_cast<Vec>(b & 0xffff0000);
}
#endif

// R rows of activations times V panels, step after step: a lane is an output, so nothing is left to
// add up, and a row's sums do not depend on which rows it is multiplied with.
template <class T, int R, int V>
inline void panel_tile(const T* x, int64_t x_stride, const T* w, int64_t steps,
                       Vec (&total)[R][V]) {
  constexpr int64_t DEPTH = depth(T{});
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) total[r][v] = Vec{};
  for (int64_t k = 0; k < steps; k++) {
    decltype(load_step(w)) weights[V];
    UNROLL for (int v = 0; v < V; v++) {
      weights[v] = load_step(w + (v * steps + k) * LANES * DEPTH);
    }
    UNROLL for (int r = 0; r < R; r++) {
      const auto values = splat_step(x + r * x_stride + DEPTH * k);
      UNROLL for (int v = 0; v < V; v++) add_products(total[r][v], weights[v], values);
    }
  }
}

// R rows from `row` on times V panels from `panel` on.
template <class T, int R, int V>
void panel_block(const PackedLinear& a, const T* x, int64_t x_stride, int64_t panel, int64_t row) {
  constexpr int64_t DEPTH = depth(T{});
  const int64_t first = panel * LANES, steps = (a.columns + DEPTH - 1) / DEPTH;
  const T* weight = static_cast<const T*>(a.weight) + panel * steps * LANES * DEPTH;
  Vec total[R][V];
  panel_tile<T, R, V>(x + row * x_stride, x_stride, weight, steps, total);
  UNROLL for (int v = 0; v < V; v++) {
    const int64_t o = first + v * LANES, n = a.outputs - o < LANES ? a.outputs - o : LANES;
    const Vec bias = a.bias ? load_run(a.bias + o, n) : Vec{};
    UNROLL for (int r = 0; r < R; r++) {
      store_run(a.y + (row + r) * a.y_stride + o, total[r][v] + bias, n);
    }
  }
}

// The same for `rows` rows, at most MOST.
template <class T, int MOST, int V>
void few_rows(const PackedLinear& a, const T* x, int64_t x_stride, int64_t panel, int64_t row,
              int64_t rows) {
  if (rows == MOST) return panel_block<T, MOST, V>(a, x, x_stride, panel, row);
  if constexpr (MOST > 1) few_rows<T, MOST - 1, V>(a, x, x_stride, panel, row, rows);
}

// All rows times V panels from `panel` on. The panels are read once for every MOST rows, the first
// time from memory, so the rows are divided evenly: one row by itself has too few sums under way.
template <class T, int V>
void panels(const PackedLinear& a, const T* x, int64_t x_stride, int64_t panel) {
  constexpr int MOST = V == 4 ? 6 : 8;  // rows whose sums fit the registers
  for (int64_t row = 0, left = (a.rows + MOST - 1) / MOST; left; left--) {
    const int64_t rows = (a.rows - row + left - 1) / left;
    few_rows<T, MOST, V>(a, x, x_stride, panel, row, rows);
    row += rows;
  }
}

// How many panels of a matrix meet the rows together, and how many are one piece of work.
struct Pieces {
  int64_t together, size, panels;

  // 7 or 8 rows meet three panels at a time, and so each of them once; of more rows, the activations
  // would not stay in the nearest cache. Two at a time take 1.3 times as long, four do not fit the
  // registers.
  explicit Pieces(const PackedLinear& a)
      : together(a.rows == 1 ? 1 : a.rows == 7 || a.rows == 8 ? 3 : 4),
        size(together == 3 ? 6 : 4),
        panels((a.outputs + LANES - 1) / LANES) {}

  int64_t count() const { return (panels + size - 1) / size; }
  int64_t first(int64_t piece) const { return piece * size; }
  int64_t end(int64_t piece) const {
    return first(piece) + size < panels ? first(piece) + size : panels;
  }
};

// All rows times the panels of one piece.
template <class T>
void multiply_piece(const PackedLinear& a, const Pieces& pieces, int64_t piece, const T* x,
                    int64_t x_stride) {
  int64_t panel = pieces.first(piece);
  const int64_t end = pieces.end(piece);
  // One row meets panel after panel, as they lie: 10 % faster than four streams at once.
  if (pieces.together == 4 && panel + 4 == end) panels<T, 4>(a, x, x_stride, panel), panel += 4;
  for (; pieces.together == 3 && panel + 3 <= end; panel += 3) panels<T, 3>(a, x, x_stride, panel);
  for (; a.rows > 1 && panel + 2 <= end; panel += 2) panels<T, 2>(a, x, x_stride, panel);
  for (; panel < end; panel++) panels<T, 1>(a, x, x_stride, panel);
}

template <class T, class F>
void multiply_panels(const PackedLinear& a, Team& team, int64_t x_stride, F activations) {
  const Pieces pieces(a);
  team.each(pieces.count(), [&](int64_t piece) {
    multiply_piece<T>(a, pieces, piece, activations(), x_stride);
  });
}

#ifdef BATON_TILES
// Panels of bfloat16 as they lie.
struct PlainPanels {
  static constexpr bool MADE = false;
  const Bf16* weight;
  int64_t steps;

  // The weights of a panel for the TILE_STEPS steps of tile `k`.
  const Bf16* tile(int64_t panel, int64_t k) const {
    return weight + panel * steps * 2 * LANES + k * TILE_VALUES;
  }
  // Copies those of its first `count` steps.
  void make(int64_t panel, int64_t k, int64_t count, Bf16* to) const {
    memcpy(to, tile(panel, k), count * 2 * LANES * sizeof(Bf16));
  }
};

// R tiles of rows from `row` on times V panels from `panel` on.
template <int R, int V, class P>
void tile_block(const PackedLinear& a, const P& panels, const Bf16* x, int64_t x_stride,
                int64_t panel, int64_t row) {
  const int64_t steps = (a.columns + 1) / 2;
  sum_tiles<R, V>(x + row * x_stride, x_stride, panels, panel, steps);
  constexpr int64_t APART = sizeof(float) * LANES;
  alignas(64) float sums[4][TILE_ROWS * LANES];  // of tile 2 r + v
  _tile_stored(0, sums[0], APART);
  if constexpr (V > 1) _tile_stored(1, sums[1], APART);
  if constexpr (R > 1) _tile_stored(2, sums[2], APART);
  if constexpr (R > 1 && V > 1) _tile_stored(3, sums[3], APART);
  for (int64_t v = 0; v < V; v++) {
    const int64_t o = (panel + v) * LANES, n = a.outputs - o < LANES ? a.outputs - o : LANES;
    const Vec bias = a.bias ? load_run(a.bias + o, n) : Vec{};
    const int64_t rows = a.rows - row < R * TILE_ROWS ? a.rows - row : R * TILE_ROWS;
    for (int64_t i = 0; i < rows; i++) {
      const float* sum = sums[i / TILE_ROWS * 2 + v] + i % TILE_ROWS * LANES;
      store_run(a.y + (row + i) * a.y_stride + o, load(sum) + bias, n);
    }
  }
}

// All rows times the panels `first` to `end`.
template <class P>
void multiply_tile_rows(const PackedLinear& a, const P& panels, const Bf16* x, int64_t x_stride,
                        int64_t first, int64_t end) {
  for (int64_t row = 0; row < a.rows; row += 2 * TILE_ROWS) {
    const bool two = a.rows - row > TILE_ROWS;
    int64_t panel = first;
    for (; a.rows > 1 && panel + 2 <= end; panel += 2) {
      two ? tile_block<2, 2>(a, panels, x, x_stride, panel, row)
          : tile_block<1, 2>(a, panels, x, x_stride, panel, row);
    }
    for (; panel < end; panel++) {
      two ? tile_block<2, 1>(a, panels, x, x_stride, panel, row)
          : tile_block<1, 1>(a, panels, x, x_stride, panel, row);
    }
  }
}

// multiply(first, end): all rows times those panels, a piece of work that stays in the cache.
template <class M>
void each_tile_piece(const PackedLinear& a, Team& team, M multiply) {
  constexpr int64_t PIECE = 4;
  const int64_t all = (a.outputs + LANES - 1) / LANES;
  const Tiles tiles(a.rows < TILE_ROWS ? a.rows : TILE_ROWS);
  team.each((all + PIECE - 1) / PIECE, [&](int64_t part) {
    const int64_t first = part * PIECE;
    multiply(first, first + PIECE < all ? first + PIECE : all);
  });
}
#endif

// `activations` returns rows up to the next multiple of TILE_ROWS where there are more than those;
// what lies in the last ones is multiplied and left.
template <class F>
void multiply_bf16(const PackedLinear& a, Team& team, int64_t x_stride, F activations) {
#ifdef BATON_TILES
  if (a.rows && tiles_allowed()) {
    const PlainPanels panels{static_cast<const Bf16*>(a.weight), (a.columns + 1) / 2};
    return each_tile_piece(a, team, [&](int64_t first, int64_t end) {
      multiply_tile_rows(a, panels, activations(), x_stride, first, end);
    });
  }
#endif
  multiply_panels<Bf16>(a, team, x_stride, activations);
}

// multiply(x_stride, activations): the product, of activations that are rounded to bfloat16.
template <class M>
void with_rounded(const PackedLinear& a, Team& team, M multiply) {
  const int64_t padded = padded_width(a.columns);
  auto round = [&](int64_t row, Bf16* to) {
    convert_row(a.x + row * a.x_stride, to, a.columns, padded);
  };
  if (a.rounded) {
    team.each(a.rows, [&](int64_t row) { round(row, a.rounded + row * padded); });
    multiply(padded, [&] { return static_cast<const Bf16*>(a.rounded); });
  } else {  // few rows: each thread for itself, at its first part, rather than wait for another
    struct Rounded {};
    Bf16* x = nullptr;
    multiply(padded, [&] {
      if (!x) {
        x = scratch<Bf16, Rounded>((a.rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * padded);
        for (int64_t row = 0; row < a.rows; row++) round(row, x + row * padded);
      }
      return static_cast<const Bf16*>(x);
    });
  }
}

void packed_linear(const PackedLinear& a, Team& team) {
  if (a.dtype == FLOAT32) {
    return multiply_panels<float>(a, team, a.x_stride, [&] { return a.x; });
  }
  with_rounded(a, team, [&](int64_t x_stride, auto activations) {
    multiply_bf16(a, team, x_stride, activations);
  });
}

}  // namespace
