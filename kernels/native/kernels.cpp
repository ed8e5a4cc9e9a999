// Decode kernels for a CPU: what torch is slow at when a batch has few rows.
//
// ABI: `baton_run` runs a list of operations, each a function and a pointer to its arguments (plain
// structs of pointers, 64-bit integers and doubles; signatures.py mirrors them). The list runs in
// one parallel region: every thread enters every operation, and its loops (`Team::each`) end when
// all of their work is done, so that operation i is complete before i + 1 begins.
//
// Activations are float32. Weights, KV and recurrent state may be bfloat16, weights also int8 with
// a scale a row. Every sum is taken in an order that depends on the row's own sizes alone, never on
// the number of rows or threads: a row's result is the same bits in every batch.
#include <sched.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define BATON_DOT_BF16 1
#endif

namespace {

constexpr int64_t LANES = 16;
constexpr int64_t DOT_LANES = 32;  // bfloat16 values of one dot-product instruction

typedef float Vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t BitVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t HalfBits __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t ByteVec __attribute__((vector_size(16), aligned(1), may_alias));

struct Bf16 {
  uint16_t bits;
};

enum DType : int64_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

#define UNROLL _Pragma("GCC unroll 16")

inline Vec splat(float value) { return Vec{} + value; }

// Loads of 16 values, whatever they are stored as.
inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Vec load(const Bf16* p) {
  return reinterpret_cast<Vec>(
      __builtin_convertvector(*reinterpret_cast<const HalfBits*>(p), BitVec) << 16);
}
inline Vec load(const int8_t* p) {
#ifdef __AVX512F__  // gcc would convert the bytes one by one
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
  return __builtin_convertvector(*reinterpret_cast<const ByteVec*>(p), Vec);
#endif
}

inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline void store(Bf16* p, Vec v) {  // to the nearest, ties to even; a NaN stays one
  BitVec bits = reinterpret_cast<BitVec>(v);
  BitVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  BitVec nan = (bits & 0x7fffffff) > 0x7f800000;
  rounded = (rounded & ~nan) | (nan & 0x7fc0);
  *reinterpret_cast<HalfBits*>(p) = __builtin_convertvector(rounded, HalfBits);
}

inline float value(float v) { return v; }
inline float value(Bf16 v) {
  const uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}
inline void set(float& to, float v) { to = v; }
inline void set(Bf16& to, float v) {
  Bf16 whole[LANES];
  store(whole, splat(v));
  to = whole[0];
}

// The first n < 16 values, zeros behind them; nothing past them is touched.
template <class T>
inline Vec load(const T* p, int64_t n) {
  T whole[LANES] = {};
  memcpy(whole, p, n * sizeof(T));
  return load(whole);
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  T whole[LANES];
  store(whole, v);
  memcpy(p, whole, n * sizeof(T));
}

// f(i, n) for every run of 16 places below `size`, and for the rest: n is then below 16.
template <class F>
inline void runs(int64_t size, F f) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) f(i, LANES);
  if (i < size) f(i, size - i);
}
template <class T>
inline Vec load_run(const T* p, int64_t n) {
  return n == LANES ? load(p) : load(p, n);
}
template <class T>
inline void store_run(T* p, Vec v, int64_t n) {
  if (n == LANES) {
    store(p, v);
  } else {
    store(p, v, n);
  }
}

inline float sum(Vec v) {
  Vec pairs = v + __builtin_shufflevector(v, v, 2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
  Vec quads = pairs + __builtin_shufflevector(pairs, pairs, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13);
  return (quads[0] + quads[8]) + (quads[4] + quads[12]);
}

// The sums of four vectors, each taken in the same order: lanes 4 apart last.
inline void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
#define LOW_PAIRS 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_PAIRS 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define LOW_QUADS 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_QUADS 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
  Vec ab = __builtin_shufflevector(a, b, LOW_PAIRS) + __builtin_shufflevector(a, b, HIGH_PAIRS);
  Vec cd = __builtin_shufflevector(c, d, LOW_PAIRS) + __builtin_shufflevector(c, d, HIGH_PAIRS);
  Vec all = __builtin_shufflevector(ab, cd, LOW_QUADS) + __builtin_shufflevector(ab, cd, HIGH_QUADS);
  Quad low = __builtin_shufflevector(all, all, 0, 1, 2, 3) +
             __builtin_shufflevector(all, all, 8, 9, 10, 11);
  Quad high = __builtin_shufflevector(all, all, 4, 5, 6, 7) +
              __builtin_shufflevector(all, all, 12, 13, 14, 15);
  *reinterpret_cast<Quad*>(out) = low + high;
}

// exp to 2 ulp: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes' coefficients).
inline Vec exp(Vec x) {
  x = x < -87.0f ? splat(-87.0f) : x;
  x = x > 88.0f ? splat(88.0f) : x;
  Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 x 2^23: rounds to an integer
  Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  IntVec exponent = __builtin_convertvector(n, IntVec) + 127;
  return p * reinterpret_cast<Vec>(exponent << 23);
}
inline Vec silu(Vec x) {  // below -87 it is as good as zero
  x = x < -87.0f ? splat(-87.0f) : x;
  return x / (1.0f + exp(-x));
}

