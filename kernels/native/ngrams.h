// Guesses from a sequence's own tokens.
#pragma once
#include <cstdint>

#include "team.h"

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

}  // namespace
