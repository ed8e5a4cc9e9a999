// Softmax over positions that come a block at a time.
#pragma once
#include "vectors.h"

namespace {

constexpr int64_t KEYS = 64;     // positions that they meet at once

// The largest so far of each query's scores, what their exponentials add up to, and the values
// weighted by those: a query's sums are taken position after position from the first block that it
// sees on, whatever other queries there are.
struct Softmax {
  float *top, *total, *values;
};

// Turns the scores of one query against a block of keys into weights, in place. The query sees the
// first `seen` keys, at least one; the weights of the others are zero. Not inlined: one code, so the
// same bits for a prompt and for a step.
__attribute__((noinline)) void weigh(float* scores, int64_t seen, int64_t query, int64_t width,
                  const Softmax& softmax) {
  float top = softmax.top[query];
  int64_t next = 0;
  if (seen >= LANES) {
    Vec tops = splat(top);
    for (; next + LANES <= seen; next += LANES) {
      const Vec some = load(scores + next);
      tops = some > tops ? some : tops;
    }
    top = largest(tops);
  }
  for (; next < seen; next++) top = scores[next] > top ? scores[next] : top;
  Vec added = {};
  runs(seen, [&](int64_t i, int64_t n) {
    const Vec weights = exp(load_run(scores + i, n) - top);
    store_run(scores + i, weights, n);
    added += load_run(scores + i, n);  // no lane past the run
  });
  memset(scores + seen, 0, (KEYS - seen) * sizeof(float));
  if (top > softmax.top[query]) {
    const float faded = expf(softmax.top[query] - top);
    float* values = softmax.values + query * width;
    softmax.total[query] *= faded;
    runs(width, [&](int64_t i, int64_t n) {
      store_run(values + i, load_run(values + i, n) * faded, n);
    });
    softmax.top[query] = top;
  }
  softmax.total[query] += sum(added);
}

}  // namespace
