// Guesses from a sequence's own tokens.
#pragma once
#include <cstdint>

#include "team.h"
#include "vectors.h"

namespace {

struct GuessNgrams {
  const int32_t* tokens;       // [any, length], rows stride apart
  const int64_t *rows, *ends;  // [count], of tokens; tokens of each sequence
  int64_t *guesses, *found;    // [count, most], [count]: most, or 0
  int64_t count, stride, searched, shortest, longest, most;
};

// Where the sequence's newest tokens, as many as possible, stand last before its end: the place of
// the token behind them. -1: nowhere are `shortest` of them.
inline int64_t last_place(const GuessNgrams& a, const int32_t* text, int64_t length) {
  int64_t best = a.shortest - 1, at = -1;
  const int32_t newest = text[length - 1];
  for (int64_t place = length - 1; place > best && best < a.longest; place--) {
    if (text[place - 1] != newest) continue;
    int64_t same = 1;
    const int64_t most = place < a.longest ? place : a.longest;
    while (same < most && text[place - 1 - same] == text[length - 1 - same]) same++;
    if (same > best) best = same, at = place;
  }
  return at;
}

void guess_ngrams(const GuessNgrams& a, Team& team) {
  team.each(a.count, [&](int64_t row) {
    const int64_t end = a.ends[row], length = end < a.searched ? end : a.searched;
    const int32_t* text = a.tokens + a.rows[row] * a.stride + end - length;
    const int64_t at = last_place(a, text, length);
    a.found[row] = at < 0 ? 0 : a.most;
    for (int64_t i = 0; i < a.most; i++) {  // what repeats itself goes on repeating itself
      a.guesses[row * a.most + i] = at < 0 ? 0 : text[at + i % (length - at)];
    }
  });
}

struct GuessTree {
  const int32_t* tokens;       // [any, length], rows stride apart
  const int64_t *rows, *ends;  // [count], of tokens; tokens of each sequence
  int64_t *guesses, *nodes, *found;  // [count, most] twice, [count]
  int64_t count, stride, searched, shortest, longest, most, branches, depth;
};

constexpr int64_t LOOKED_AT = 64;  // places of one sequence that are compared, at most

// Up to `branches` places, the behind of whose n-gram differs from that of those before it in the
// list: those of longer n-grams first, and of them the last.
inline int64_t several_places(const GuessTree& a, const int32_t* text, int64_t length,
                              int64_t* places) {
  const int32_t newest = text[length - 1];
  int64_t found = 0, looked = 0;
  auto behind = [&](int64_t at, int64_t i) { return text[at + i % (length - at)]; };
  for (int64_t size = a.longest; size >= a.shortest && found < a.branches; size--) {
    for (int64_t at = length - 1; at >= size && found < a.branches && looked < LOOKED_AT; at--) {
      if (text[at - 1] != newest) continue;
      int64_t same = 1;
      const int64_t most = at < a.longest ? at : a.longest;
      while (same < most && text[at - 1 - same] == text[length - 1 - same]) same++;
      if (same != size) continue;
      looked++;
      bool known = false;
      for (int64_t k = 0; k < found && !known; k++) {
        int64_t i = 0;
        while (i < a.depth && behind(places[k], i) == behind(at, i)) i++;
        known = i == a.depth;
      }
      if (!known) places[found++] = at;
    }
  }
  return found;
}

// The tree of what follows at several places, level by level: a node a token that none of its
// level has behind the same parent.
void guess_tree(const GuessTree& a, Team& team) {
  team.each(a.count, [&](int64_t row) {
    struct Places {};
    const int64_t end = a.ends[row], length = end < a.searched ? end : a.searched;
    const int32_t* text = a.tokens + a.rows[row] * a.stride + end - length;
    int64_t* places = scratch<int64_t, Places>(2 * a.branches);
    int64_t* reached = places + a.branches;  // the node that each place has got to; -1: left out
    const int64_t branches = several_places(a, text, length, places);
    int64_t *guesses = a.guesses + row * a.most, *nodes = a.nodes + row * a.most, count = 0;
    for (int64_t i = 0; i < a.most; i++) guesses[i] = nodes[i] = 0;
    for (int64_t k = 0; k < branches; k++) reached[k] = 0;
    for (int64_t depth = 0; depth < a.depth; depth++) {
      const int64_t level = count;
      for (int64_t k = 0; k < branches; k++) {
        if (reached[k] < 0) continue;
        const int64_t token = text[places[k] + depth % (length - places[k])];
        const int64_t path = reached[k] ? nodes[reached[k] - 1] : 1;
        int64_t i = level;
        while (i < count && (guesses[i] != token || (nodes[i] ^ (2LL << i)) != path)) i++;
        if (i == count && count < a.most) {
          guesses[i] = token, nodes[i] = path | 2LL << i;
          count++;
        }
        reached[k] = i < count ? i + 1 : -1;
      }
    }
    a.found[row] = count;
  });
}

}  // namespace