// Memory of the calling thread that lasts until its next call with the same Tag.
template <class T, class Tag>
inline T* scratch(int64_t size) {
  thread_local std::vector<T> memory;
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  return memory.data();
}

// --- threads --------------------------------------------------------------------------------

// A loop's work, shared by the threads. Apart, so that two loops share no cache line.
struct alignas(128) Loop {
  std::atomic<int64_t> next{0}, done{0};
};

// What one thread knows of the run that it is part of.
//
// A loop ends when its work is done, not when all threads have come to its end: a thread that the
// system holds up between two pieces of work holds up nobody. (OpenMP's barrier waits for it, and
// where cores are shared with other processes a step of 300 barriers took ten times as long.)
class Team {
 public:
  Team(Loop* loops) : loop_(loops) {}

  // body(i) for every i below `count`, each by one thread.
  template <class F>
  void each(int64_t count, F body) {
    Loop& loop = *loop_++;
    for (;;) {
      const int64_t i = loop.next.load(std::memory_order_relaxed) < count
                            ? loop.next.fetch_add(1, std::memory_order_relaxed)
                            : count;
      if (i >= count) break;
      body(i);
      loop.done.fetch_add(1, std::memory_order_release);
    }
    for (int spins = 0; loop.done.load(std::memory_order_acquire) < count; spins++) {
      if (spins >= SPINS) sched_yield();
    }
  }

 private:
  static constexpr int SPINS = 2000;  // some microseconds
  Loop* loop_;
};

// --- linear ---------------------------------------------------------------------------------

struct Linear {
  const float* x;  // [rows, in], rows x_stride apart
  const void* weight;  // [out, in]
  const float* scale;  // [out], of int8 weights
  const float* bias;   // [out] or null
  float* y;            // [rows, out]
  void* rounded;       // [rows, in rounded up to 32] bfloat16, scratch; null where rows are few
  int64_t rows, in, out, x_stride, dtype;
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
      __builtin_prefetch(w + ((NB == 1 ? 2 : 1) * R + r) * w_stride + k);  // of a tile to come
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
// The same from bfloat16 activations, padded with zeros to a multiple of 32: two products a lane.
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
      __builtin_prefetch(w + ((NB == 1 ? 2 : 1) * R + r) * in + k);  // of a tile to come
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
  const auto* w = static_cast<const typename Tile::Weight*>(a.weight) + o * a.in;
  float* y = a.y + o;
  int64_t b = 0;
  auto block = [&](auto rows) {
    for (; b + rows <= a.rows; b += rows)
      Tile::template run<R, rows>(x + b * x_stride, x_stride, w, a.in, y + b * a.out, a.out);
  };
  if constexpr (NB > 4) block(std::integral_constant<int, NB>{});
  if constexpr (NB >= 4) block(std::integral_constant<int, 4>{});
  if constexpr (NB >= 2) block(std::integral_constant<int, 2>{});
  block(std::integral_constant<int, 1>{});
  for (int r = 0; r < R; r++) {
    float scale = a.scale ? a.scale[o + r] : 1.0f, bias = a.bias ? a.bias[o + r] : 0.0f;
    if (a.scale || a.bias)
      for (int64_t row = 0; row < a.rows; row++)
        y[row * a.out + r] = y[row * a.out + r] * scale + bias;
  }
}

// All weight rows against all activation rows. A part of the weight and a block of activations
// stay in the second-level cache while they meet.
template <class Tile, class F>
void linear_as(const Linear& a, Team& team, int64_t x_stride, F activations) {
  constexpr int64_t PART = 64, BLOCK = 48;
  const int64_t parts = (a.out + PART - 1) / PART;
  team.each(parts, [&](int64_t part) {
    const typename Tile::Value* x = activations();
    const int64_t first = part * PART, end = first + PART < a.out ? first + PART : a.out;
    Linear block = a;
    for (int64_t row = 0; row < a.rows; row += BLOCK) {
      block.rows = row + BLOCK < a.rows ? BLOCK : a.rows - row;
      block.y = a.y + row * a.out;
      const auto* values = x + row * x_stride;
      int64_t o = first;
      if (a.rows == 1)  // more weight rows at a time, or too little of them is under way
        for (; o + 16 <= end; o += 16) weight_rows<Tile, 16, 1>(block, values, x_stride, o);
      for (; o + 4 <= end; o += 4) weight_rows<Tile, 4, 6>(block, values, x_stride, o);
      for (; o < end; o++) weight_rows<Tile, 1, 6>(block, values, x_stride, o);
    }
  });
}

#ifdef BATON_DOT_BF16
void round_row(const Linear& a, int64_t row, Bf16* to, int64_t padded) {
  runs(a.in, [&](int64_t i, int64_t n) {
    store_run(to + i, load_run(a.x + row * a.x_stride + i, n), n);
  });
  memset(to + a.in, 0, (padded - a.in) * sizeof(Bf16));
}
#endif

