// Plain C++ for any machine, and the truth that every other level is tested against.
#include "hamming.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace bpr {
namespace {

// One word as a vector of one lane, so that hamming_impl.h can index it.
struct V {
    std::uint64_t lane;
    std::uint64_t operator[](std::size_t) const { return lane; }
    V& operator^=(V o) { return lane ^= o.lane, *this; }
    V& operator&=(V o) { return lane &= o.lane, *this; }
    V& operator|=(V o) { return lane |= o.lane, *this; }
};
inline V operator^(V a, V b) { return {a.lane ^ b.lane}; }
inline V operator&(V a, V b) { return {a.lane & b.lane}; }
inline V operator&(V a, std::uint64_t b) { return {a.lane & b}; }
inline V operator|(V a, V b) { return {a.lane | b.lane}; }
inline V operator~(V a) { return {~a.lane}; }
inline V operator>>(V a, unsigned n) { return {a.lane >> n}; }
inline V operator<<(V a, unsigned n) { return {a.lane << n}; }

inline V majority(V a, V b, V c) { return (a & b) | ((a ^ b) & c); }

// carry, sum = a + b + sum
inline void full_add(V& carry, V& sum, V a, V b) {
    const V half = a ^ b;
    carry = (a & b) | (half & sum);
    sum ^= half;
}

#include "hamming_impl.h"

void row_distances(const std::uint8_t* codes, std::size_t rows, std::size_t bytes, const std::uint8_t* question,
                   std::uint16_t* distances) {
    for (std::size_t r = 0; r < rows; ++r, codes += bytes) {
        unsigned distance = 0;
        std::size_t i = 0;
        for (; i + 8 <= bytes; i += 8) {
            std::uint64_t a, b;
            std::memcpy(&a, codes + i, 8);
            std::memcpy(&b, question + i, 8);
            distance += std::popcount(a ^ b);
        }
        for (; i < bytes; ++i) distance += std::popcount(static_cast<unsigned>(codes[i] ^ question[i]));
        distances[r] = static_cast<std::uint16_t>(distance);
    }
}

}  // namespace

const Kernels kPortable = {"portable", kTileRows, sizeof(V), kChunkInputs, row_distances, tile_distances};

}  // namespace bpr
