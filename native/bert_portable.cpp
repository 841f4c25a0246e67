// Plain C++ for any machine, and the truth that every other level is tested against.
#include "bert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace bpr {
namespace {

using V = float __attribute__((vector_size(32)));
using Ints = std::int32_t __attribute__((vector_size(32)));

// Fused even where that is a call into a library: two roundings instead of one would be other bits.
inline V fma(V a, V b, V c) {
    for (std::size_t i = 0; i < 8; ++i) c[i] = std::fma(a[i], b[i], c[i]);
    return c;
}
inline V max(V a, V b) { return a > b ? a : b; }
inline V min(V a, V b) { return a < b ? a : b; }

// To 16 bits; what does not fit is cut to the nearest that does.
inline void to_words(Ints v, std::int16_t* to) {
    for (std::size_t i = 0; i < 8; ++i) to[i] = static_cast<std::int16_t>(std::clamp(v[i], -32768, 32767));
}

// sum + the products of both halves. Unsigned, because of what is no number sums may overflow: then they wrap at every level.
inline Ints add_pairs(Ints sum, Ints a, Ints b) {
    for (std::size_t i = 0; i < 8; ++i) {
        const auto low = static_cast<std::int16_t>(a[i]) * static_cast<std::int16_t>(b[i]), high = (a[i] >> 16) * (b[i] >> 16);
        sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) + static_cast<std::uint32_t>(low) + static_cast<std::uint32_t>(high));
    }
    return sum;
}

// 32 floats of 0..255, cut to whole numbers.
inline void to_bytes(const V* v, std::uint8_t* to) {
    for (std::size_t i = 0; i < 32; ++i) to[i] = static_cast<std::uint8_t>(v[i / 8][i % 8]);
}

constexpr std::size_t kTileRows = 4;

template <std::size_t R, int>
inline void tile(const std::int8_t* panel, std::size_t in, const std::uint8_t* rows, std::int32_t (*out)[kPanelColumns]) {
    std::memset(out, 0, R * sizeof(*out));
    for (std::size_t i = 0; i < in; i += 4, panel += 4 * kPanelColumns)
        for (std::size_t r = 0; r < R; ++r) {
            const std::uint8_t* a = rows + r * in + i;
            for (std::size_t c = 0; c < kPanelColumns; ++c) {
                const std::int8_t* w = panel + 4 * c;
                out[r][c] += a[0] * w[0] + a[1] * w[1] + a[2] * w[2] + a[3] * w[3];
            }
        }
}

#include "bert_impl.h"

}  // namespace

const BertKernels kBertPortable = {dense, norm, gelu, quantize, attention};

}  // namespace bpr