void linear(const Linear& a, Team& team) {
  auto given = [&] { return a.x; };
  if (a.dtype == FLOAT32) return linear_as<FloatTile<float>>(a, team, a.x_stride, given);
  if (a.dtype == INT8) return linear_as<FloatTile<int8_t>>(a, team, a.x_stride, given);
#ifdef BATON_DOT_BF16
  const int64_t padded = (a.in + DOT_LANES - 1) / DOT_LANES * DOT_LANES;
  if (a.rounded) {
    Bf16* x = static_cast<Bf16*>(a.rounded);
    team.each(a.rows, [&](int64_t row) { round_row(a, row, x + row * padded, padded); });
    linear_as<DotTile>(a, team, padded, [&] { return x; });
  } else {  // few rows: each thread for itself, at its first part, rather than wait for another
    struct Rounded {};
    Bf16* x = nullptr;
    linear_as<DotTile>(a, team, padded, [&] {
      if (!x) {
        x = scratch<Bf16, Rounded>(a.rows * padded);
        for (int64_t row = 0; row < a.rows; row++) round_row(a, row, x + row * padded, padded);
      }
      return x;
    });
  }
#else
  linear_as<FloatTile<Bf16>>(a, team, a.x_stride, given);
#endif
}

// --- row-wise operations --------------------------------------------------------------------

struct Embedding {
  const int64_t* ids;  // [rows]
  const void* table;   // [vocabulary, width]
  const float* scale;  // [vocabulary], of an int8 table
  float* out;          // [rows, width]
  int64_t rows, width, dtype;
};

template <class T>
void embedding_as(const Embedding& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    const T* from = static_cast<const T*>(a.table) + a.ids[row] * a.width;
    const float scale = a.scale ? a.scale[a.ids[row]] : 1.0f;
    runs(a.width, [&](int64_t i, int64_t n) {
      store_run(a.out + row * a.width + i, load_run(from + i, n) * scale, n);
    });
  });
}

void embedding(const Embedding& a, Team& team) {
  if (a.dtype == FLOAT32) return embedding_as<float>(a, team);
  if (a.dtype == INT8) return embedding_as<int8_t>(a, team);
  embedding_as<Bf16>(a, team);
}

struct RmsNorm {
  const float* x;       // [rows, width], rows x_stride apart
  const float* weight;  // [width]
  float* out;           // [rows, width]
  int64_t rows, width, x_stride;
  double eps, weight_offset;  // the weight is weight_offset + what is stored
};

float mean_square(const float* x, int64_t width) {
  Vec total = {};
  runs(width, [&](int64_t i, int64_t n) {
    Vec v = load_run(x + i, n);
    total += v * v;
  });
  return sum(total) / static_cast<float>(width);
}

void rms_norm(const RmsNorm& a, Team& team) {
  const float offset = static_cast<float>(a.weight_offset), eps = static_cast<float>(a.eps);
  team.each(a.rows, [&](int64_t row) {
    const float* x = a.x + row * a.x_stride;
    const float scale = 1.0f / sqrtf(mean_square(x, a.width) + eps);
    runs(a.width, [&](int64_t i, int64_t n) {
      Vec weight = load_run(a.weight + i, n) + offset;
      store_run(a.out + row * a.width + i, load_run(x + i, n) * scale * weight, n);
    });
  });
}

struct SwiGlu {
  const float* gate_up;  // [rows, 2 * width], gate first
  float* out;            // [rows, width]
  int64_t rows, width;
};

void swiglu(const SwiGlu& a, Team& team) {
  constexpr int64_t PART = 512;
  const int64_t parts = (a.width + PART - 1) / PART;
  team.each(a.rows * parts, [&](int64_t job) {
    const int64_t row = job / parts, first = job % parts * PART;
    const float* gate = a.gate_up + row * 2 * a.width + first;
    float* out = a.out + row * a.width + first;
    runs(first + PART < a.width ? PART : a.width - first, [&](int64_t i, int64_t n) {
      store_run(out + i, silu(load_run(gate + i, n)) * load_run(gate + a.width + i, n), n);
    });
  });
}

struct AddScaled {
  const float *x, *y;  // [size]
  float* out;          // [size]; x + alpha * y (or alpha * y where x is null)
  int64_t size;
  double alpha;
};

void add_scaled(const AddScaled& a, Team& team) {
  constexpr int64_t PART = 4096;
  const float alpha = static_cast<float>(a.alpha);
  team.each((a.size + PART - 1) / PART, [&](int64_t part) {
    const int64_t first = part * PART;
    runs(first + PART < a.size ? PART : a.size - first, [&](int64_t i, int64_t n) {
      Vec y = load_run(a.y + first + i, n) * alpha;
      store_run(a.out + first + i, a.x ? load_run(a.x + first + i, n) + y : y, n);
    });
  });
}

struct SelectRows {
  const float* x;       // [any, width]
  const int64_t* rows;  // [count]
  float* out;           // [count, width]
  int64_t count, width;
};

void select_rows(const SelectRows& a, Team& team) {
  team.each(a.count, [&](int64_t i) {
    memcpy(a.out + i * a.width, a.x + a.rows[i] * a.width, a.width * sizeof(float));
  });
}

