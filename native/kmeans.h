// What it takes to make cells: which centroid a code is nearest to, and how many codes of a cell have each bit. The rounds of
// k-means themselves are index/cells.py's. All sums are of integers, so results are the same for every level and number of threads.
#pragma once

#include "scan.h"

namespace bpr {

// The middles of cells, as whole numbers: a row of codes counts as ±127 in each dimension.
struct Centroids {
    const std::int8_t* data;    // [count, bits]
    std::size_t count, bits;
};

// The nearest centroid of each code, ties to the lower cell: of the `shortlist` that are nearest when rounded to bits. fits:
// twice the product less the centroid's length squared; the higher, the nearer. cells, fits: [codes.rows].
void assign(const Codes& codes, const Centroids& centroids, std::size_t shortlist, unsigned threads, Stop& stop, std::uint32_t* cells,
            std::int32_t* fits);

// How many codes of each cell have each bit set. order: rows by cell, as Cells has them; ones: [cells, bits].
void count_ones(const Codes& codes, const std::uint32_t* order, const std::int64_t* starts, std::size_t cells, unsigned threads, Stop& stop,
                std::int32_t* ones);

}  // namespace bpr
