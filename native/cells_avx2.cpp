// Products of centroids, sixteen dimensions at a time. Compiled with -mavx2; runs only where cpuid says so.
#include "hamming.h"

#include <immintrin.h>

namespace bpr {
namespace {

inline __m256i widened(const std::int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline std::int32_t sum_of(__m128i v) {
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}

inline std::int32_t product(const std::int8_t* row, std::size_t width, const std::int16_t* question) {
    __m256i even = _mm256_setzero_si256(), odd = even;
    std::size_t i = 0;
    for (; i + 32 <= width; i += 32) {
        const auto* q = reinterpret_cast<const __m256i*>(question + i);
        even = _mm256_add_epi32(even, _mm256_madd_epi16(widened(row + i), _mm256_loadu_si256(q)));
        odd = _mm256_add_epi32(odd, _mm256_madd_epi16(widened(row + i + 16), _mm256_loadu_si256(q + 1)));
    }
    const __m256i both = _mm256_add_epi32(even, odd);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    for (; i < width; i += 8) {    // a width is a multiple of 8
        const __m128i eight = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + i)));
        sum = _mm_add_epi32(sum, _mm_madd_epi16(eight, _mm_loadu_si128(reinterpret_cast<const __m128i*>(question + i))));
    }
    return sum_of(sum);
}

}  // namespace

void products_avx2(const std::int8_t* rows, std::size_t count, std::size_t width, const std::int16_t* question, std::int32_t* out) {
    for (std::size_t r = 0; r < count; ++r) out[r] = product(rows + r * width, width, question);
}

}  // namespace bpr
