// How the threads of a run share a loop.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace {

// A loop's work, shared by the threads. Apart, so that two loops share no cache line.
struct alignas(128) Loop {
  std::atomic<int64_t> next{0}, done{0};
};

// One thread's view of a run.
//
// A loop ends when its work is done, not when all threads have reached its end. A thread that the
// system suspends between two pieces of work therefore delays no other. (OpenMP's barrier waits for
// it: on cores shared with other processes a step of 300 barriers took ten times as long.)
//
// A thread may thus reach an operation after it is done, when its inputs and scratch serve others.
// Outside of loops an operation may read nothing but its arguments.
class Team {
 public:
  Team(Loop* loops, int64_t threads) : loop_(loops), threads_(threads) {}

  // Of `parts` that each of `items` has, how many make one piece of work: all of them, or as few as
  // give every thread two pieces.
  int64_t share_of(int64_t items, int64_t parts) const {
    const int64_t pieces = 2 * threads_, wanted = (pieces + items - 1) / (items ? items : 1);
    const int64_t cuts = wanted < parts ? wanted : parts;
    return cuts > 1 ? (parts + cuts - 1) / cuts : parts;
  }

  // Pieces of work that each of `items` is cut into, where items are few and of unequal sizes: as
  // many as give every thread PIECES of them, at most `most`.
  int64_t pieces_of(int64_t items, int64_t most) const {
    const int64_t wanted = (PIECES * threads_ + items - 1) / (items ? items : 1);
    return wanted < most ? wanted : most;
  }

  // body(i) for every i below `count`, each by one thread.
  template <class F>
  void each(int64_t count, F body) {
    Loop& loop = *loop_++;
    for (;;) {
      const int64_t i = loop.next.load(std::memory_order_relaxed) < count
                            ? loop.next.fetch_add(1, std::memory_order_relaxed)
                            : count;
      if (i >= count) break;
      body(i);
      loop.done.fetch_add(1, std::memory_order_release);
    }
    for (int spins = 0; loop.done.load(std::memory_order_acquire) < count; spins++) {
      if (spins >= SPINS) sched_yield();
    }
  }

 private:
  static constexpr int64_t PIECES = 8;
  static constexpr int SPINS = 2000;  // some microseconds
  Loop* loop_;
  int64_t threads_;
};

}  // namespace
