// Attention of prompts over pages.
#pragma once
#include "products.h"
#include "softmax.h"
#include "team.h"
#include "vectors.h"

namespace {

struct AttnPrefill {
  const float* q;  // [tokens, heads, head_dim], tokens q_stride apart
  const void *k_pool, *v_pool;  // [pages, page_size, kv_heads, head_dim], pages page_stride apart
  const int64_t* tables;        // [rows, any], rows table_stride apart
  const int64_t* starts;        // [rows + 1], first token of each row
  const int64_t* kv_lens;       // [rows], tokens of each row, the new ones last
  float* out;                   // [tokens, heads, head_dim]
  int64_t rows, tokens;  // tokens: starts[rows], for what is read outside of loops
  int64_t heads, kv_heads, head_dim, page_size, q_stride, page_stride, table_stride, dtype;
  int64_t window;         // 0: none
  double scale, softcap;  // softcap 0: none
};

constexpr int64_t QUERIES = 32;  // tokens of one piece of work, with all heads of one KV head

// Queries first .. end (tokens of the row's new ones), for the query heads of one KV head.
template <class T>
void attend_prompt(const AttnPrefill& a, int64_t row, int64_t first, int64_t end, int64_t kv_head) {
  struct Memory {};
  const int64_t D = a.head_dim, per = a.heads / a.kv_heads, most = QUERIES * per;
  const int64_t prefix = a.kv_lens[row] - (a.starts[row + 1] - a.starts[row]);
  const int64_t count = (end - first) * per;
  float* q = scratch<float, Memory>(most * (2 * D + KEYS + 2) + 3 * KEYS * D);
  float* scores = q + most * D;
  float* block = scores + most * KEYS;  // [keys, D]
  float* keys = block + KEYS * D;       // [D, keys]
  float* values = keys + KEYS * D;      // [keys, D]
  const Softmax softmax{values + KEYS * D, values + KEYS * D + most, values + KEYS * D + 2 * most};
  const float scale = static_cast<float>(a.scale), cap = static_cast<float>(a.softcap);
  for (int64_t i = 0; i < count; i++) {
    const int64_t token = a.starts[row] + first + i / per;
    const float* from = a.q + token * a.q_stride + (kv_head * per + i % per) * D;
    runs(D, [&](int64_t d, int64_t n) { store_run(q + i * D + d, load_run(from + d, n) * scale, n); });
    softmax.top[i] = -INFINITY;
    softmax.total[i] = 0.0f;
  }
  memset(softmax.values, 0, count * D * sizeof(float));
  const int64_t last = prefix + end, oldest = prefix + first + 1 - a.window;
  const int64_t* table = a.tables + row * a.table_stride;
  for (int64_t at = a.window && oldest > 0 ? oldest / KEYS * KEYS : 0; at < last; at += KEYS) {
    const int64_t here = last - at < KEYS ? last - at : KEYS;
    memset(block + here * D, 0, (KEYS - here) * D * sizeof(float));
    memset(values + here * D, 0, (KEYS - here) * D * sizeof(float));
    for (int64_t i = 0; i < here; i++) {
      const int64_t place = table[(at + i) / a.page_size] * a.page_stride +
                            ((at + i) % a.page_size * a.kv_heads + kv_head) * D;
      const T* k = static_cast<const T*>(a.k_pool) + place;
      const T* v = static_cast<const T*>(a.v_pool) + place;
      runs(D, [&](int64_t d, int64_t n) {
        store_run(block + i * D + d, load_run(k + d, n), n);
        store_run(values + i * D + d, load_run(v + d, n), n);
      });
    }
    transpose(block, KEYS, D, keys);
    memset(scores, 0, count * KEYS * sizeof(float));
    add_product({q, D, 1}, keys, KEYS, scores, KEYS, count, D, KEYS, D);
    for (int64_t i = 0; i < count; i++) {
      const int64_t position = prefix + first + i / per, seen = position + 1 - at;
      const int64_t hidden = a.window ? position + 1 - a.window - at : 0;
      const int64_t hi = seen < 0 ? 0 : seen < here ? seen : here;
      const int64_t lo = hidden < 0 ? 0 : hidden < hi ? hidden : hi;
      if (lo < hi) {
        weigh(scores + i * KEYS, lo, hi, cap, i, D, softmax);
      } else {
        memset(scores + i * KEYS, 0, KEYS * sizeof(float));
      }
    }
    add_product({scores, KEYS, 1}, values, D, softmax.values, D, count, KEYS, D, KEYS);
  }
  for (int64_t i = 0; i < count; i++) {
    const int64_t token = a.starts[row] + first + i / per;
    float* out = a.out + (token * a.heads + kv_head * per + i % per) * D;
    const float share = 1.0f / softmax.total[i];
    runs(D, [&](int64_t d, int64_t n) {
      store_run(out + d, load_run(softmax.values + i * D + d, n) * share, n);
    });
  }
}

void attn_prefill(const AttnPrefill& a, Team& team) {
  auto blocks = [&](int64_t row) {
    return (a.starts[row + 1] - a.starts[row] + QUERIES - 1) / QUERIES;
  };
  const int64_t most = a.tokens / QUERIES + a.rows;  // blocks: each row's last may be short
  team.each(most * a.kv_heads, [&](int64_t job) {
    int64_t row = a.rows - 1, after = job / a.kv_heads;  // the longest first: from the end
    while (row >= 0 && after >= blocks(row)) after -= blocks(row--);
    if (row < 0) return;
    const int64_t first = (blocks(row) - 1 - after) * QUERIES;
    const int64_t length = a.starts[row + 1] - a.starts[row];
    const int64_t end = first + QUERIES < length ? first + QUERIES : length;
    if (a.dtype == FLOAT32) {
      attend_prompt<float>(a, row, first, end, job % a.kv_heads);
    } else {
      attend_prompt<Bf16>(a, row, first, end, job % a.kv_heads);
    }
  });
}

}  // namespace
