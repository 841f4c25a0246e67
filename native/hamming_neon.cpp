// NEON, which every 64-bit ARM machine has. Tested under qemu-aarch64 (make neon).
#include "bert.h"
#include "hamming.h"

#include <algorithm>
#include <arm_neon.h>
#include <cstring>

namespace bpr {
namespace {

using V = std::uint64_t __attribute__((vector_size(16), may_alias));

inline uint64x2_t neon(V v) { return reinterpret_cast<uint64x2_t>(v); }

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

// BSL picks b where the mask is set, else a: with mask = a^b it is the majority of three in two operations.
inline V majority(V a, V b, V c) { return reinterpret_cast<V>(vbslq_u64(neon(a ^ b), neon(c), neon(a))); }

// carry, sum = a + b + sum: three operations.
inline void full_add(V& carry, V& sum, V a, V b) {
    const V half = a ^ b;
    carry = reinterpret_cast<V>(vbslq_u64(neon(half), neon(sum), neon(a)));
    sum ^= half;
}

// Word i of vector j changes places with word j of vector i.
inline void transpose_words(V* v) {
    const uint64x2_t a = neon(v[0]), b = neon(v[1]);
    v[0] = reinterpret_cast<V>(vzip1q_u64(a, b));
    v[1] = reinterpret_cast<V>(vzip2q_u64(a, b));
}

#include "hamming_impl.h"

void row_distances(const std::uint8_t* codes, std::size_t rows, std::size_t bytes, const std::uint8_t* question,
                   std::uint16_t* distances) {
    for (std::size_t r = 0; r < rows; ++r, codes += bytes) {
        uint16x8_t sum = vdupq_n_u16(0);
        std::size_t i = 0;
        for (; i + 16 <= bytes; i += 16)
            sum = vpadalq_u8(sum, vcntq_u8(veorq_u8(vld1q_u8(codes + i), vld1q_u8(question + i))));
        unsigned distance = vaddlvq_u16(sum);
        for (; i < bytes; ++i) distance += static_cast<unsigned>(__builtin_popcount(codes[i] ^ question[i]));
        distances[r] = static_cast<std::uint16_t>(distance);
    }
}

}  // namespace

const Kernels kNeon = {"neon", kTileRows, sizeof(V), kChunkInputs, row_distances, tile_distances, row_scores_portable, products_portable, &kBertPortable};

}  // namespace bpr
