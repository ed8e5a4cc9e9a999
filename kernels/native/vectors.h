// Vectors of 16 floats, what they are stored as, and memory of a thread.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
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

enum DType : int64_t { FLOAT32 = 0, BFLOAT16 = 1 };

#define UNROLL _Pragma("GCC unroll 16")

// Less zero, not plus: the sum of zero and -0 is 0, so the compiler would have to add.
inline Vec splat(float value) { return value - Vec{}; }

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


// 32 values in two loads' worth of work less: those of even place, then those of odd place.
inline void load_pairs(const Bf16* p, Vec& even, Vec& odd) {
  const BitVec bits = *reinterpret_cast<const BitVec*>(p);
  even = reinterpret_cast<Vec>(bits << 16);
  odd = reinterpret_cast<Vec>(bits & 0xffff0000);
}
#define EVEN_PLACES 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_PLACES 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define FIRST_PLACES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LAST_PLACES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

// A loaded value that stays in its register: gcc would load it again for each use.
inline Vec kept(Vec v) {
#ifdef __AVX512F__
  asm("" : "+v"(v));
#endif
  return v;
}

inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

// v in bfloat16, in the upper half of each lane: to the nearest, ties to even; a NaN stays one.
inline BitVec to_bf16(Vec v) {
  const BitVec bits = reinterpret_cast<BitVec>(v);
  const BitVec sums = bits + 0x7fff + ((bits >> 16) & 1);
#ifdef __AVX512F__  // gcc would make a vector of the comparison
  const __mmask16 number = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_ORD_Q);
  const __m512i nan = _mm512_set1_epi32(0x7fc00000), upper = _mm512_set1_epi32(0xffff0000);
  return (BitVec)_mm512_mask_and_epi32(nan, number, (__m512i)sums, upper);
#else
  const BitVec nan = (bits & 0x7fffffff) > 0x7f800000;
  return (sums & 0xffff0000 & ~nan) | (nan & 0x7fc00000);
#endif
}
inline void store(Bf16* p, Vec v) {
  *reinterpret_cast<HalfBits*>(p) = __builtin_convertvector(to_bf16(v) >> 16, HalfBits);
}

// Values as they are after a store and a load.
inline Vec rounded(float, Vec v) { return v; }
inline Vec rounded(Bf16, Vec v) { return reinterpret_cast<Vec>(to_bf16(v)); }

// a b + c, rounded once where the CPU can: not left to the compiler, which decides by what is near,
// and may round either product of a sum of two.
inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FP_FAST_FMAF)  // gcc makes vectors of it
  Vec sum;
  UNROLL for (int64_t i = 0; i < LANES; i++) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return sum;
#else
  return a * b + c;
#endif
}

inline float multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
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

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
// Loads and stores by masks, because a copy of unknown length would be a function call.
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline Vec load(const float* p, int64_t n) {
  return (Vec)_mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline Vec load(const Bf16* p, int64_t n) {
  __m256i halves = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}
inline void store(float* p, Vec v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), (__m512)v);
}
#endif

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
  Vec pairs =
      v + __builtin_shufflevector(v, v, 2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
  Vec quads = pairs + __builtin_shufflevector(pairs, pairs, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13,
                                              13, 13, 13);
  return (quads[0] + quads[8]) + (quads[4] + quads[12]);
}

