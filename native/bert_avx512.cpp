// As bert_avx2.cpp, with VNNI: one instruction multiplies 64 bytes and adds the products by fours in 32 bits, where AVX2 needs
// three multiplications and, without the bounds on pairs of weights, would have to cut. Compiled with -mavx512vl -mavx512vnni;
// runs only where cpuid says so. Floats stay eight to a vector (bert_impl.h says why).
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
    return reinterpret_cast<Ints>(_mm256_dpwssd_epi32(reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}

constexpr std::size_t kTileRows = 8;    // a question of 16 tokens is two tiles

// Four weights of sixteen outputs at a time; bytes of seven and of eight bits cost the same.
template <std::size_t R, int>
inline void tile(const std::int8_t* panel, std::size_t in, const std::uint8_t* rows, std::int32_t (*out)[kPanelColumns]) {
    constexpr std::size_t kTurns = R > 4 ? 1 : R > 2 ? 2 : 4;    // sums enough to hide the latency of a product
    __m512i sums[kTurns][R];
    for (auto& turn : sums)
        for (auto& sum : turn) sum = _mm512_setzero_si512();
    for (std::size_t i = 0; i < in; i += 4 * kTurns)
        for (std::size_t turn = 0; turn < kTurns; ++turn, panel += 4 * kPanelColumns) {
            const __m512i weights = _mm512_loadu_si512(panel);
            for (std::size_t r = 0; r < R; ++r) {
                __m512i sum = _mm512_dpbusd_epi32(sums[turn][r], _mm512_set1_epi32(four(rows + r * in + i + 4 * turn)), weights);
                asm("" : "+v"(sum));    // stays where it is: GCC would move the sums about among the registers
                sums[turn][r] = sum;
            }
        }
    for (std::size_t r = 0; r < R; ++r) {
        for (std::size_t turn = 1; turn < kTurns; ++turn) sums[0][r] = _mm512_add_epi32(sums[0][r], sums[turn][r]);
        _mm512_store_si512(out[r], sums[0][r]);
    }
}

#include "bert_impl.h"

}  // namespace

const BertKernels kBertAvx512 = {dense, norm, gelu, quantize, attention};

}  // namespace bpr