struct Rope {
  const float* x;            // [rows, heads, head_dim], rows x_stride apart
  const float* cache;        // [positions, rotary]: cosines, then sines
  const int64_t* positions;  // [rows]
  float* out;                // [rows, heads, head_dim]
  int64_t rows, heads, head_dim, rotary, x_stride;
};

void rope(const Rope& a, Team& team) {
  const int64_t half = a.rotary / 2;
  team.each(a.rows, [&](int64_t row) {
    const float* cos = a.cache + a.positions[row] * a.rotary;
    for (int64_t head = 0; head < a.heads; head++) {
      const float* x = a.x + row * a.x_stride + head * a.head_dim;
      float* out = a.out + (row * a.heads + head) * a.head_dim;
      runs(half, [&](int64_t i, int64_t n) {
        Vec c = load_run(cos + i, n), s = load_run(cos + half + i, n);
        Vec first = load_run(x + i, n), second = load_run(x + half + i, n);
        store_run(out + i, first * c - second * s, n);
        store_run(out + half + i, second * c + first * s, n);
      });
      memcpy(out + a.rotary, x + a.rotary, (a.head_dim - a.rotary) * sizeof(float));
    }
  });
}

// --- attention ------------------------------------------------------------------------------

struct KvWrite {
  const float *k, *v;  // [tokens, width], tokens k_stride and v_stride apart
  void *k_pool, *v_pool;  // [pages, page_size, width], pages page_stride apart (in values)
  const int64_t *pages, *offsets;  // [tokens]
  int64_t tokens, width, k_stride, v_stride, page_stride, dtype;
};

template <class T>
void kv_write_as(const KvWrite& a, Team& team) {
  team.each(a.tokens, [&](int64_t t) {
    const int64_t place = a.pages[t] * a.page_stride + a.offsets[t] * a.width;
    T* k = static_cast<T*>(a.k_pool) + place;
    T* v = static_cast<T*>(a.v_pool) + place;
    runs(a.width, [&](int64_t i, int64_t n) {
      store_run(k + i, load_run(a.k + t * a.k_stride + i, n), n);
      store_run(v + i, load_run(a.v + t * a.v_stride + i, n), n);
    });
  });
}

void kv_write(const KvWrite& a, Team& team) {
  a.dtype == FLOAT32 ? kv_write_as<float>(a, team) : kv_write_as<Bf16>(a, team);
}

struct AttnDecode {
  const float* q;  // [rows, heads, head_dim], rows q_stride apart
  const void *k_pool, *v_pool;  // [pages, page_size, kv_heads, head_dim], pages page_stride apart
  const int64_t* tables;        // [rows, any], rows table_stride apart
  const int64_t* kv_lens;       // [rows]; 0 for padding rows
  float* out;                   // [rows, heads, head_dim]
  int64_t rows, heads, kv_heads, head_dim, page_size, q_stride, page_stride, table_stride, dtype;
  int64_t window;         // 0: none
  double scale, softcap;  // softcap 0: none
};

// One row's query heads of one KV head over positions first .. end.
template <class T>
void attend(const AttnDecode& a, int64_t row, int64_t kv_head) {
  struct Scores {};
  const int64_t per = a.heads / a.kv_heads, D = a.head_dim, end = a.kv_lens[row];
  const int64_t first = a.window && end > a.window ? end - a.window : 0, count = end - first;
  const float* q = a.q + row * a.q_stride + kv_head * per * D;
  float* out = a.out + (row * a.heads + kv_head * per) * D;
  float* scores = scratch<float, Scores>(per * count);
  const int64_t* table = a.tables + row * a.table_stride;
  auto token = [&](const void* pool, int64_t position) {
    return static_cast<const T*>(pool) + table[position / a.page_size] * a.page_stride +
           (position % a.page_size * a.kv_heads + kv_head) * D;
  };
  const float scale = static_cast<float>(a.scale), cap = static_cast<float>(a.softcap);
  for (int64_t i = 0; i < count; i++) {
    const T* k = token(a.k_pool, first + i);
    for (int64_t h = 0; h < per; h++) {
      Vec total = {};
      runs(D, [&](int64_t d, int64_t n) {
        total += load_run(q + h * D + d, n) * load_run(k + d, n);
      });
      float score = sum(total) * scale;
      scores[h * count + i] = cap > 0 ? cap * tanhf(score / cap) : score;
    }
  }
  memset(out, 0, per * D * sizeof(float));
  for (int64_t h = 0; h < per; h++) {
    float* s = scores + h * count;
    float top = count ? s[0] : 0.0f;
    for (int64_t i = 1; i < count; i++) top = s[i] > top ? s[i] : top;
    Vec total = {};
    runs(count, [&](int64_t i, int64_t n) {
      store_run(s + i, exp(load_run(s + i, n) - top), n);
      total += load_run(s + i, n);
    });
    const float share = 1.0f / sum(total);
    runs(count, [&](int64_t i, int64_t n) { store_run(s + i, load_run(s + i, n) * share, n); });
  }
  for (int64_t i = 0; i < count; i++) {
    const T* v = token(a.v_pool, first + i);
    for (int64_t h = 0; h < per; h++) {
      const float weight = scores[h * count + i];
      runs(D, [&](int64_t d, int64_t n) {
        float* o = out + h * D + d;
        store_run(o, load_run(o, n) + weight * load_run(v + d, n), n);
      });
    }
  }
}

