// Eight floats in a register of 32 bytes, for bert_impl.h: what the AVX2 and the AVX-512 level share, so that what differs is all
// that their files hold. Included once by each, inside its own anonymous namespace and with its own compiler flags.

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

// 32 floats of 0..255, cut to whole numbers.
inline void to_bytes(const V* v, std::uint8_t* to) {
    const __m256i a = _mm256_packs_epi32(_mm256_cvttps_epi32(v[0]), _mm256_cvttps_epi32(v[1]));
    const __m256i b = _mm256_packs_epi32(_mm256_cvttps_epi32(v[2]), _mm256_cvttps_epi32(v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);    // packing works in halves of a register
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}

inline std::int32_t four(const std::uint8_t* from) {
    std::int32_t word;
    std::memcpy(&word, from, sizeof(word));
    return word;
}
