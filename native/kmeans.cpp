// How cells are made. The nearest centroid of a code is found as passages are: the centroids are rounded to bits and scanned, and
// the few that are nearest are compared with the code in whole numbers.
#include "kmeans.h"

#include "hamming.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace bpr {
namespace {

constexpr std::size_t kAssignedTogether = 256;     // codes that share the centroids' bits

// Codes as ±1 against centroids, in whole numbers.
class Fits {
public:
    explicit Fits(const Centroids& centroids) : centroids_(centroids), kernels_(level()), lengths_(centroids.count, 0) {
        for (std::size_t i = 0; i < centroids.count * centroids.bits; ++i) lengths_[i / centroids.bits] += centroids.data[i] * centroids.data[i];
        for (unsigned byte = 0; byte < 256; ++byte)
            for (unsigned i = 0; i < 8; ++i) values_[byte][i] = byte >> (7 - i) & 1 ? 1 : -1;    // the first dimension on top
    }

    // The best of some cells and its fit, the lowest of equals. `memory` is for the unpacked code.
    std::pair<std::uint32_t, std::int32_t> best(const std::uint8_t* code, const std::int64_t* cells, std::size_t count, std::vector<std::int16_t>& memory) const {
        memory.resize(centroids_.bits);
        for (std::size_t i = 0; i < centroids_.bits / 8; ++i) std::memcpy(memory.data() + i * 8, values_[code[i]].data(), sizeof(values_[0]));
        std::pair<std::uint32_t, std::int32_t> best{0, std::numeric_limits<std::int32_t>::min()};
        for (std::size_t i = 0; i < count; ++i) {
            const auto cell = static_cast<std::uint32_t>(cells[i]);
            std::int32_t product;
            kernels_.products(centroids_.data + cell * centroids_.bits, 1, centroids_.bits, memory.data(), &product);
            const std::int32_t fit = 2 * kOne * product - lengths_[cell];    // what the distance squared lacks of a constant
            if (fit > best.second || (fit == best.second && cell < best.first)) best = {cell, fit};
        }
        return best;
    }

private:
    static constexpr std::int32_t kOne = 127;    // what a bit is worth in a centroid
    const Centroids& centroids_;
    const Kernels& kernels_;
    std::vector<std::int32_t> lengths_;    // squared
    std::array<std::array<std::int16_t, 8>, 256> values_;
};

std::vector<std::uint8_t> rounded(const Centroids& centroids) {
    std::vector<std::uint8_t> codes(centroids.count * centroids.bits / 8, 0);
    for (std::size_t i = 0; i < centroids.count * centroids.bits; ++i)
        codes[i / 8] |= static_cast<std::uint8_t>((centroids.data[i] > 0) << (7 - i % 8));
    return codes;
}

}  // namespace

void assign(const Codes& codes, const Centroids& centroids, std::size_t shortlist, unsigned threads, Stop& stop, std::uint32_t* cells,
            std::int32_t* fits) {
    const std::vector<std::uint8_t> bits = rounded(centroids);
    const Fits exact(centroids);
    shortlist = std::min(shortlist, centroids.count);
    std::atomic<std::size_t> next{0};
    run_parallel(threads, [&](unsigned) {
        std::vector<std::int64_t> near(kAssignedTogether * shortlist);
        std::vector<std::int32_t> far(kAssignedTogether * shortlist);
        std::vector<std::int16_t> memory;
        for (std::size_t first; (first = kAssignedTogether * next++) < codes.rows && !stop.now();) {
            const std::size_t count = std::min(kAssignedTogether, codes.rows - first);
            scan({bits.data(), centroids.count, codes.bytes}, {codes.data + first * codes.bytes, count, codes.bytes}, shortlist,
                 {nullptr, centroids.count}, 1, stop, near.data(), far.data());
            if (stop.reason() != Stop::Reason::none) return;
            for (std::size_t j = 0; j < count; ++j)
                std::tie(cells[first + j], fits[first + j]) = exact.best(codes.data + (first + j) * codes.bytes, near.data() + j * shortlist, shortlist, memory);
        }
    });
}

void count_ones(const Codes& codes, const std::uint32_t* order, const std::int64_t* starts, std::size_t cells, unsigned threads, Stop& stop,
                std::int32_t* ones) {
    // Eight counters of a byte each side by side in a word; emptied before one can overflow.
    std::array<std::uint64_t, 256> spread{};
    for (unsigned byte = 0; byte < 256; ++byte)
        for (unsigned i = 0; i < 8; ++i) spread[byte] |= static_cast<std::uint64_t>(byte >> (7 - i) & 1) << (8 * i);
    std::atomic<std::size_t> next{0};
    run_parallel(threads, [&](unsigned) {
        std::vector<std::uint64_t> sums(codes.bytes);
        for (std::size_t cell; (cell = next++) < cells && !stop.now();) {
            std::int32_t* const out = ones + cell * codes.bytes * 8;
            std::fill(out, out + codes.bytes * 8, 0);
            for (std::int64_t first = starts[cell]; first < starts[cell + 1]; first += 255) {
                std::fill(sums.begin(), sums.end(), 0);
                for (std::int64_t at = first; at < std::min(starts[cell + 1], first + 255); ++at)
                    for (std::size_t i = 0; i < codes.bytes; ++i) sums[i] += spread[codes.data[order[at] * codes.bytes + i]];
                for (std::size_t i = 0; i < codes.bytes * 8; ++i) out[i] += static_cast<std::int32_t>(sums[i / 8] >> (8 * (i % 8)) & 255);
            }
        }
    });
}

}  // namespace bpr
