// AVX-512 with VPOPCNTDQ (Ice Lake, Zen 4 and later). Compiled with its own flags; runs only where cpuid and xgetbv say so.
#include "bert.h"
#include "hamming.h"

#include <algorithm>
#include <cstring>
#include <immintrin.h>

namespace bpr {
namespace {

using V = std::uint64_t __attribute__((vector_size(64), may_alias));

inline V load(const void* from) { return reinterpret_cast<V>(_mm512_loadu_si512(from)); }

// A masked load touches no byte outside its mask.
inline V load_partial(const std::uint8_t* from, std::size_t bytes) {
    return reinterpret_cast<V>(_mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1, from));
}

// Any function of three bits is one VPTERNLOG; its constant is the truth table.
template <int Table>
inline V ternary(V a, V b, V c) {
    return reinterpret_cast<V>(_mm512_ternarylogic_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b),
                                                         reinterpret_cast<__m512i>(c), Table));
}

inline V majority(V a, V b, V c) { return ternary<0xE8>(a, b, c); }

// carry, sum = a + b + sum: two operations.
inline void full_add(V& carry, V& sum, V a, V b) {
    carry = ternary<0xE8>(a, b, sum);
    sum = ternary<0x96>(a, b, sum);
}

inline __m512i bits(V v) { return reinterpret_cast<__m512i>(v); }

// Word i of vector j changes places with word j of vector i: pairs of words, then pairs of 128 bits, then halves.
inline void transpose_words(V* v) {
    __m512i pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm512_unpacklo_epi64(bits(v[i]), bits(v[i + 1]));
        pairs[i + 1] = _mm512_unpackhi_epi64(bits(v[i]), bits(v[i + 1]));
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            quads[i + j] = _mm512_shuffle_i64x2(pairs[i + j], pairs[i + j + 2], 0x88);
            quads[i + j + 2] = _mm512_shuffle_i64x2(pairs[i + j], pairs[i + j + 2], 0xDD);
        }
    for (int j = 0; j < 2; ++j) {
        v[j] = reinterpret_cast<V>(_mm512_shuffle_i64x2(quads[j], quads[j + 4], 0x88));
        v[j + 4] = reinterpret_cast<V>(_mm512_shuffle_i64x2(quads[j], quads[j + 4], 0xDD));
        v[j + 2] = reinterpret_cast<V>(_mm512_shuffle_i64x2(quads[j + 2], quads[j + 6], 0x88));
        v[j + 6] = reinterpret_cast<V>(_mm512_shuffle_i64x2(quads[j + 2], quads[j + 6], 0xDD));
    }
}

#include "hamming_impl.h"

inline __mmask8 first_words(std::size_t words) { return static_cast<__mmask8>((1u << words) - 1); }

// One code, by whole vectors and one masked one; a masked load touches no byte outside its mask.
template <std::size_t Words>
inline void distances_of_words(const std::uint8_t* codes, std::size_t rows, const std::uint8_t* question, std::uint16_t* distances) {
    constexpr std::size_t kVectors = (Words + 7) / 8;
    const __mmask8 last = first_words(Words - (kVectors - 1) * 8);
    __m512i q[kVectors];
    for (std::size_t i = 0; i < kVectors; ++i) q[i] = _mm512_maskz_loadu_epi64(i + 1 < kVectors ? 0xFF : last, question + i * 64);
    for (std::size_t r = 0; r < rows; ++r, codes += Words * 8) {
        if (r % 4 == 0 && rows > 4) fetch_ahead(codes, 4 * Words * 8);
        __m512i sum = _mm512_setzero_si512();
        for (std::size_t i = 0; i < kVectors; ++i) {
            const __m512i c = _mm512_maskz_loadu_epi64(i + 1 < kVectors ? 0xFF : last, codes + i * 64);
            sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(_mm512_xor_si512(c, q[i])));
        }
        distances[r] = static_cast<std::uint16_t>(_mm512_reduce_add_epi64(sum));
    }
}

inline unsigned distance_of_bytes(const std::uint8_t* code, const std::uint8_t* question, std::size_t bytes) {
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t i = 0; i < bytes; i += 64) {
        const std::size_t left = bytes - i;
        const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
        const __m512i a = _mm512_maskz_loadu_epi8(mask, code + i), b = _mm512_maskz_loadu_epi8(mask, question + i);
        sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(_mm512_xor_si512(a, b)));
    }
    return static_cast<unsigned>(_mm512_reduce_add_epi64(sum));
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

const Kernels kAvx512 = {"avx512", kTileRows, sizeof(V), kChunkInputs, row_distances, tile_distances, row_scores_avx2, products_avx2, &kBertAvx512};

}  // namespace bpr
