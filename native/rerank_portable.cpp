// Scores in plain C++ for any machine, and the truth that every other level is tested against: a look-up a nibble.
//
// Every sum is made in one fixed order, without fused multiply-add (-ffp-contract=off): the shares of a byte, high nibble
// first; then byte i on running sum i % kLanes; then the running sums by pairs. So scores are the same bits on every machine.
#include "hamming.h"

#include <cstring>

namespace bpr {
namespace {

constexpr std::size_t kLanes = 8;    // independent sums: hides the latency of an addition, and rounds less

// Nibbles of two planes out of a byte of signs and one of magnitudes, for all bytes of a word: `first` has the first two
// dimensions of each half byte, `second` the other two, signs above magnitudes.
struct Nibbles {
    std::uint64_t first, second;
    Nibbles(std::uint64_t signs, std::uint64_t large)
        : first((signs & kUpper) | (large >> 2 & ~kUpper)), second((signs << 2 & kUpper) | (large & ~kUpper)) {}
    static constexpr std::uint64_t kUpper = 0xCCCCCCCCCCCCCCCCull;
};

// What a byte adds to its row's score, for byte `byte` of the words.
template <int P>
float share(const float* table, std::uint64_t signs, std::uint64_t large, unsigned byte) {
    const unsigned low = byte * 8, high = low + 4;
    if constexpr (P == 1) return table[signs >> high & 15] + table[16 + (signs >> low & 15)];
    const Nibbles n(signs, large);
    return (table[n.first >> high & 15] + table[16 + (n.second >> high & 15)]) +
           (table[32 + (n.first >> low & 15)] + table[48 + (n.second >> low & 15)]);
}

template <int P>
float score(const float* table, const std::uint8_t* signs, const std::uint8_t* large, std::size_t bytes) {
    float s[kLanes] = {};
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        std::uint64_t word, sizes = 0;
        std::memcpy(&word, signs + i, 8);
        if constexpr (P == 2) std::memcpy(&sizes, large + i, 8);
        for (unsigned lane = 0; lane < kLanes; ++lane, table += P * 32) s[lane] += share<P>(table, word, sizes, lane);
    }
    for (unsigned lane = 0; i < bytes; ++i, ++lane, table += P * 32) s[lane] += share<P>(table, signs[i], P == 2 ? large[i] : 0, 0);
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

}  // namespace

void row_scores_portable(const Shares& shares, const std::int64_t* rows, std::size_t count, float* scores) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = static_cast<std::size_t>(rows[i]) * shares.bytes;
        scores[i] = shares.magnitudes == nullptr ? score<1>(shares.tables, shares.signs + at, nullptr, shares.bytes)
                                                 : score<2>(shares.tables, shares.signs + at, shares.magnitudes + at, shares.bytes);
    }
}

}  // namespace bpr