void attn_decode(const AttnDecode& a, Team& team) {
  team.each(a.rows * a.kv_heads, [&](int64_t job) {
    if (a.dtype == FLOAT32) {
      attend<float>(a, job / a.kv_heads, job % a.kv_heads);
    } else {
      attend<Bf16>(a, job / a.kv_heads, job % a.kv_heads);
    }
  });
}

// --- Mamba-2 --------------------------------------------------------------------------------

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

constexpr int64_t CONV_PART = 256;  // channels of one piece of work

// Channels first .. first + count of one row: the window moves on and is convolved.
template <class T>
void convolve(const Mamba2Step& a, int64_t row, int64_t first, int64_t count) {
  constexpr int64_t MOST = CONV_PART;
  const int64_t lead = a.width - 1;
  const float* x = a.zxbcdt + row * a.stride + a.inner() + first;
  const T* from = static_cast<const T*>(a.conv_pool) + a.read_slots[row] * a.conv_stride;
  T* to = static_cast<T*>(a.conv_pool) + a.write_slots[row] * a.conv_stride;
  float total[MOST] = {};
  struct Windows {};
  float* window = scratch<float, Windows>(MOST * lead);  // in place: read whole, then written
  if (a.starts_empty(row)) {
    memset(window, 0, count * lead * sizeof(float));
  } else {
    runs(count * lead, [&](int64_t i, int64_t n) {
      store_run(window + i, load_run(from + first * lead + i, n), n);
    });
  }
  if (a.conv_bias) memcpy(total, a.conv_bias + first, count * sizeof(float));
  const float* taps = a.conv_weight + first * a.width;
  if (lead == 3) {
    for (int64_t c = 0; c < count; c++) {
      total[c] += window[3 * c] * taps[4 * c] + window[3 * c + 1] * taps[4 * c + 1] +
                  window[3 * c + 2] * taps[4 * c + 2] + x[c] * taps[4 * c + 3];
    }
    for (int64_t c = 0; c < count; c++) {
      window[3 * c] = window[3 * c + 1];
      window[3 * c + 1] = window[3 * c + 2];
      window[3 * c + 2] = x[c];
    }
  } else {
    for (int64_t c = 0; c < count; c++) {
      float* w = window + c * lead;
      for (int64_t tap = 0; tap < lead; tap++) total[c] += w[tap] * taps[c * a.width + tap];
      total[c] += x[c] * taps[c * a.width + lead];
      for (int64_t tap = 0; tap + 1 < lead; tap++) w[tap] = w[tap + 1];
      w[lead - 1] = x[c];
    }
  }
  runs(count * lead, [&](int64_t i, int64_t n) {
    store_run(to + first * lead + i, load_run(window + i, n), n);
  });
  float* out = a.convolved + row * a.channels() + first;
  runs(count, [&](int64_t i, int64_t n) { store_run(out + i, silu(load_run(total + i, n)), n); });
}

template <class T>
void convolve_all(const Mamba2Step& a, Team& team) {
  constexpr int64_t PART = CONV_PART;
  const int64_t channels = a.channels(), parts = (channels + PART - 1) / PART;
  team.each(a.rows * parts, [&](int64_t job) {
    const int64_t first = job % parts * PART;
    convolve<T>(a, job / parts, first, first + PART < channels ? PART : channels - first);
  });
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

// In place: the norm of each group of channels of each row, then the gate silu(z), where there is one.
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
  a.conv_dtype == FLOAT32 ? convolve_all<float>(a, team) : convolve_all<Bf16>(a, team);
  a.ssm_dtype == FLOAT32 ? advance_all<float>(a, team) : advance_all<Bf16>(a, team);
  if (!a.norm_weight) return;
  const float* gates = a.gate_last ? a.zxbcdt : nullptr;
  group_norm(a.y, a.rows, a.inner(), a.groups, a.norm_weight, a.eps, gates, a.stride, team);
}

// --- Mamba-2, prompts -----------------------------------------------------------------------

