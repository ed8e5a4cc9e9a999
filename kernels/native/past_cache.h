// Bytes written past the caches.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

// Lines that are written whole are not read first, and push nothing else out: half of the memory's
// work for a target that nobody reads soon. All is visible to other threads when it returns.
inline void copy_past_cache(char* to, const char* from, int64_t bytes) {
#ifdef __AVX__
  constexpr int64_t LINE = 64, VECTOR = 32;
  const int64_t head = std::min(bytes, -reinterpret_cast<intptr_t>(to) & (LINE - 1));
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= LINE; bytes -= LINE, to += LINE, from += LINE) {
    for (int64_t i = 0; i < LINE; i += VECTOR) {
      const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), part);
    }
  }
  _mm_sfence();
#endif
  memcpy(to, from, bytes);
}

}  // namespace
