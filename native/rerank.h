// The paper's second stage: a float question against ±1 (or ±level) codes, straight from the packed bits.
#pragma once

#include "scan.h"

namespace bpr {

// One plane: a passage's value in a dimension is ±1 by its sign bit. Two planes: ±levels[0], or ±levels[1] where the
// magnitude bit is set too.
struct Planes {
    Codes signs;
    const std::uint8_t* magnitudes;    // [rows, bytes] like the signs, or nullptr
    float levels[2];
    const std::uint32_t* positions = nullptr;    // [rows], where each row's codes stand (cells.h); nullptr: in the order of rows
};

struct FloatQuestions {
    const float* data;    // [count, signs.bytes * 8]; finite, and so small that no sum of theirs overflows
    std::size_t count;
};

// For each question the best k of its candidate rows by (score descending, row). rows_in: [questions, l]; k <= l. Throws
// std::invalid_argument where a position is outside the planes.
void rerank(const Planes& planes, const FloatQuestions& questions, const std::int64_t* rows_in, std::size_t l, std::size_t k,
            unsigned threads, Stop& stop, std::int64_t* rows, float* scores);

// The same over every live row: the paper's search without candidate generation. k <= mask.live.
void scan_scores(const Planes& planes, const FloatQuestions& questions, std::size_t k, const Mask& mask, unsigned threads,
                 Stop& stop, std::int64_t* rows, float* scores);

}  // namespace bpr
