// Keys and values into pages, and attention of one token a row over them.
#pragma once
#include "attention_token.h"
#include "team.h"
#include "vectors.h"

namespace {

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
  const int32_t* tables;        // [any, any], rows table_stride apart
  const int64_t* table_rows;    // [rows], row of `tables` of each row
  const int64_t* kv_lens;       // [rows]; 0 for padding rows
  float* out;                   // [rows, heads, head_dim]
  int64_t rows, heads, kv_heads, head_dim, page_size, q_stride, page_stride, table_stride, dtype;
  double scale;
};

// KV heads first .. first + count of one row.
template <class T>
void attend(const AttnDecode& a, int64_t row, int64_t first, int64_t count) {
  const int64_t D = a.head_dim, end = a.kv_lens[row], per = a.heads / a.kv_heads;
  auto positions = [&](const void* pool) {
    return Positions<T>{static_cast<const T*>(pool) + first * D, a.tables + a.table_rows[row] * a.table_stride,
                        a.page_size, a.page_stride, a.kv_heads * D};
  };
  const TokenHeads heads{a.q + row * a.q_stride + first * per * D,
                         a.out + (row * a.heads + first * per) * D,
                         count, per, D, D,
                         static_cast<float>(a.scale)};
  attend_token(heads, positions(a.k_pool), positions(a.v_pool), end);
}

void attn_decode(const AttnDecode& a, Team& team) {
  // A head's sums do not depend on how many heads share its piece of work.
  const int64_t each = team.share_of(a.rows, a.kv_heads);
  const int64_t parts = (a.kv_heads + each - 1) / each;
  team.each(a.rows * parts, [&](int64_t job) {
    const int64_t row = job / parts, first = job % parts * each;
    const int64_t count = a.kv_heads - first < each ? a.kv_heads - first : each;
    if (a.dtype == FLOAT32) {
      attend<float>(a, row, first, count);
    } else {
      attend<Bf16>(a, row, first, count);
    }
  });
}

}  // namespace