inline float largest(Vec v) {
  auto larger = [](Vec a, Vec b) { return a > b ? a : b; };
  v = larger(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = larger(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = larger(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return v[0];
}

// The sums of four vectors, each taken in the same order: lanes 4 apart last.
inline void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
#define LOW_PAIRS 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_PAIRS 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define LOW_QUADS 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_QUADS 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
  Vec ab = __builtin_shufflevector(a, b, LOW_PAIRS) + __builtin_shufflevector(a, b, HIGH_PAIRS);
  Vec cd = __builtin_shufflevector(c, d, LOW_PAIRS) + __builtin_shufflevector(c, d, HIGH_PAIRS);
  Vec all =
      __builtin_shufflevector(ab, cd, LOW_QUADS) + __builtin_shufflevector(ab, cd, HIGH_QUADS);
  Vec halves = all + __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11,
                                             12, 13, 14, 15);
  Quad low = __builtin_shufflevector(halves, halves, 0, 1, 2, 3);
  Quad high = __builtin_shufflevector(halves, halves, 4, 5, 6, 7);
  *reinterpret_cast<Quad*>(out) = low + high;
}

// x within low .. high, where a NaN stays one; p times 2^n, of whole n; 1 / x to 2 ulp, of x below
// 2^127.
#ifdef __AVX512F__  // gcc would compare and blend, shift and multiply; a division takes ten cycles
inline Vec clamp(Vec x, float low, float high) {
  return (Vec)_mm512_max_ps((__m512)splat(low), _mm512_min_ps((__m512)splat(high), (__m512)x));
}
inline Vec scale_by_power(Vec p, Vec n) { return (Vec)_mm512_scalef_ps((__m512)p, (__m512)n); }
inline Vec reciprocal(Vec x) {
  const Vec rough = (Vec)_mm512_rcp14_ps((__m512)x);
  return rough * (2.0f - x * rough);
}
#else
inline Vec clamp(Vec x, float low, float high) {
  x = x < low ? splat(low) : x;
  return x > high ? splat(high) : x;
}
inline Vec scale_by_power(Vec p, Vec n) {
  return p * reinterpret_cast<Vec>((__builtin_convertvector(n, IntVec) + 127) << 23);
}
inline Vec reciprocal(Vec x) { return 1.0f / x; }
#endif

// exp to 2 ulp, of -87 .. 88: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes').
inline Vec exp_within(Vec x) {
  Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 x 2^23: rounds to an integer
  Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return scale_by_power(p * r * r + r + 1.0f, n);
}
inline Vec exp(Vec x) { return exp_within(clamp(x, -87.0f, 88.0f)); }

inline Vec sigmoid(Vec x) { return reciprocal(1.0f + exp_within(-clamp(x, -87.0f, 87.0f))); }
inline Vec silu(Vec x) {  // below -87 it is as good as zero
  const Vec near = clamp(x, -87.0f, 87.0f), open = reciprocal(1.0f + exp_within(-near));
  return (x < -87.0f ? near : x) * open;
}
// log(1 + exp(x)): the logarithm of 1 + u as 2 artanh(z), z = u / (2 + u), for u of at most one.
// The polynomial is within 2e-8 on 0 .. 1/9 (fitted at Chebyshev's points).
inline Vec softplus(Vec x) {
  const Vec u = exp(x < 0.0f ? x : -x), z = u * reciprocal(2.0f + u), w = z * z;
  Vec p = w * 0.1343377459f + 0.1411697798f;
  p = p * w + 0.2000383543f;
  p = p * w + 0.3333331983f;
  return (x < 0.0f ? Vec{} : x) + 2.0f * (p * w * z + z);
}
inline Vec relu2(Vec x) {  // a NaN stays one
  x = x < 0.0f ? splat(0.0f) : x;
  return x * x;
}

// Memory of the calling thread that lasts until its next call with the same Tag. It begins with a
// line of the cache: a vector that lies across two of them is loaded half as fast.
template <class T, class Tag>
inline T* scratch(int64_t size) {
  constexpr int64_t LINE = sizeof(Vec);
  thread_local std::vector<char> memory;
  const int64_t bytes = size * static_cast<int64_t>(sizeof(T)) + LINE;
  if (static_cast<int64_t>(memory.size()) < bytes) memory.resize(bytes);
  const int64_t at = reinterpret_cast<int64_t>(memory.data());
  return reinterpret_cast<T*>((at + LINE - 1) / LINE * LINE);
}

}  // namespace
