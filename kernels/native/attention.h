// Keys and values into pages, and attention of one token a row over them.
#pragma once
#include "attention_rows.h"
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
  const int64_t* nodes;         // [rows], see Branch; null: there are no trees
  float* out;                   // [rows, heads, head_dim]
  float* parts;                 // of RowsOfHeads
  int64_t rows, heads, kv_heads, head_dim, page_size, q_stride, page_stride, table_stride, dtype;
  int64_t first_key;  // of RowsOfHeads
  double scale;
};

template <class T>
void attn_decode_as(const AttnDecode& a, Team& team) {
  const int64_t D = a.head_dim, per = a.heads / a.kv_heads;
  const RowsOfHeads rows{a.rows,  a.heads, per,     D,
                         a.kv_lens, a.out, a.parts, a.first_key, paired<T>(D, D)};
  auto attend = [&](int64_t row, int64_t first, int64_t end, int64_t from, int64_t to,
                    const Softmax& softmax) {
    const Branch branch = Branch::of(a.nodes, row, a.kv_lens[row]);
    auto positions = [&](const void* pool) {
      return Positions<T>{static_cast<const T*>(pool) + first / per * D,
                          a.tables + a.table_rows[row] * a.table_stride, a.page_size, a.page_stride,
                          a.kv_heads * D, (end - first) / per * D, branch};
    };
    const TokenHeads heads{a.q + row * a.q_stride + first * D, (end - first) / per, per, D, D,
                           static_cast<float>(a.scale)};
    attend_part(heads, positions(a.k_pool), positions(a.v_pool), from, to, a.kv_lens[row],
                softmax);
  };
  attend_rows(rows, team, team.share_of(a.rows, a.kv_heads), attend);
}

void attn_decode(const AttnDecode& a, Team& team) {
  a.dtype == FLOAT32 ? attn_decode_as<float>(a, team) : attn_decode_as<Bf16>(a, team);
}

}  // namespace
