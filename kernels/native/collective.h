// What the ranks of a replica exchange, through memory that their processes share.
//
// The memory begins with MARKS int32 words, a cache line a rank: how many meetings that rank has
// come to, and for the last even and the last odd one what it has brought there: a rank that is a
// meeting ahead or behind would add its part to those of another layer. One more line holds a word
// that ends all waits. Behind them lie, for even and for odd meetings, `capacity` floats of each
// rank. A rank that writes for meeting n + 2 has seen all others come to n + 1, so nobody still reads
// what it wrote for n.
//
// Waits block in the kernel (futex). They end when the other ranks have come, when the word is set,
// when the parent process is gone, and after `limit` seconds; then `state[1]` is 1. Where another
// rank has brought something else, it is 2. Once it is set, every later collective returns at once.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>

#include "team.h"

namespace {

struct Ranks {
  int32_t* shared;
  int64_t* state;  // of this process: [meetings, how one has failed]
  int64_t rank, size, capacity, parent;  // parent: a process, or 0
  double limit;

  std::atomic<int32_t>* mark(int64_t of) const {
    return reinterpret_cast<std::atomic<int32_t>*>(shared + LINE * of);
  }

  std::atomic<int32_t>* brought(int64_t meeting, int64_t of) const {
    return mark(of) + 1 + (meeting & 1);
  }

  float* data(int64_t meeting, int64_t of) const {
    float* first = reinterpret_cast<float*>(shared + LINE * (MOST + 1));
    return first + ((meeting & 1) * size + of) * capacity;
  }

  bool failed() const { return state[1]; }

  // Tell the others that this rank's part of the next meeting lies in data(), and wait for theirs.
  // brings: the same number on all ranks that come for the same
  bool meet(int64_t brings) {
    const int32_t meeting = static_cast<int32_t>(++state[0]);
    brought(meeting, rank)->store(static_cast<int32_t>(brings), std::memory_order_relaxed);
    mark(rank)->store(meeting, std::memory_order_release);
    wake(mark(rank));
    const double deadline = now() + limit;
    for (int64_t other = 0; other < size; other++) {
      for (;;) {
        const int32_t seen = mark(other)->load(std::memory_order_acquire);
        if (static_cast<int32_t>(static_cast<uint32_t>(seen) - static_cast<uint32_t>(meeting)) >= 0)
          break;
        if (mark(MOST)->load(std::memory_order_relaxed) || now() > deadline ||
            (parent && getppid() != parent)) {
          state[1] = 1;
          return false;
        }
        const timespec slice{0, SLICE};
        syscall(SYS_futex, mark(other), FUTEX_WAIT, seen, &slice, nullptr, 0);
      }
      if (brought(meeting, other)->load(std::memory_order_relaxed) != brings) {
        state[1] = 2;
        return false;
      }
    }
    return true;
  }

  static constexpr int64_t MOST = 63;  // ranks

 private:
  static constexpr int64_t LINE = 16;      // words of a cache line
  static constexpr int64_t SLICE = 20000000;  // nanoseconds between two looks at what ends a wait

  static void wake(std::atomic<int32_t>* word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
};

struct AllReduce {
  float* x;  // [size], the sum of all ranks' on return
  int32_t* shared;
  int64_t* state;
  int64_t count, rank, ranks, capacity, parent;
  double limit;
};

// Every rank adds up all parts in the order of the ranks, so all have the same bits.
void all_reduce(const AllReduce& a, Team& team) {
  team.each(1, [&](int64_t) {
    Ranks ranks{a.shared, a.state, a.rank, a.ranks, a.capacity, a.parent, a.limit};
    for (int64_t first = 0; first < a.count && !ranks.failed(); first += a.capacity) {
      const int64_t n = a.count - first < a.capacity ? a.count - first : a.capacity;
      float* x = a.x + first;
      const int64_t meeting = a.state[0] + 1;
      std::copy(x, x + n, ranks.data(meeting, a.rank));
      if (!ranks.meet(2 * n)) return;
      const float* part = ranks.data(meeting, 0);
      std::copy(part, part + n, x);
      for (int64_t other = 1; other < a.ranks; other++) {
        part = ranks.data(meeting, other);
        for (int64_t i = 0; i < n; i++) x[i] += part[i];
      }
    }
  });
}

struct GatherColumns {
  const float* x;         // [rows, widths[rank]]
  float* out;             // [rows, sum of widths], written on rank 0
  const int64_t* widths;  // [ranks], none over capacity
  int32_t* shared;
  int64_t* state;
  int64_t rows, rank, ranks, capacity, parent;
  double limit;
};

void gather_columns(const GatherColumns& a, Team& team) {
  team.each(1, [&](int64_t) {
    Ranks ranks{a.shared, a.state, a.rank, a.ranks, a.capacity, a.parent, a.limit};
    int64_t widest = 0, total = 0;
    for (int64_t r = 0; r < a.ranks; r++) {
      widest = std::max(widest, a.widths[r]);
      total += a.widths[r];
    }
    const int64_t at_once = a.capacity / widest, width = a.widths[a.rank];
    for (int64_t first = 0; first < a.rows && !ranks.failed(); first += at_once) {
      const int64_t n = std::min(at_once, a.rows - first);
      const int64_t meeting = a.state[0] + 1;
      const float* x = a.x + first * width;
      std::copy(x, x + n * width, ranks.data(meeting, a.rank));
      if (!ranks.meet(2 * n + 1)) return;
      if (a.rank) continue;
      float* out = a.out + first * total;
      for (int64_t r = 0; r < a.ranks; out += a.widths[r++]) {
        const float* part = ranks.data(meeting, r);
        for (int64_t row = 0; row < n; row++, part += a.widths[r])
          std::copy(part, part + a.widths[r], out + row * total);
      }
    }
  });
}

}  // namespace
