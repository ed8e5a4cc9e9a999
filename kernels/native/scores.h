// Scores of many queries against a block of keys, with the bits of a decode step's.
#pragma once
#include <type_traits>

#include "softmax.h"
#include "vectors.h"

namespace {

// The order in which a score's products are added: channel after channel; or as a decode step does,
// whose vectors hold channels: each lane's on its own, then the lanes in the order of sum(). A lane
// has every 16th channel, or of each 32 channels two beside each other (see PAIRED).
enum class Order { CHANNELS, LANES, PAIRED_LANES };

// The first lanes of pairs (a lane, and the second one behind it) in an order in which sum() adds
// neighbouring pairs, then fours and eights.
constexpr int LANE_PAIRS[8] = {0, 1, 8, 9, 4, 5, 12, 13};

// scores[r, n] = q[r] keys[n], of R queries and a block of keys [width, KEYS]. A vector holds keys;
// what a step has in a lane is here a sum of its own. Two lanes are summed at once, and wait in
// memory until their neighbours are complete: one lane at a time, it would be twice the stores.
template <Order ORDER, int R>
inline void score_tile(const float* q, const float* keys, int64_t width, float* scores) {
  constexpr int V = KEYS / LANES, LEVELS = 3;
  constexpr int64_t BESIDE = ORDER == Order::PAIRED_LANES ? 2 : 1, STEP = LANES * BESIDE;
  Vec waiting[LEVELS][R][V];
  for (int i = 0; i < LANES / 2; i++) {
    Vec one[R][V] = {}, other[R][V] = {};
    auto add = [&](Vec(&total)[R][V], int64_t k) __attribute__((always_inline)) {
      Vec some[V];
      UNROLL for (int v = 0; v < V; v++) some[v] = load(keys + k * KEYS + v * LANES);
      UNROLL for (int r = 0; r < R; r++) {
        const Vec factor = splat(q[r * width + k]);
        UNROLL for (int v = 0; v < V; v++) total[r][v] += factor * some[v];
      }
    };
    int64_t first = LANE_PAIRS[i] * BESIDE;
    for (; first + 2 * BESIDE < width; first += STEP) {
      UNROLL for (int64_t k = first; k < first + BESIDE; k++) {
        add(one, k);
        add(other, k + 2 * BESIDE);
      }
    }
    if (first < width) add(one, first);  // never of paired lanes: their widths are whole
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) one[r][v] += other[r][v];
    int level = 0;
    for (; i >> level & 1; level++) {
      UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) {
        one[r][v] = waiting[level][r][v] + one[r][v];
      }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) {
      if (level < LEVELS) {
        waiting[level][r][v] = one[r][v];
      } else {
        store(scores + r * KEYS + v * LANES, one[r][v]);
      }
    }
  }
}

// scores [count, KEYS] of queries [count, width]. ORDER: not CHANNELS
template <Order ORDER>
void score_keys(const float* q, const float* keys, int64_t width, int64_t count, float* scores) {
  int64_t r = 0;
  auto tiles = [&](auto rows) {
    for (; r + rows <= count; r += rows) {
      score_tile<ORDER, rows>(q + r * width, keys, width, scores + r * KEYS);
    }
  };
  tiles(std::integral_constant<int, 3>{});
  tiles(std::integral_constant<int, 2>{});
  tiles(std::integral_constant<int, 1>{});
}

}  // namespace
