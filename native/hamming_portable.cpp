// Plain C++ for any machine, and the truth that every other level is tested against.
#include "bert.h"
#include "hamming.h"

#include <algorithm>
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
inline V operator-(V a, std::uint64_t b) { return {a.lane - b}; }
inline V operator~(V a) { return {~a.lane}; }
inline V operator>>(V a, unsigned n) { return {a.lane >> n}; }
inline V operator<<(V a, unsigned n) { return {a.lane << n}; }

inline V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
}

inline V load_partial(const std::uint8_t* from, std::size_t bytes) {
    V v{};
    std::memcpy(&v, from, bytes);
    return v;
}

inline V majority(V a, V b, V c) { return (a & b) | ((a ^ b) & c); }

// carry, sum = a + b + sum
inline void full_add(V& carry, V& sum, V a, V b) {
    const V half = a ^ b;
    carry = (a & b) | (half & sum);
    sum ^= half;
}

inline void transpose_words(V*) {}    // one word is its own transpose

#include "hamming_impl.h"

// The sums of 2, 4 and 8 bits side by side; std::popcount without a popcount instruction is a call into a library.
inline unsigned count_ones(std::uint64_t x) {
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full;
    return static_cast<unsigned>(x * 0x0101010101010101ull >> 56);
}

void row_distances(const std::uint8_t* codes, std::size_t rows, std::size_t bytes, const std::uint8_t* question,
                   std::uint16_t* distances) {
    for (std::size_t r = 0; r < rows; ++r, codes += bytes) {
        unsigned distance = 0;
        std::size_t i = 0;
        for (; i + 8 <= bytes; i += 8) {
            std::uint64_t a, b;
            std::memcpy(&a, codes + i, 8);
            std::memcpy(&b, question + i, 8);
            distance += count_ones(a ^ b);
        }
        for (; i < bytes; ++i) distance += count_ones(static_cast<std::uint64_t>(codes[i] ^ question[i]));
        distances[r] = static_cast<std::uint16_t>(distance);
    }
}

}  // namespace

const Kernels kPortable = {"portable", kTileRows, sizeof(V), kChunkInputs, row_distances, tile_distances, row_scores_portable, products_portable, &kBertPortable};

}  // namespace bpr
