// Products with a packed matrix of 8-bit floats (E4M3, as uint8_t) or integers (int8_t), which is
// expanded piece by piece to what it stands for: each number times its scale, rounded to the dtype
// of the product. So the sums are
// those of the expanded matrix, bit for bit. (A value below the least normal bfloat16 becomes 0 a
// little earlier; the CPU's products take it for 0 anyway.)
#pragma once
#include "packed.h"

namespace {

struct PackedEightBit {
  const float* x;         // [rows, columns], rows x_stride apart
  const void* weight;     // [panels, steps, 16, inputs a step] of uint8_t, no NaN, or int8_t
  const float* scale;     // [panels, groups, 16]: of `group` inputs, a multiple of 32
  const float* bias;      // [outputs] or null
  float* y;               // [rows, outputs], rows y_stride apart
  Bf16* rounded;          // as of PackedLinear
  int64_t rows, columns, outputs, x_stride, y_stride, dtype, group;  // dtype: of the product
  int64_t integers;  // true if the weight is of int8_t
};

// The bits of a float, moved into those of float16, have an exponent that is less by this factor.
constexpr float FP8_BIAS = 256.0f;
// What `small_numbers` are divided by.
inline constexpr float bias_of(uint8_t) { return FP8_BIAS; }
inline constexpr float bias_of(int8_t) { return 1.0f; }
// Where they lie there: the sign, the lower four of the exponent, the upper three of the mantissa.
constexpr int16_t FP8_BITS = static_cast<int16_t>(0xbf80);

// 16 numbers, each divided by the bias. Exact, denormal numbers too.
inline Vec small_numbers(const int8_t* p) { return load(p); }
inline Vec small_numbers(const uint8_t* p) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  const __m256i wide =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves =
      _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(FP8_BITS));
  return (Vec)_mm512_cvtph_ps(halves);
#else
  Vec numbers;
  for (int64_t i = 0; i < LANES; i++) {
    const int exponent = p[i] >> 3 & 15, mantissa = p[i] & 7;
    const float size = exponent ? ldexpf(static_cast<float>(8 + mantissa), exponent - 18)
                                : ldexpf(static_cast<float>(mantissa), -17);
    numbers[i] = p[i] & 128 ? -size : size;
  }
  return numbers;
#endif
}

#ifdef BATON_DOT_BF16
// 32 numbers in less work than that of two times 16.
inline void small_numbers(const int8_t* p, Vec& low, Vec& high) {
  low = load(p);
  high = load(p + LANES);
}
inline void small_numbers(const uint8_t* p, Vec& low, Vec& high) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i wide = _mm512_cvtepi8_epi16(bytes);
  const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(FP8_BITS));
  low = (Vec)_mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  high = (Vec)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}
#endif

// The numbers of one step, times the scales of the panel's rows.
template <class N>
inline void expand_step(const N* from, Vec scale, float* to) {
  store(to, small_numbers(from) * scale);
}

struct PairScales {
  Vec low, high;  // of rows 0 to 7 and 8 to 15, twice each
};

