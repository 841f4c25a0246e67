// AVX2 (and the scalar POPCNT that every AVX2 machine has). Compiled with -mavx2 -mpopcnt; runs only where cpuid says so.
#include "bert.h"
#include "hamming.h"

#include <algorithm>
#include <cstring>
#include <immintrin.h>

namespace bpr {
namespace {

using V = std::uint64_t __attribute__((vector_size(32), may_alias));

inline V load(const void* from) { return reinterpret_cast<V>(_mm256_loadu_si256(static_cast<const __m256i*>(from))); }

inline V load_partial(const std::uint8_t* from, std::size_t bytes) {
    // 384 bits end in half a vector: without a detour over memory.
    if (bytes == 16) return reinterpret_cast<V>(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    V v{};
    std::memcpy(&v, from, bytes);
    return v;
}

inline V majority(V a, V b, V c) { return (a & b) | ((a ^ b) & c); }

// carry, sum = a + b + sum: five logic operations (four ports), of which one is on the chain of `sum`.
inline void full_add(V& carry, V& sum, V a, V b) {
    const V half = a ^ b;
    carry = (a & b) | (half & sum);
    sum ^= half;
}

inline __m256i bits(V v) { return reinterpret_cast<__m256i>(v); }

// Word i of vector j changes places with word j of vector i: pairs of words first, then halves.
inline void transpose_words(V* v) {
    const __m256i a = _mm256_unpacklo_epi64(bits(v[0]), bits(v[1])), b = _mm256_unpackhi_epi64(bits(v[0]), bits(v[1]));
    const __m256i c = _mm256_unpacklo_epi64(bits(v[2]), bits(v[3])), d = _mm256_unpackhi_epi64(bits(v[2]), bits(v[3]));
    v[0] = reinterpret_cast<V>(_mm256_permute2x128_si256(a, c, 0x20));
    v[1] = reinterpret_cast<V>(_mm256_permute2x128_si256(b, d, 0x20));
    v[2] = reinterpret_cast<V>(_mm256_permute2x128_si256(a, c, 0x31));
    v[3] = reinterpret_cast<V>(_mm256_permute2x128_si256(b, d, 0x31));
}

#include "hamming_impl.h"

// A distance from three vectors of differing bits: one full adder turns three vectors into two (sum, and carry that counts
// double), and a nibble look-up counts the ones of those. Returns four partial sums as 64-bit words.
inline __m256i count_three(__m256i a, __m256i b, __m256i c) {
    const __m256i ones = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i twos = _mm256_add_epi8(ones, ones), nibble = _mm256_set1_epi8(15);
    V carry, sum = reinterpret_cast<V>(c);
    full_add(carry, sum, reinterpret_cast<V>(a), reinterpret_cast<V>(b));
    const __m256i s = bits(sum), t = bits(carry);
    const __m256i single = _mm256_add_epi8(_mm256_shuffle_epi8(ones, _mm256_and_si256(s, nibble)),
                                           _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi64(s, 4), nibble)));
    const __m256i doubled = _mm256_add_epi8(_mm256_shuffle_epi8(twos, _mm256_and_si256(t, nibble)),
                                            _mm256_shuffle_epi8(twos, _mm256_and_si256(_mm256_srli_epi64(t, 4), nibble)));
    return _mm256_sad_epu8(_mm256_add_epi8(single, doubled), _mm256_setzero_si256());
}

// Four rows' partial sums, each below 2^16, side by side in one word.
inline __m256i pack_four(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i low = _mm256_or_si256(a, _mm256_slli_epi64(b, 16)), high = _mm256_or_si256(_mm256_slli_epi64(c, 32), _mm256_slli_epi64(d, 48));
    return _mm256_or_si256(low, high);
}

inline __m256i load256(const std::uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline __m128i load128(const std::uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

// Four codes of 96 bytes: 768 bits, the paper's.
inline void distances_of_96(const std::uint8_t* codes, const std::uint8_t* question, std::uint16_t* distances) {
    __m256i sums[4];
    for (int r = 0; r < 4; ++r, codes += 96)
        sums[r] = count_three(_mm256_xor_si256(load256(codes), load256(question)), _mm256_xor_si256(load256(codes + 32), load256(question + 32)),
                              _mm256_xor_si256(load256(codes + 64), load256(question + 64)));
    const __m256i packed = pack_four(sums[0], sums[1], sums[2], sums[3]);
    const __m128i halves = _mm_add_epi64(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(distances), _mm_add_epi64(halves, _mm_unpackhi_epi64(halves, halves)));
}

// Eight codes of 48 bytes: two at a time, one in each half of the vectors.
inline void distances_of_48(const std::uint8_t* codes, const std::uint8_t* question, std::uint16_t* distances) {
    __m256i sums[4];
    for (int r = 0; r < 4; ++r, codes += 48) {
        __m256i v[3];
        for (int i = 0; i < 3; ++i)
            v[i] = _mm256_xor_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(load128(codes + i * 16)), load128(codes + 192 + i * 16), 1),
                                    _mm256_broadcastsi128_si256(load128(question + i * 16)));
        sums[r] = count_three(v[0], v[1], v[2]);
    }
    const __m256i packed = pack_four(sums[0], sums[1], sums[2], sums[3]);
    const __m256i both = _mm256_add_epi64(packed, _mm256_unpackhi_epi64(packed, packed));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(distances), _mm256_castsi256_si128(both));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(distances + 4), _mm256_extracti128_si256(both, 1));
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
    std::size_t r = 0;
    if (bytes == 96)
        for (; r + 4 <= rows; r += 4) {
            fetch_ahead(codes + r * 96, 4 * 96);
            distances_of_96(codes + r * 96, question, distances + r);
        }
    else if (bytes == 48)
        for (; r + 8 <= rows; r += 8) {
            fetch_ahead(codes + r * 48, 8 * 48);
            distances_of_48(codes + r * 48, question, distances + r);
        }
    for (; r < rows; ++r)
        distances[r] = static_cast<std::uint16_t>(distance_of_bytes(codes + r * bytes, question, bytes));
}

}  // namespace

const Kernels kAvx2 = {"avx2", kTileRows, sizeof(V), kChunkInputs, row_distances, tile_distances, row_scores_avx2, products_avx2, &kBertAvx2};

}  // namespace bpr
