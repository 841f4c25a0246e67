// The sub-linear search: codes laid out cell by cell, of which a question visits those whose centroids fit it best; and what
// it takes to make cells. All sums are of integers, so results are the same for every level and number of threads.
#pragma once

#include "scan.h"

namespace bpr {

// The middles of cells, as whole numbers: a row of codes counts as ±127 in each dimension.
struct Centroids {
    const std::int8_t* data;    // [count, bits]
    std::size_t count, bits;
};

// Codes in the order of cells: those of cell c stand at the positions starts[c] to starts[c + 1].
struct Cells {
    Codes codes;
    const std::uint32_t* rows;      // [codes.rows], the row of each position, ascending in a cell
    const std::int64_t* starts;     // [count + 1], ascending from 0 to codes.rows
    Centroids centroids;
};

// Questions as the cells need them: the codes measure distances, the vectors choose the cells.
struct ProbeQuestions {
    Codes codes;
    const float* vectors;    // [codes.rows, bits], finite
};

// For each question the l nearest live rows by (distance, row) of the cells it visits: those with the highest ⟨vector, centroid⟩
// that together have about `share` of all codes, fewer where one cell fits the question far better than most, more where none
// does; and more until l live rows were seen. share = 1: all. l <= mask.live; the mask is by row. rows, distances:
// [questions, l]; visited: [questions], how many codes were looked at. Throws std::invalid_argument where cells.rows names a
// row that is not there.
void probe(const Cells& cells, const ProbeQuestions& questions, std::size_t l, double share, const Mask& mask, unsigned threads,
           Stop& stop, std::int64_t* rows, std::int32_t* distances, std::int64_t* visited);

// The nearest centroid of each code, ties to the lower cell: of the `shortlist` that are nearest when rounded to bits. fits:
// twice the product less the centroid's length squared; the higher, the nearer. cells, fits: [codes.rows].
void assign(const Codes& codes, const Centroids& centroids, std::size_t shortlist, unsigned threads, Stop& stop, std::uint32_t* cells,
            std::int32_t* fits);

// How many codes of each cell have each bit set. order: rows by cell, as Cells has them; ones: [cells, bits].
void count_ones(const Codes& codes, const std::uint32_t* order, const std::int64_t* starts, std::size_t cells, unsigned threads, Stop& stop,
                std::int32_t* ones);

}  // namespace bpr
