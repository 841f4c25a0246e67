// Whole searches over all codes: tiles, threads, selection, deadline. Knows the levels only by their table (hamming.h).
#pragma once

#include "mask.h"
#include "pool.h"

#include <cstddef>
#include <cstdint>

namespace bpr {

struct Codes {
    const std::uint8_t* data;    // [rows, bytes], row-major, any alignment
    std::size_t rows, bytes;
};

// As many threads as a comparison of that many bytes (a code once for each question) is worth waking.
unsigned useful_threads(unsigned threads, std::size_t bytes);

// For each question the l nearest live rows by (distance, row). l <= mask.live. Results are complete only while
// stop.reason() is none. rows, distances: [questions, l].
void scan(const Codes& codes, const Codes& questions, std::size_t l, const Mask& mask, unsigned threads, Stop& stop,
          std::int64_t* rows, std::int32_t* distances);

// Reads every byte once, as fast as the threads can: the physical limit that a scan is compared with.
std::uint64_t read_all(const Codes& codes, unsigned threads, Stop& stop);

}  // namespace bpr
