// How threads share the attention of one token a row.
#pragma once
#include "attention_token.h"
#include "team.h"

namespace {

// The heads of all rows. A unit is some heads that one thread takes together: those of one KV head.
struct RowsOfHeads {
  int64_t rows, heads, unit, width;  // unit: heads of one, fewer in the last; width: of their values
  const int64_t* lens;               // [rows], positions; 0 for padding rows
  float* out;                        // [rows, heads, width]
  // [rows, MOST_PARTS, softmax_size(heads, width)], for what the parts of a row come to; null where
  // rows are enough for all threads.
  float* parts;
  int64_t first_key;  // the position that a row's attention begins at; below LEAST_PART
  bool pairs;  // sums hold even channels before odd ones: see PAIRED

  int64_t units() const { return (heads + unit - 1) / unit; }
  int64_t head(int64_t u) const { return u * unit < heads ? u * unit : heads; }
  // Where a part that begins at `from` is attended to from.
  int64_t seen_from(int64_t from) const { return from > first_key ? from : first_key; }
  // The softmax of the heads from the `from`th on, of one part of a row.
  Softmax part(int64_t row, int64_t index, int64_t from) const {
    float* memory = parts + (row * MOST_PARTS + index) * softmax_size(heads, width);
    const Softmax all = softmax_in(memory, heads, width);
    return {all.top + from, all.total + from, all.values + from * width};
  }
};

// Rows are few: the threads divide the parts of a row among them, and its units too where it has
// fewer parts than there are threads.
//
// attend(row, first, end, from, to, softmax): heads first .. end over positions from .. to.
template <class Attend>
void attend_in_parts(const RowsOfHeads& a, Team& team, Attend attend) {
  const int64_t units = a.units(), jobs = team.pieces_of(a.rows, MOST_PARTS * units);
  team.each(a.rows * jobs, [&](int64_t job) {
    const int64_t row = job / jobs, place = job % jobs, positions = a.lens[row];
    const int64_t length = part_length(positions), parts = (positions + length - 1) / length;
    if (!parts) return;
    const int64_t most = (jobs + parts - 1) / parts;
    const int64_t cuts = most < units ? most : units;  // of the units
    const int64_t each = (units + cuts - 1) / cuts;
    const int64_t slices = parts < jobs / cuts ? parts : jobs / cuts;  // of the parts
    const int64_t slice = place / cuts, first = a.head(place % cuts * each);
    const int64_t end = a.head((place % cuts + 1) * each);
    if (slice >= slices || first == end) return;
    for (int64_t i = slice * parts / slices; i < (slice + 1) * parts / slices; i++) {
      const int64_t to = (i + 1) * length < positions ? (i + 1) * length : positions;
      attend(row, first, end, a.seen_from(i * length), to, a.part(row, i, first));
    }
  });
  team.each(a.rows * units, [&](int64_t job) {
    const int64_t row = job / units, first = a.head(job % units), end = a.head(job % units + 1);
    const int64_t positions = a.lens[row], length = part_length(positions);
    float* out = a.out + (row * a.heads + first) * a.width;
    if (positions <= a.first_key) {
      memset(out, 0, (end - first) * a.width * sizeof(float));
      return;
    }
    const Softmax all = a.part(row, 0, first);
    for (int64_t i = 1; i * length < positions; i++) {
      merge_part(a.part(row, i, first), all, end - first, a.width);
    }
    write_means(all, end - first, a.width, a.pairs, out);
  });
}

// As many rows as threads or more: a piece of work is a row, or some of its units.
//
// attend: as above.
template <class Attend>
void attend_whole_rows(const RowsOfHeads& a, Team& team, int64_t each, Attend attend) {
  const int64_t units = a.units(), cuts = (units + each - 1) / each;
  team.each(a.rows * cuts, [&](int64_t job) {
    struct Memory {};
    const int64_t row = job / cuts, first = a.head(job % cuts * each);
    const int64_t end = a.head((job % cuts + 1) * each), heads = end - first;
    const int64_t positions = a.lens[row], length = part_length(positions);
    float* out = a.out + (row * a.heads + first) * a.width;
    if (positions <= a.first_key) {
      memset(out, 0, heads * a.width * sizeof(float));
      return;
    }
    float* memory = scratch<float, Memory>(2 * softmax_size(heads, a.width));
    const Softmax all = softmax_in(memory, heads, a.width);
    const Softmax part = softmax_in(memory + softmax_size(heads, a.width), heads, a.width);
    attend(row, first, end, a.first_key, length < positions ? length : positions, all);
    for (int64_t from = length; from < positions; from += length) {
      attend(row, first, end, from, from + length < positions ? from + length : positions, part);
      merge_part(part, all, heads, a.width);
    }
    write_means(all, heads, a.width, a.pairs, out);
  });
}

// each: units of a row that one thread takes together where rows are many.
template <class Attend>
void attend_rows(const RowsOfHeads& a, Team& team, int64_t each, Attend attend) {
  a.parts ? attend_in_parts(a, team, attend) : attend_whole_rows(a, team, each, attend);
}

}  // namespace