// The scales of 16 rows, in the order of the inputs of one step.
inline Vec step_scales(Vec s, float) { return s; }
inline PairScales step_scales(Vec s, Bf16) {
  return {__builtin_shufflevector(s, s, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
          __builtin_shufflevector(s, s, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)};
}

#ifdef BATON_DOT_BF16
template <class N>
inline PairVec expanded_step(const N* from, const PairScales& scale) {
  Vec low, high;
  small_numbers(from, low, high);
  return _mm512_cvtne2ps_pbh((__m512)(high * scale.high), (__m512)(low * scale.low));
}
#endif

template <class N>
inline void expand_step(const N* from, const PairScales& scale, Bf16* to) {
#ifdef BATON_DOT_BF16
  const PairVec pairs = expanded_step(from, scale);
  memcpy(to, &pairs, sizeof pairs);
#else
  store(to, small_numbers(from) * scale.low);
  store(to + LANES, small_numbers(from + LANES) * scale.high);
#endif
}

// Expands one row of `count` numbers; of `group` neighbours, a multiple of 32, one scale.
template <class T, class N>
inline void expand_row(const N* from, const float* scales, int64_t group, int64_t count,
                       T* to) {
  constexpr int64_t STEP = LANES * depth(T{}), FETCHED = 1024;
  for (int64_t k = 0; k < count;) {
    const auto scale = step_scales(splat(*scales++ * bias_of(N{})), T{});
    const int64_t end = count - k < group ? count : k + group;
    for (; k + STEP <= end; k += STEP) {
      __builtin_prefetch(from + k + FETCHED);
      expand_step(from + k, scale, to + k);
    }
    if (k == end) continue;
    N left[STEP] = {};
    T numbers[STEP];
    memcpy(left, from + k, end - k);
    expand_step(left, scale, numbers);
    memcpy(to + k, numbers, (end - k) * sizeof(T));
    k = end;
  }
}

// The panels of a matrix of N, of which some steps at a time are expanded to T.
template <class T, class N>
struct EightBitPanels {
  static constexpr bool MADE = true;
  static constexpr int64_t DEPTH = depth(T{});
  // Bytes from a weight to one that is fetched meanwhile: without it, one row takes 1.3 times as
  // long, since the work between two lines of memory fills the CPU's window.
  static constexpr int64_t FETCHED = 2048;
  const PackedEightBit& a;
  const int64_t steps = (a.columns + DEPTH - 1) / DEPTH;
  const int64_t groups = (a.columns + a.group - 1) / a.group;

  // Expands the first `count` steps, at most those of one scale, from step `first` on.
  void expand(int64_t panel, int64_t first, int64_t count, T* to) const {
    const float* scales = a.scale + (panel * groups + first * DEPTH / a.group) * LANES;
    const auto scale = step_scales(load(scales) * bias_of(N{}), T{});
    const N* from = static_cast<const N*>(a.weight) + (panel * steps + first) * LANES * DEPTH;
    for (int64_t k = 0; k < count; k++) {
      __builtin_prefetch(from + k * LANES * DEPTH + FETCHED);
      expand_step(from + k * LANES * DEPTH, scale, to + k * LANES * DEPTH);
    }
  }
  void make(int64_t panel, int64_t k, int64_t count, T* to) const {
    expand(panel, k * DOT_LANES / DEPTH, count, to);
  }
  // Expands the panels `first` to `end`, as PackedLinear has them.
  void expand_all(int64_t first, int64_t end, T* to) const {
    const int64_t most = a.group / DEPTH;
    for (int64_t panel = first; panel < end; panel++) {
      for (int64_t step = 0; step < steps; step += most) {
        const int64_t count = steps - step < most ? steps - step : most;
        expand(panel, step, count, to + ((panel - first) * steps + step) * LANES * DEPTH);
      }
    }
  }
};

// The panels `first` to `end`, expanded in memory of this thread; as the weight of a PackedLinear
// whose first panel is number 0.
template <class T, class N>
const T* expanded_panels(const PackedEightBit& a, int64_t first, int64_t end) {
  struct Panels {};
  const EightBitPanels<T, N> panels{a};
  const int64_t size = panels.steps * LANES * depth(T{});
  T* memory = scratch<T, Panels>((end - first) * size);
  panels.expand_all(first, end, memory);
  return memory - first * size;
}

#ifdef BATON_DOT_BF16
// R rows of activations, from `row` on, times one panel, whose numbers are expanded in registers:
// once for all of them, and not by way of memory, which would cost few rows as much as the rest.
// The sums are those of `panel_block`. Where more rows are to come, `kept` gets what was expanded.
template <class N, int R, bool KEEP>
void expanded_block(const PackedEightBit& a, const Bf16* x, int64_t x_stride, int64_t panel,
                    int64_t row, Bf16* kept) {
  constexpr int64_t DEPTH = depth(Bf16{});
  const EightBitPanels<Bf16, N> panels{a};
  const N* from = static_cast<const N*>(a.weight) + panel * panels.steps * LANES * DEPTH;
  const float* scales = a.scale + panel * panels.groups * LANES;
  x += row * x_stride;
  Vec total[R];
  UNROLL for (int r = 0; r < R; r++) total[r] = Vec{};
  for (int64_t k = 0, end = 0; k < panels.steps; scales += LANES) {
    const auto scale = step_scales(load(scales) * bias_of(N{}), Bf16{});
    end += a.group / DEPTH;
    if (end > panels.steps) end = panels.steps;
    for (; k < end; k++, from += LANES * DEPTH) {
      __builtin_prefetch(from + panels.FETCHED);
      const PairVec weights = expanded_step(from, scale);
      if constexpr (KEEP) _mm512_storeu_si512(kept + k * LANES * DEPTH, (__m512i)weights);
      UNROLL for (int r = 0; r < R; r++) {
        add_products(total[r], weights, splat_step(x + r * x_stride + DEPTH * k));
      }
    }
  }
  const int64_t first = panel * LANES;
  const int64_t count = a.outputs - first < LANES ? a.outputs - first : LANES;
  const Vec bias = a.bias ? load_run(a.bias + first, count) : Vec{};
  UNROLL for (int r = 0; r < R; r++) {
    store_run(a.y + (row + r) * a.y_stride + first, total[r] + bias, count);
  }
}

// The same for `rows` rows, at most R.
template <class N, int R, bool KEEP>
void expanded_rows(const PackedEightBit& a, const Bf16* x, int64_t x_stride, int64_t panel,
                   int64_t row, int64_t rows, Bf16* kept) {
  if (rows == R) return expanded_block<N, R, KEEP>(a, x, x_stride, panel, row, kept);
  if constexpr (R > 1) expanded_rows<N, R - 1, KEEP>(a, x, x_stride, panel, row, rows, kept);
}

// Rows that meet a panel at once: their sums fit the registers. Of more than twice as many, several
// panels are multiplied together instead, which by then is faster.
constexpr int EXPANDED_ROWS = 16;

// All rows, at most two times EXPANDED_ROWS, times one panel.
template <class N>
void multiply_expanding(const PackedEightBit& a, const PackedLinear& plain, const Bf16* x,
                        int64_t x_stride, int64_t panel) {
  constexpr int MOST = EXPANDED_ROWS;
  if (a.rows <= MOST) {
    return expanded_rows<N, MOST, false>(a, x, x_stride, panel, 0, a.rows, nullptr);
  }
  struct Kept {};
  const int64_t size = (a.columns + 1) / 2 * 2 * LANES;
  Bf16* kept = scratch<Bf16, Kept>(size);
  PackedLinear own = plain;
  own.weight = kept - panel * size;
  const int64_t half = (a.rows + 1) / 2;
  expanded_rows<N, MOST, true>(a, x, x_stride, panel, 0, half, kept);
  few_rows<Bf16, MOST, 1>(own, x, x_stride, panel, half, a.rows - half);
}
#endif

template <class T, class N, class F>
void multiply_expanded(const PackedEightBit& a, PackedLinear plain, Team& team, int64_t x_stride,
                       F activations) {
  const Pieces pieces(plain);
  team.each(pieces.count(), [&](int64_t piece) {
#ifdef BATON_DOT_BF16
    if constexpr (std::is_same_v<T, Bf16>) {
      if (a.rows <= 2 * EXPANDED_ROWS) {
        const Bf16* x = activations();
        for (int64_t p = pieces.first(piece); p < pieces.end(piece); p++) {
          multiply_expanding<N>(a, plain, x, x_stride, p);
        }
        return;
      }
    }
#endif
    PackedLinear own = plain;
    own.weight = expanded_panels<T, N>(a, pieces.first(piece), pieces.end(piece));
    multiply_piece<T>(own, pieces, piece, activations(), x_stride);
  });
}

template <class N, class F>
void multiply_eight_bit(const PackedEightBit& a, const PackedLinear& plain, Team& team,
                        int64_t x_stride, F activations) {
#ifdef BATON_TILES
  if (a.rows && tiles_allowed()) {
    return each_tile_piece(plain, team, [&](int64_t first, int64_t end) {
      const Bf16* x = activations();
      if (a.rows <= 2 * TILE_ROWS) {  // each weight meets all rows at once
        return multiply_tile_rows(plain, EightBitPanels<Bf16, N>{a}, x, x_stride, first, end);
      }
      const PlainPanels panels{expanded_panels<Bf16, N>(a, first, end), (a.columns + 1) / 2};
      multiply_tile_rows(plain, panels, x, x_stride, first, end);
    });
  }
#endif
  multiply_expanded<Bf16, N>(a, plain, team, x_stride, activations);
}

template <class N>
void packed_eight_bit_of(const PackedEightBit& a, Team& team) {
  const PackedLinear plain{a.x,    nullptr,   a.bias,    a.y,        a.rounded,  a.rows,
                           a.columns, a.outputs, a.x_stride, a.y_stride, a.dtype};
  if (a.dtype == FLOAT32) {
    return multiply_expanded<float, N>(a, plain, team, a.x_stride, [&] { return a.x; });
  }
  with_rounded(plain, team, [&](int64_t x_stride, auto activations) {
    multiply_eight_bit<N>(a, plain, team, x_stride, activations);
  });
}

void packed_eight_bit(const PackedEightBit& a, Team& team) {
  if (a.integers) return packed_eight_bit_of<int8_t>(a, team);
  packed_eight_bit_of<uint8_t>(a, team);
}

}  // namespace
