// AVX2 (and the scalar POPCNT that every AVX2 machine has). Compiled with -mavx2 -mpopcnt; runs only where cpuid says so.
#include "hamming.h"

#include <algorithm>
#include <cstring>
#include <immintrin.h>

namespace bpr {
namespace {

using V = std::uint64_t __attribute__((vector_size(32), may_alias));

inline V majority(V a, V b, V c) { return (a & b) | ((a ^ b) & c); }

// carry, sum = a + b + sum: five logic operations (four ports), of which one is on the chain of `sum`.
inline void full_add(V& carry, V& sum, V a, V b) {
    const V half = a ^ b;
    carry = (a & b) | (half & sum);
    sum ^= half;
}

#include "hamming_impl.h"

// One code: POPCNT on 64-bit words runs at 3 to 4 a cycle, so a core counts faster than memory delivers; the vector
// popcount by table look-up was no faster for one question.
template <std::size_t Words>
inline void distances_of_words(const std::uint8_t* codes, std::size_t rows, const std::uint8_t* question, std::uint16_t* distances) {
    std::uint64_t q[Words];
    std::memcpy(q, question, sizeof(q));
    for (std::size_t r = 0; r < rows; ++r, codes += sizeof(q)) {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < Words; ++i) {
            std::uint64_t c;
            std::memcpy(&c, codes + i * 8, 8);
            sum += static_cast<std::uint64_t>(_mm_popcnt_u64(c ^ q[i]));
        }
        distances[r] = static_cast<std::uint16_t>(sum);
    }
}

inline unsigned distance_of_bytes(const std::uint8_t* code, const std::uint8_t* question, std::size_t bytes) {
    unsigned sum = 0;
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        std::uint64_t a, b;
        std::memcpy(&a, code + i, 8);
        std::memcpy(&b, question + i, 8);
        sum += static_cast<unsigned>(_mm_popcnt_u64(a ^ b));
    }
    for (; i < bytes; ++i) sum += static_cast<unsigned>(_mm_popcnt_u32(code[i] ^ question[i]));
    return sum;
}

void row_distances(const std::uint8_t* codes, std::size_t rows, std::size_t bytes, const std::uint8_t* question,
                   std::uint16_t* distances) {
    switch (bytes) {
        case 32: return distances_of_words<4>(codes, rows, question, distances);
        case 48: return distances_of_words<6>(codes, rows, question, distances);
        case 64: return distances_of_words<8>(codes, rows, question, distances);
        case 96: return distances_of_words<12>(codes, rows, question, distances);
        case 128: return distances_of_words<16>(codes, rows, question, distances);
    }
    for (std::size_t r = 0; r < rows; ++r, codes += bytes)
        distances[r] = static_cast<std::uint16_t>(distance_of_bytes(codes, question, bytes));
}

}  // namespace

const Kernels kAvx2 = {"avx2", kTileRows, sizeof(V), kChunkInputs, row_distances, tile_distances};

}  // namespace bpr
