// Products of small matrices that lie in the cache.
#pragma once
#include <type_traits>

#include "vectors.h"

namespace {

// Columns of a matrix product's left side that lie `step` apart, rows that lie `stride` apart.
struct Left {
  const float* at;
  int64_t stride, step;
};

// c[r, n] += sum over k of a[r, k] b[k, n], for R rows and V vectors of columns.
template <int R, int V>
inline void outer(Left a, const float* b, int64_t b_stride, int64_t depth, float* c,
                  int64_t c_stride) {
  Vec total[R][V];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) {
    total[r][v] = load(c + r * c_stride + v * LANES);
  }
  for (int64_t k = 0; k < depth; k++) {
    Vec values[V];
    UNROLL for (int v = 0; v < V; v++) values[v] = load(b + k * b_stride + v * LANES);
    UNROLL for (int r = 0; r < R; r++) {
      const Vec factor = splat(a.at[r * a.stride + k * a.step]);
      UNROLL for (int v = 0; v < V; v++) total[r][v] += factor * values[v];
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) {
    store(c + r * c_stride + v * LANES, total[r][v]);
  }
}

constexpr int64_t MOST_ROWS = 12;  // that `outer` takes at once

// c += a b: [rows, depth] x [depth, columns]. Of row r of a, columns `dense` + r + 1 on are zero,
// and those from MOST_ROWS further on are not read.
void add_product(Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t rows,
                 int64_t depth, int64_t columns, int64_t dense) {
  for (int64_t n = 0; n < columns;) {
    const int64_t left = columns - n;
    int64_t r = 0;
    auto block = [&](auto count, auto vectors) {
      for (; r + count <= rows; r += count) {
        const int64_t needed = dense + r + count, deep = needed < depth ? needed : depth;
        outer<count, vectors>({a.at + r * a.stride, a.stride, a.step}, b + n, b_stride, deep,
                              c + r * c_stride + n, c_stride);
      }
    };
    auto blocks = [&](auto count, auto vectors) {
      block(count, vectors);
      block(std::integral_constant<int, 1>{}, vectors);
      n += vectors * LANES;
    };
    if (left >= 4 * LANES) {
      blocks(std::integral_constant<int, 6>{}, std::integral_constant<int, 4>{});
    } else if (left >= 2 * LANES) {
      blocks(std::integral_constant<int, 12>{}, std::integral_constant<int, 2>{});
    } else if (left >= LANES) {
      blocks(std::integral_constant<int, 12>{}, std::integral_constant<int, 1>{});
    } else {
      for (; r < rows; r++) {
        const int64_t needed = dense + r + 1, deep = needed < depth ? needed : depth;
        Vec total = load(c + r * c_stride + n, left);
        for (int64_t k = 0; k < deep; k++) {
          total += a.at[r * a.stride + k * a.step] * load(b + k * b_stride + n, left);
        }
        store(c + r * c_stride + n, total, left);
      }
      n = columns;
    }
  }
}

// to[j, i] = from[i, j]: 16 x 16 values at a time, by four rounds that exchange halves.
void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  auto block = [&](int64_t i, int64_t j) {
    Vec v[LANES], w[LANES];
    UNROLL for (int r = 0; r < LANES; r++) v[r] = load(from + (i + r) * columns + j);
#define EXCHANGE(from, to, distance, low, high)                             \
  UNROLL for (int r = 0; r < LANES; r++) {                                  \
    const int first = r & ~distance;                                        \
    to[r] = r & distance                                                    \
                ? __builtin_shuffle(from[first], from[first + distance], high) \
                : __builtin_shuffle(from[first], from[first + distance], low); \
  }
    const IntVec low8{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const IntVec low4{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
    const IntVec low2{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const IntVec low1{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
    EXCHANGE(v, w, 8, low8, low8 + 8)
    EXCHANGE(w, v, 4, low4, low4 + 4)
    EXCHANGE(v, w, 2, low2, low2 + 2)
    EXCHANGE(w, v, 1, low1, low1 + 1)
    UNROLL for (int r = 0; r < LANES; r++) store(to + (j + r) * rows + i, v[r]);
#undef EXCHANGE
  };
  for (int64_t i = 0; i < rows; i += LANES) {
    for (int64_t j = 0; j < columns; j += LANES) {
      if (i + LANES <= rows && j + LANES <= columns) {
        block(i, j);
        continue;
      }
      for (int64_t r = i; r < rows && r < i + LANES; r++) {
        for (int64_t c = j; c < columns && c < j + LANES; c++) to[c * rows + r] = from[r * columns + c];
      }
    }
  }
}

}  // namespace
