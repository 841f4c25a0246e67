// Scores of eight rows at a time, one in each 32-bit lane, by the additions of rerank_portable.cpp in its order. Compiled with
// -mavx2 and without FMA; runs only where cpuid says so.
//
// vpermps looks up eight values in a table of eight. A nibble has sixteen, but with all its signs turned its share has the sign
// turned and nothing else: so the lower half of a table does, and bit 3 says whether to turn. (A share of zero may so be -0
// where the table says +0. A running sum begins with +0, so it is +0 after either.)
#include "hamming.h"

#include <cstring>
#include <immintrin.h>

namespace bpr {
namespace {

constexpr std::size_t kRows = 8, kLanes = 8, kChunk = 16;    // rows at a time; running sums; bytes of a row at a time

// Sixteen bytes of each of eight rows, transposed: lane r of words[i] is the i-th word of row r.
inline void load_words(const std::uint8_t* const* at, std::size_t offset, __m256i* words) {
    __m256i v[4];
    for (int r = 0; r < 4; ++r) {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at[r] + offset));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at[r + 4] + offset));
        v[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    words[0] = _mm256_unpacklo_epi64(a, c);
    words[1] = _mm256_unpackhi_epi64(a, c);
    words[2] = _mm256_unpacklo_epi64(b, d);
    words[3] = _mm256_unpackhi_epi64(b, d);
}

// Eight nibbles of each row, and where their shares stand in the lower halves of the tables.
struct Nibbles {
    __m256i value, place;
};

// Four signs a nibble: where bit 3 is set, the other three are turned (xor 7).
inline Nibbles nibbles_of(__m256i signs) {
    const __m256i turned = _mm256_and_si256(_mm256_srli_epi32(signs, 3), _mm256_set1_epi32(0x11111111));
    return {signs, _mm256_xor_si256(signs, _mm256_sub_epi32(_mm256_slli_epi32(turned, 3), turned))};
}

// Two signs above two magnitudes: where bit 3 is set, the other sign is turned.
inline Nibbles nibbles_of(__m256i signs, __m256i large) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xCCCCCCCC));
    const __m256i value = _mm256_or_si256(_mm256_and_si256(upper, signs), _mm256_andnot_si256(upper, large));
    const __m256i turned = _mm256_and_si256(_mm256_srli_epi32(value, 1), _mm256_set1_epi32(0x44444444));
    return {value, _mm256_xor_si256(value, turned)};
}

inline __m256 share(const float* table, const Nibbles& n, int shift) {
    __m256 lower = _mm256_load_ps(table);
    asm("" : "+x"(lower));    // on Zen 3 vpermps with a table in memory takes twice as long as a load and a vpermps
    const __m256 found = _mm256_permutevar8x32_ps(lower, _mm256_srli_epi32(n.place, shift));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(n.value, 28 - shift), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(found, _mm256_castsi256_ps(sign));
}

// Byte `byte` of the words, on one running sum.
template <int P>
[[gnu::always_inline]] inline __m256 add_byte(const float* table, const Nibbles* n, int byte, __m256 sum) {
    const int low = byte * 8, high = low + 4;
    if constexpr (P == 1) return _mm256_add_ps(sum, _mm256_add_ps(share(table, n[0], high), share(table + 16, n[0], low)));
    const __m256 a = _mm256_add_ps(share(table, n[0], high), share(table + 16, n[1], high));
    return _mm256_add_ps(sum, _mm256_add_ps(a, _mm256_add_ps(share(table + 32, n[0], low), share(table + 48, n[1], low))));
}

// The four bytes of a word, each on its own running sum.
template <int P>
[[gnu::always_inline]] inline void add_word(const float* table, __m256i signs, __m256i large, __m256* sums) {
    Nibbles n[P];
    if constexpr (P == 1) n[0] = nibbles_of(signs);
    else n[0] = nibbles_of(signs, _mm256_srli_epi32(large, 2)), n[1] = nibbles_of(_mm256_slli_epi32(signs, 2), large);
    sums[0] = add_byte<P>(table, n, 0, sums[0]);
    sums[1] = add_byte<P>(table + P * 32, n, 1, sums[1]);
    sums[2] = add_byte<P>(table + P * 64, n, 2, sums[2]);
    sums[3] = add_byte<P>(table + P * 96, n, 3, sums[3]);
}

// Written out, not as loops: a running sum that is reached by an index would lie in memory.
template <int P>
__m256 score_eight(const float* table, const std::uint8_t* const* signs, const std::uint8_t* const* large, std::size_t bytes) {
    __m256 s[kLanes];
    for (auto& sum : s) sum = _mm256_setzero_ps();
    for (std::size_t i = 0; i < bytes; i += kChunk, table += P * 32 * kChunk) {
        __m256i words[4], sizes[4] = {};
        load_words(signs, i, words);
        if constexpr (P == 2) load_words(large, i, sizes);
        add_word<P>(table, words[0], sizes[0], s);
        add_word<P>(table + P * 128, words[1], sizes[1], s + 4);
        add_word<P>(table + P * 256, words[2], sizes[2], s);
        add_word<P>(table + P * 384, words[3], sizes[3], s + 4);
    }
    const __m256 a = _mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3]));
    return _mm256_add_ps(a, _mm256_add_ps(_mm256_add_ps(s[4], s[5]), _mm256_add_ps(s[6], s[7])));
}

}  // namespace

void row_scores_avx2(const Shares& shares, const std::int64_t* rows, std::size_t count, float* scores) {
    if (shares.bytes % kChunk != 0) return row_scores_portable(shares, rows, count, scores);
    for (std::size_t first = 0; first < count; first += kRows) {
        const std::size_t here = count - first < kRows ? count - first : kRows;
        const std::uint8_t *signs[kRows], *large[kRows] = {};
        for (std::size_t r = 0; r < kRows; ++r) {    // where fewer than eight are left, the last one fills the lanes
            const std::size_t at = static_cast<std::size_t>(rows[first + (r < here ? r : here - 1)]) * shares.bytes;
            signs[r] = shares.signs + at;
            if (shares.magnitudes != nullptr) large[r] = shares.magnitudes + at;
        }
        const __m256 found = shares.magnitudes == nullptr ? score_eight<1>(shares.tables, signs, large, shares.bytes)
                                                          : score_eight<2>(shares.tables, signs, large, shares.bytes);
        if (here == kRows) _mm256_storeu_ps(scores + first, found);
        else std::memcpy(scores + first, &found, here * sizeof(float));
    }
}

}  // namespace bpr
