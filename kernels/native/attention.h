// Keys and values into pages, and attention of one token a row over them.
#pragma once
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

}  // namespace
