// A panel of the rotation stays in the cache while four rows pass it. Plain C++ for every level: the order of the additions is fixed,
// and transform.py, which calls it for passages and questions, gets the same bits everywhere.
#include "rotate.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace bpr {
namespace {

constexpr std::size_t kTaskRows = 32;

// Four floats, which every 64-bit machine can add at once; each is still added on its own, in its own order.
using Four = float __attribute__((vector_size(16)));
static_assert(kPanel == 2 * sizeof(Four) / sizeof(float));

// One panel for `Rows` rows, whose sums stay in registers together.
template <std::size_t Rows>
void rotate_panel(const float* vectors, std::size_t dim, const float* panel, std::size_t columns, float* out) {
    Four left[Rows] = {}, right[Rows] = {};
    for (std::size_t i = 0; i < dim; ++i, panel += kPanel) {
        Four a, b;
        std::memcpy(&a, panel, sizeof(a));
        std::memcpy(&b, panel + 4, sizeof(b));
        for (std::size_t r = 0; r < Rows; ++r) {
            const float value = vectors[r * dim + i];
            left[r] += a * value;
            right[r] += b * value;
        }
    }
    for (std::size_t r = 0; r < Rows; ++r) {
        std::memcpy(out + r * columns, &left[r], sizeof(Four));
        std::memcpy(out + r * columns + 4, &right[r], sizeof(Four));
    }
}

void rotate_rows(const float* vectors, std::size_t rows, std::size_t dim, const float* panels, std::size_t columns, float* out) {
    for (std::size_t c = 0; c < columns; c += kPanel, panels += dim * kPanel) {
        std::size_t r = 0;
        for (; r + 4 <= rows; r += 4) rotate_panel<4>(vectors + r * dim, dim, panels, columns, out + r * columns + c);
        for (; r < rows; ++r) rotate_panel<1>(vectors + r * dim, dim, panels, columns, out + r * columns + c);
    }
}

}  // namespace

void rotate(const float* vectors, std::size_t rows, std::size_t dim, const float* panels, std::size_t columns, unsigned threads, Stop& stop,
            float* out) {
    std::atomic<std::size_t> next{0};
    const std::size_t tasks = (rows + kTaskRows - 1) / kTaskRows;
    run_parallel(static_cast<unsigned>(std::clamp<std::size_t>(tasks, 1, threads)), [&](unsigned) {
        for (std::size_t task; (task = next++) < tasks && !stop.now();) {
            const std::size_t first = task * kTaskRows;
            rotate_rows(vectors + first * dim, std::min(kTaskRows, rows - first), dim, panels, columns, out + first * columns);
        }
    });
}

}  // namespace bpr
