// Products of centroids in plain C++ for any machine, and the truth that every other level is tested against.
#include "hamming.h"

namespace bpr {

void products_portable(const std::int8_t* rows, std::size_t count, std::size_t width, const std::int16_t* question, std::int32_t* out) {
    for (std::size_t r = 0; r < count; ++r, rows += width) {
        std::int32_t sum = 0;
        for (std::size_t i = 0; i < width; ++i) sum += static_cast<std::int32_t>(rows[i]) * question[i];
        out[r] = sum;
    }
}

}  // namespace bpr
