// The sub-linear search: codes laid out cell by cell, of which a question visits those whose centroids fit it best. All sums are
// of integers, so results are the same for every level and number of threads. Must not know how cells were made (kmeans.h).
#pragma once

#include "kmeans.h"
#include "scan.h"

namespace bpr {

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

}  // namespace bpr
