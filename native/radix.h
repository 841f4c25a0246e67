// Sorting rows by small keys, faster than by comparison: lookup.cpp and duplicates.cpp bring equal keys together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bpr {

struct Keyed {
    std::uint32_t key, row;
};

// By key, rows of one key in their old order. Keys have `bits` bits; eleven at a time, the lowest first: each pass writes to few
// enough places at once for the caches, where one pass by the whole key would miss them at every row.
inline void sort_by_key(std::vector<Keyed>& rows, std::vector<Keyed>& spare, std::size_t bits) {
    constexpr std::size_t kDigit = 11, kDigits = 1 << kDigit;
    spare.resize(rows.size());
    for (std::size_t shift = 0; shift < bits; shift += kDigit) {
        const auto digit = [&](const Keyed& k) { return k.key >> shift & (kDigits - 1); };
        std::array<std::size_t, kDigits + 1> next{};
        for (const Keyed& k : rows) ++next[digit(k) + 1];
        for (std::size_t d = 0; d < kDigits; ++d) next[d + 1] += next[d];
        for (const Keyed& k : rows) spare[next[digit(k)]++] = k;
        rows.swap(spare);
    }
}

}  // namespace bpr
