// Rows as bits, one a row, least significant first: which rows a search may return. Knows neither codes nor threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace bpr {

// Set bits of any bytes. Eight at a time and without a popcount instruction, which this file may not count on.
inline std::size_t count_bits(const std::uint8_t* bits, std::size_t bytes) {
    constexpr std::uint64_t kPairs = 0x5555555555555555, kNibbles = 0x3333333333333333, kBytes = 0x0F0F0F0F0F0F0F0F;
    std::size_t total = 0, i = 0;
    while (i + 8 <= bytes) {
        std::uint64_t sums = 0;    // of each byte's bits: 31 times 8 fit a byte
        for (const std::size_t end = std::min(bytes / 8 * 8, i + 31 * 8); i < end; i += 8) {
            std::uint64_t word;
            std::memcpy(&word, bits + i, 8);
            word -= word >> 1 & kPairs;
            word = (word & kNibbles) + (word >> 2 & kNibbles);
            sums += (word + (word >> 4)) & kBytes;
        }
        sums = (sums & 0x00FF00FF00FF00FF) + (sums >> 8 & 0x00FF00FF00FF00FF);
        total += sums * 0x0001000100010001 >> 48;
    }
    for (; i < bytes; ++i) total += static_cast<std::size_t>(std::popcount(bits[i]));
    return total;
}

// Rows that may be returned, as bits; nullptr: all. Bits behind the last row are zero.
struct Mask {
    const std::uint8_t* bits;
    std::size_t live;    // how many are set

    bool has(std::size_t row) const { return bits == nullptr || (bits[row / 8] >> (row % 8) & 1); }

    // The bits of the rows [first, last), first a multiple of 64; last - first <= 64.
    std::uint64_t word(std::size_t first, std::size_t last) const {
        std::uint64_t word = 0;
        if (bits != nullptr && last - first == 64)    // one load, where a copy of any length is a call: most of a sparse mask's time
            std::memcpy(&word, bits + first / 8, 8);
        else if (bits != nullptr)
            std::memcpy(&word, bits + first / 8, (last - first + 7) / 8);
        else
            word = last - first < 64 ? (std::uint64_t{1} << (last - first)) - 1 : ~std::uint64_t{0};
        return word;
    }

    // How many of the rows [first, last) are set; first is a multiple of 8, and so is last, or it is behind the last row.
    std::size_t count(std::size_t first, std::size_t last) const {
        return bits == nullptr ? last - first : count_bits(bits + first / 8, (last + 7) / 8 - first / 8);
    }

    // Calls visit(row) for each set row of [first, last), ascending; first is a multiple of 64.
    template <class Visit>
    void each(std::size_t first, std::size_t last, Visit visit) const {
        for (; first < last; first += 64)
            for (std::uint64_t left = word(first, std::min(last, first + 64)); left != 0; left &= left - 1)
                visit(first + static_cast<std::size_t>(std::countr_zero(left)));
    }
};

// Sets the bits of these rows (toggle: turns them over). False where one is not below the limit; those before it are done.
template <class Row>
bool mark_rows(const Row* rows, std::size_t count, std::size_t limit, bool toggle, std::uint8_t* bits) {
    for (std::size_t i = 0; i < count; ++i) {
        if (rows[i] >= limit) return false;
        const auto bit = static_cast<std::uint8_t>(1u << (rows[i] % 8));
        std::uint8_t& byte = bits[rows[i] / 8];
        byte = static_cast<std::uint8_t>(toggle ? byte ^ bit : byte | bit);
    }
    return true;
}

}  // namespace bpr
