// Exact nearest rows by hash tables over substrings of the codes (multi-index hashing), as long as that is cheaper than a scan.
// Knows the levels only by their table (hamming.h).
#pragma once

#include "scan.h"

#include <cstddef>
#include <cstdint>

namespace bpr {

constexpr std::size_t kMaxKeyBits = 24;

// `count` tables, each over `width` bits of the code; no bit is in two of them. A row's key in a table is what it has at those bits.
struct Tables {
    const std::uint16_t* bits;      // [count, width], which bits of the code, the key's highest first
    const std::uint32_t* starts;    // [count, 2^width + 1], where each key's rows begin
    const std::uint32_t* rows;      // [count, rows], sorted by (key, row)
    std::size_t count, width;
};

// What things cost, in nanoseconds. scan: what a scan costs a question; infinite: look up, whatever it takes.
struct Costs {
    double probe;    // one key: where its rows begin and end
    double list;     // one row in a key's list
    double visit;    // one row compared with the question
    double scan;
};

enum class Outcome { fell_back, found, corrupt };

struct Effort {
    std::int64_t probes, visited;
    Outcome outcome;
};

// Sorts all rows into tables over the given bits (checked by the caller). starts, rows: as in Tables.
void build_tables(const Codes& codes, const std::uint16_t* bits, std::size_t count, std::size_t width, unsigned threads, Stop& stop,
                  std::uint32_t* starts, std::uint32_t* rows);

// For each question the l nearest live rows by (distance, row), looked up, or from a scan where that is cheaper. 1 <= l <= mask.live.
// Questions are looked up on `workers` threads, and scanned on `threads`. Tables may hold anything: where they do not fit, the outcome
// is `corrupt`, and that row of the results undefined. Results are complete only while stop.reason() is none.
void lookup(const Codes& codes, const Tables& tables, const Codes& questions, std::size_t l, const Mask& mask, const Costs& costs,
            unsigned workers, unsigned threads, Stop& stop, std::int64_t* rows, std::int32_t* distances, Effort* efforts);

}  // namespace bpr