struct Mamba2Prefill {
  const float* zxbcdt;  // [tokens, z | x B C | dt], tokens stride apart
  const float *conv_weight, *conv_bias;  // [channels, width], [channels] or null
  const float *A, *D, *dt_bias;          // [heads]
  const float* norm_weight;              // [inner] or null: no norm
  void *conv_pool, *ssm_pool;  // [slots, channels, width - 1], [slots, heads, head_dim, d_state]
  const int64_t *read_slots, *write_slots;  // [rows]
  const uint8_t* has_initial;               // [rows]
  const int64_t* starts;                    // [rows + 1], first token of each row
  const int64_t* row_chunks;                // [rows + 1], first chunk of each row
  const int64_t* chunk_starts;              // [chunks + 1], first token of each chunk
  const int64_t* chunk_slots;     // [chunks], where to keep the state after each, or 0
  const int64_t* row_snapshots;   // [rows + 1], first snapshot of each row
  const int64_t *snapshot_ends, *snapshot_slots;  // [snapshots], token after each, and its slot
  float* convolved;                               // [tokens, channels], scratch
  float* scores;                                  // [chunks, groups, chunk, chunk], scratch
  float* y;                                       // [tokens, inner]
  int64_t rows, tokens, chunks, chunk, stride, heads, head_dim, groups, d_state, width;
  int64_t conv_stride, ssm_stride, conv_dtype, ssm_dtype;  // slot strides in values
  int64_t gate_last;                                       // the gate comes after the norm
  double dt_low, dt_high, eps;

  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * d_state; }
  const float* conv_input(int64_t token) const { return zxbcdt + token * stride + inner(); }
};

// The window that a row begins with, time first: [width - 1, count], of `count` channels.
template <class T>
void read_window(const Mamba2Prefill& a, int64_t row, int64_t first, int64_t count, float* to) {
  const int64_t lead = a.width - 1;
  const T* from = static_cast<const T*>(a.conv_pool) + a.read_slots[row] * a.conv_stride;
  for (int64_t c = 0; c < count; c++) {
    for (int64_t tap = 0; tap < lead; tap++) {
      to[tap * count + c] = a.has_initial[row] ? value(from[(first + c) * lead + tap]) : 0.0f;
    }
  }
}

// Tokens begin .. end of one row, channels first .. first + count.
template <class T>
void convolve_run(const Mamba2Prefill& a, int64_t row, int64_t begin, int64_t end, int64_t first,
                  int64_t count) {
  struct Taps {};
  const int64_t lead = a.width - 1, row_start = a.starts[row];
  float* taps = scratch<float, Taps>((a.width + lead) * count);
  float* window = taps + a.width * count;
  for (int64_t c = 0; c < count; c++) {
    for (int64_t tap = 0; tap < a.width; tap++) {
      taps[tap * count + c] = a.conv_weight[(first + c) * a.width + tap];
    }
  }
  if (begin - row_start < lead) read_window<T>(a, row, first, count, window);
  for (int64_t t = begin; t < end; t++) {
    float* out = a.convolved + t * a.channels() + first;
    runs(count, [&](int64_t i, int64_t n) {
      Vec total = a.conv_bias ? load_run(a.conv_bias + first + i, n) : Vec{};
      for (int64_t tap = 0; tap < a.width; tap++) {
        const int64_t from = t - lead + tap;
        const float* x = from >= row_start ? a.conv_input(from) + first
                                           : window + (from - row_start + lead) * count;
        total += load_run(x + i, n) * load_run(taps + tap * count + i, n);
      }
      store_run(out + i, silu(total), n);
    });
  }
}

// The window after the tokens of `row` before `end`, into a slot.
template <class T>
void write_window(const Mamba2Prefill& a, int64_t row, int64_t end, int64_t slot, int64_t first,
                  int64_t count, const float* window) {
  const int64_t lead = a.width - 1;
  T* to = static_cast<T*>(a.conv_pool) + slot * a.conv_stride + first * lead;
  for (int64_t tap = 0; tap < lead; tap++) {
    const int64_t from = end - lead + tap, before = from - a.starts[row];
    const float* x = before >= 0 ? a.conv_input(from) + first : window + (before + lead) * count;
    for (int64_t c = 0; c < count; c++) set(to[c * lead + tap], x[c]);
  }
}

template <class T>
void convolve_prompts(const Mamba2Prefill& a, Team& team) {
  constexpr int64_t PART = CONV_PART, TOKENS = 64;
  const int64_t channels = a.channels(), parts = (channels + PART - 1) / PART;
  const int64_t blocks = (a.tokens + TOKENS - 1) / TOKENS;
  auto width = [&](int64_t first) { return first + PART < channels ? PART : channels - first; };
  team.each(blocks * parts, [&](int64_t job) {
    const int64_t first = job % parts * PART, begin = job / parts * TOKENS;
    const int64_t end = begin + TOKENS < a.tokens ? begin + TOKENS : a.tokens;
    for (int64_t row = 0; row < a.rows; row++) {
      const int64_t from = a.starts[row] > begin ? a.starts[row] : begin;
      const int64_t to = a.starts[row + 1] < end ? a.starts[row + 1] : end;
      if (from < to) convolve_run<T>(a, row, from, to, first, width(first));
    }
  });
  team.each(a.rows * parts, [&](int64_t job) {  // all windows have been read: in place is safe
    struct Window {};
    const int64_t row = job / parts, first = job % parts * PART, count = width(first);
    float* window = scratch<float, Window>((a.width - 1) * count);
    read_window<T>(a, row, first, count, window);
    for (int64_t i = a.row_snapshots[row]; i < a.row_snapshots[row + 1]; i++) {
      write_window<T>(a, row, a.snapshot_ends[i], a.snapshot_slots[i], first, count, window);
    }
    write_window<T>(a, row, a.starts[row + 1], a.write_slots[row], first, count, window);
  });
}

