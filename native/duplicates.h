// Groups of rows that are the same but for a few bits. Knows the levels only by their table (hamming.h).
#pragma once

#include "scan.h"

#include <cstddef>
#include <cstdint>

namespace bpr {

// Joins all live rows whose distance is at most `radius`, and those they are joined with. groups[row] gets the lowest row of its
// group; a row that may not be returned is alone. Rows stay below 2^32. Complete only while stop.reason() is none.
void duplicates(const Codes& codes, std::size_t radius, const Mask& mask, unsigned threads, Stop& stop, std::int64_t* groups);

}  // namespace bpr
