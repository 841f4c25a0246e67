// vectors x rotation, in one fixed order of additions: what turns vectors of yours before their signs are taken. Knows neither codes
// nor levels.
#pragma once

#include "pool.h"

#include <cstddef>

namespace bpr {

constexpr std::size_t kPanel = 8;    // columns of the rotation that lie together

// out[r][c] = sum over i, ascending, of vectors[r][i] * rotation[i][c]: each element is the same bits whatever the number of
// rows or threads, and on every machine. A BLAS rounds differently for one row than for many, and then the bits of a
// passage would depend on its neighbours. vectors: [rows, dim]; panels: [columns / kPanel, dim, kPanel], the rotation
// cut into panels, because its columns are too far apart for the cache.
void rotate(const float* vectors, std::size_t rows, std::size_t dim, const float* panels, std::size_t columns, unsigned threads, Stop& stop,
            float* out);

}  // namespace bpr