// c[r, n] += sum over k of a[r, k] b[k, n], for R rows and V vectors of columns.
template <int R, int V>
inline void outer(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
                  float* c, int64_t c_stride) {
  Vec total[R][V];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) {
    total[r][v] = load(c + r * c_stride + v * LANES);
  }
  for (int64_t k = 0; k < depth; k++) {
    Vec values[V];
    UNROLL for (int v = 0; v < V; v++) values[v] = load(b + k * b_stride + v * LANES);
    UNROLL for (int r = 0; r < R; r++) {
      const Vec factor = splat(a[r * a_stride + k]);
      UNROLL for (int v = 0; v < V; v++) total[r][v] += factor * values[v];
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) {
    store(c + r * c_stride + v * LANES, total[r][v]);
  }
}

// c += a b: [rows, depth] x [depth, columns]. `lower`: row r of a is zero from column r + 1 on.
void add_product(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c,
                 int64_t c_stride, int64_t rows, int64_t depth, int64_t columns, bool lower) {
  for (int64_t n = 0; n < columns;) {
    const int64_t left = columns - n;
    int64_t r = 0;
    auto block = [&](auto count, auto vectors) {
      for (; r + count <= rows; r += count) {
        const int64_t deep = lower && r + count < depth ? r + count : depth;
        outer<count, vectors>(a + r * a_stride, a_stride, b + n, b_stride, deep,
                              c + r * c_stride + n, c_stride);
      }
    };
    if (left >= 4 * LANES) {
      block(std::integral_constant<int, 6>{}, std::integral_constant<int, 4>{});
      block(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{});
      n += 4 * LANES;
    } else if (left >= LANES) {
      block(std::integral_constant<int, 6>{}, std::integral_constant<int, 1>{});
      block(std::integral_constant<int, 1>{}, std::integral_constant<int, 1>{});
      n += LANES;
    } else {
      for (; r < rows; r++) {
        Vec total = load(c + r * c_stride + n, left);
        for (int64_t k = 0; k < depth; k++) {
          total += a[r * a_stride + k] * load(b + k * b_stride + n, left);
        }
        store(c + r * c_stride + n, total, left);
      }
      n = columns;
    }
  }
}

// y[b, r] = x[b] . w[r]: rows of both are `in` long.
void dots(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride,
          int64_t outputs, int64_t in, float* y, int64_t y_stride) {
  int64_t o = 0;
  auto weights = [&](auto count) {
    for (; o + count <= outputs; o += count) {
      int64_t b = 0;
      auto block = [&](auto several) {
        for (; b + several <= rows; b += several) {
          tile<float, count, several>(x + b * x_stride, x_stride, w + o * w_stride, w_stride, in,
                                      y + b * y_stride + o, y_stride);
        }
      };
      block(std::integral_constant<int, 6>{});
      block(std::integral_constant<int, 1>{});
    }
  };
  weights(std::integral_constant<int, 4>{});
  weights(std::integral_constant<int, 1>{});
}

