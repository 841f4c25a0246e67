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

#include "bert_lanes_avx2.h"

// sum + the products of both halves
inline Ints add_pairs(Ints sum, Ints a, Ints b) {
    return reinterpret_cast<Ints>(_mm256_add_epi32(reinterpret_cast<__m256i>(sum), _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b))));
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
            const __m256i a = _mm256_set1_epi32(four(rows + r * in + i)), b = _mm256_set1_epi32(four(rows + r * in + i + 4));
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
