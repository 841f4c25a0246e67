// Eight floats or 32 bytes a register. Compiled with -mavx2 -mfma; runs only where cpuid says so.
//
// A product of bytes without VNNI is vpmaddubsw (two neighbours' products, added in 16 bits), vpmaddwd with ones (two of those,
// added in 32 bits) and an addition. Multiplications are what a core has least of, and with activations of seven bits and
// weights whose pairs are bounded (kMostOfPair) two results of vpmaddubsw can be added before they are widened: three
// multiplications for 64 products instead of four, or 43 products a cycle on Zen 3 instead of 32 (float32: 16).
#include "bert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <immintrin.h>
#include <limits>

namespace bpr {
namespace {

using V = float __attribute__((vector_size(32)));
using Ints = std::int32_t __attribute__((vector_size(32)));

inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V min(V a, V b) { return _mm256_min_ps(a, b); }

// To 16 bits; what does not fit is cut to the nearest that does.
inline void to_words(Ints v, std::int16_t* to) {
    const __m256i whole = reinterpret_cast<__m256i>(v);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole, whole), 0b1000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

// sum + the products of both halves
inline Ints add_pairs(Ints sum, Ints a, Ints b) {
    return reinterpret_cast<Ints>(_mm256_add_epi32(reinterpret_cast<__m256i>(sum), _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b))));
}

// 32 floats of 0..255, cut to whole numbers.
inline void to_bytes(const V* v, std::uint8_t* to) {
    const __m256i a = _mm256_packs_epi32(_mm256_cvttps_epi32(v[0]), _mm256_cvttps_epi32(v[1]));
    const __m256i b = _mm256_packs_epi32(_mm256_cvttps_epi32(v[2]), _mm256_cvttps_epi32(v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);    // packing works in halves of a register
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}

inline __m256i four(const std::uint8_t* from) {
    std::int32_t word;
    std::memcpy(&word, from, sizeof(word));
    return _mm256_set1_epi32(word);
}

// sum + two vectors of 16 bits each
template <int Most>
inline __m256i add(__m256i sum, __m256i a, __m256i b, __m256i ones) {
    if constexpr (Most == kSevenBits) return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(a, b), ones));
    return _mm256_add_epi32(_mm256_add_epi32(sum, _mm256_madd_epi16(a, ones)), _mm256_madd_epi16(b, ones));
}

constexpr std::size_t kTileRows = 4;    // eight sums, the ones, three registers of weights and four to work with: sixteen

// Eight weights of sixteen outputs at a time.
template <std::size_t R, int Most>
inline void tile(const std::int8_t* panel, std::size_t in, const std::uint8_t* rows, std::int32_t (*out)[kPanelColumns]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums[R][2];
    for (auto& sum : sums) sum[0] = sum[1] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (std::size_t i = 0; i < in; i += 8, panel += 8 * kPanelColumns) {
        const __m256i* weights = reinterpret_cast<const __m256i*>(panel);
        __m256i w0 = _mm256_loadu_si256(weights), w1 = _mm256_loadu_si256(weights + 1), w2 = _mm256_loadu_si256(weights + 2);
        for (std::size_t r = 0; r < R; ++r) {
            const __m256i a = four(rows + r * in + i), b = four(rows + r * in + i + 4);
            sums[r][0] = add<Most>(sums[r][0], _mm256_maddubs_epi16(a, w0), _mm256_maddubs_epi16(b, w2), ones);
            sums[r][1] = add<Most>(sums[r][1], _mm256_maddubs_epi16(a, w1), _mm256_maddubs_epi16(b, _mm256_loadu_si256(weights + 3)), ones);
            // Row after row: GCC would begin them all at once, and then sums lie in memory for want of registers.
            asm("" : "+x"(sums[r][0]), "+x"(sums[r][1]), "+x"(w0), "+x"(w1), "+x"(w2), "+r"(weights));
        }
    }
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t c = 0; c < 2; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(out[r]) + c, sums[r][c]);
}

#include "bert_impl.h"

}  // namespace

const BertKernels kBertAvx2 = {dense, norm, gelu, quantize, attention};

}  // namespace bpr