// One head of one row, chunk after chunk: inside a chunk the recurrence is a masked matrix product
// (Dao and Gu, 2024), between chunks only the state is passed on.
template <class T>
void scan(const Mamba2Prefill& a, int64_t row, int64_t head) {
  struct Memory {};
  const int64_t P = a.head_dim, N = a.d_state, most = a.chunk, channels = a.channels();
  const int64_t group = head / (a.heads / a.groups), size = P * N;
  float* state = scratch<float, Memory>(size + most * (most + 2 * P + 3));
  float* weights = state + size;        // [chunk, chunk]
  float* stepped = weights + most * most;  // [chunk, P]: dt x
  float* ended = stepped + most * P;    // [P, chunk]: dt x, decayed to the chunk's end
  float* steps = ended + most * P;      // [chunk]
  float* decays = steps + most;         // [chunk]: log decay from the chunk's entry
  float* factors = decays + most;       // [chunk]
  const int64_t place = head * size;
  auto slot = [&](int64_t id) { return static_cast<T*>(a.ssm_pool) + id * a.ssm_stride + place; };
  auto keep = [&](int64_t id) {
    runs(size, [&](int64_t i, int64_t n) { store_run(slot(id) + i, load_run(state + i, n), n); });
  };
  const T* from = slot(a.read_slots[row]);
  runs(size, [&](int64_t i, int64_t n) {
    store_run(state + i, a.has_initial[row] ? load_run(from + i, n) : Vec{}, n);
  });
  for (int64_t chunk = a.row_chunks[row]; chunk < a.row_chunks[row + 1]; chunk++) {
    const int64_t start = a.chunk_starts[chunk], L = a.chunk_starts[chunk + 1] - start;
    const float* x = a.convolved + start * channels + head * P;
    const float* B = a.convolved + start * channels + a.inner() + group * N;
    const float* C = B + a.groups * N;
    float* y = a.y + start * a.inner() + head * P;
    double total = 0.0;  // a long sum of logarithms would lose the small ones in float32
    for (int64_t t = 0; t < L; t++) {
      const float raw = a.zxbcdt[(start + t) * a.stride + a.inner() + channels + head];
      steps[t] = step_size(raw + a.dt_bias[head], a.dt_low, a.dt_high);
      total += steps[t] * a.A[head];
      decays[t] = static_cast<float>(total);
    }
    const float last = decays[L - 1];
    const float* scores = a.scores + (chunk * a.groups + group) * most * most;
    for (int64_t i = 0; i < L; i++) {
      runs(i + 1, [&](int64_t j, int64_t n) {
        Vec weight = exp(decays[i] - load_run(decays + j, n)) * load_run(scores + i * most + j, n);
        store_run(weights + i * most + j, weight, n);
      });
      memset(weights + i * most + i + 1, 0, (L - i - 1) * sizeof(float));
    }
    runs(L, [&](int64_t t, int64_t n) {
      store_run(factors + t, exp(last - load_run(decays + t, n)), n);
    });
    for (int64_t t = 0; t < L; t++) {
      for (int64_t p = 0; p < P; p++) {
        const float value = x[t * channels + p] * steps[t];
        stepped[t * P + p] = value;
        ended[p * most + t] = value * factors[t];
      }
    }
    dots(C, channels, L, state, N, P, N, y, a.inner());
    runs(L, [&](int64_t t, int64_t n) { store_run(factors + t, exp(load_run(decays + t, n)), n); });
    for (int64_t t = 0; t < L; t++) {
      float* out = y + t * a.inner();
      runs(P, [&](int64_t p, int64_t n) {
        Vec direct = a.D[head] * load_run(x + t * channels + p, n);
        store_run(out + p, load_run(out + p, n) * factors[t] + direct, n);
      });
    }
    add_product(weights, most, stepped, P, y, a.inner(), L, L, P, true);
    for (int64_t t = 0; t < L && !a.gate_last; t++) {
      float* out = y + t * a.inner();
      const float* z = a.zxbcdt + (start + t) * a.stride + head * P;
      runs(P, [&](int64_t p, int64_t n) {
        store_run(out + p, load_run(out + p, n) * silu(load_run(z + p, n)), n);
      });
    }
    const float decay = expf(last);
    runs(size, [&](int64_t i, int64_t n) {
      store_run(state + i, load_run(state + i, n) * decay, n);
    });
    add_product(ended, most, B, channels, state, N, P, L, N, false);
    if (a.chunk_slots[chunk]) keep(a.chunk_slots[chunk]);
  }
  keep(a.write_slots[row]);
}

void mamba2_prefill(const Mamba2Prefill& a, Team& team) {
  a.conv_dtype == FLOAT32 ? convolve_prompts<float>(a, team) : convolve_prompts<Bf16>(a, team);
  team.each(a.chunks * a.groups, [&](int64_t job) {
    const int64_t chunk = job / a.groups, group = job % a.groups, start = a.chunk_starts[chunk];
    const int64_t L = a.chunk_starts[chunk + 1] - start, channels = a.channels();
    const float* B = a.convolved + start * channels + a.inner() + group * a.d_state;
    dots(B + a.groups * a.d_state, channels, L, B, channels, L, a.d_state,
         a.scores + job * a.chunk * a.chunk, a.chunk);
  });
  team.each(a.rows * a.heads, [&](int64_t job) {
    a.ssm_dtype == FLOAT32 ? scan<float>(a, job / a.heads, job % a.heads)
                           : scan<Bf16>(a, job / a.heads, job % a.heads);
  });
  if (!a.norm_weight) return;
  const float* gates = a.gate_last ? a.zxbcdt : nullptr;
  group_norm(a.y, a.tokens, a.inner(), a.groups, a.norm_weight, a.eps, gates, a.stride, team);
}

}  // namespace

extern "C" {

#define OPERATION(function, Arguments)                         \
  void baton_##function(const void* arguments, void* team) {    \
    function(*static_cast<const Arguments*>(arguments),         \
             *static_cast<Team*>(team));                        \
  }

OPERATION(linear, Linear)
OPERATION(embedding, Embedding)
OPERATION(rms_norm, RmsNorm)
OPERATION(swiglu, SwiGlu)
OPERATION(add_scaled, AddScaled)
OPERATION(select_rows, SelectRows)
OPERATION(rope, Rope)
OPERATION(kv_write, KvWrite)
OPERATION(attn_decode, AttnDecode)
OPERATION(mamba2_step, Mamba2Step)
OPERATION(mamba2_prefill, Mamba2Prefill)

struct Operation {
  void (*run)(const void*, void*);
  const void* arguments;
};

int64_t baton_dots_bf16() {  // whether bfloat16 products are the CPU's own
#ifdef BATON_DOT_BF16
  return 1;
#else
  return 0;
#endif
}

void baton_run(const Operation* operations, int64_t count, int64_t threads) {
  constexpr int64_t MOST_LOOPS = 5;  // of one operation
  const std::unique_ptr<Loop[]> loops(new Loop[MOST_LOOPS * count]);
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    Team team(loops.get());
    for (int64_t i = 0; i < count; i++) operations[i].run(operations[i].arguments, &team);
  }
}

}  // extern "C"
