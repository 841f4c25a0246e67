// Rows that differ in at most `radius` bits agree on one of radius + 1 parts of the code. So rows are brought together by the hash
// of each part in turn, and only those that share one are compared. index/hash.py calls it, through the bindings.
#include "duplicates.h"

#include "hamming.h"
#include "radix.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

namespace bpr {
namespace {

// Groups of at most this many rows are compared pair by pair where they lie; larger ones are copied together first.
constexpr std::size_t kFew = 4;
constexpr std::size_t kRowsPerTask = 1 << 13;

// Who belongs together; the lowest row of a group stands for it.
class Groups {
public:
    explicit Groups(std::size_t rows) : above_(rows) { std::iota(above_.begin(), above_.end(), 0u); }

    std::uint32_t of(std::uint32_t row) const {    // changes nothing, so that threads may ask
        while (above_[row] != row) row = above_[row];
        return row;
    }

    void join(std::uint32_t a, std::uint32_t b) {
        a = shorten(a), b = shorten(b);
        if (a != b) above_[std::max(a, b)] = std::min(a, b);
    }

    void flatten() {    // a row's group stands before it, so it is flat already
        for (std::uint32_t& row : above_) row = above_[row];
    }

private:
    std::uint32_t shorten(std::uint32_t row) {    // the same as `of`; who is asked again is nearer then
        for (; above_[row] != row; row = above_[row]) above_[row] = above_[above_[row]];
        return row;
    }

    std::vector<std::uint32_t> above_;
};

// Equal bits have equal hashes; the rest is left to chance, and to the comparison.
class Hash {
public:
    void add(std::uint64_t word) { state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ull, state_ ^= state_ >> 29; }
    std::uint32_t value() const { return static_cast<std::uint32_t>(state_ >> 32 ^ state_); }

private:
    std::uint64_t state_ = 0x243F6A8885A308D3ull;
};

// The bits first, first + step, … of a code: parts of it that lie everywhere, should some of its bits say nothing.
std::uint32_t hash_of(const std::uint8_t* code, std::size_t bits, std::size_t first, std::size_t step) {
    Hash hash;
    std::uint64_t word = 0;
    std::size_t held = 0;
    for (std::size_t i = first; i < bits; i += step) {
        word = word << 1 | (code[i / 8] >> (7 - i % 8) & 1u);
        if (++held % 64 == 0) hash.add(word);
    }
    if (held % 64 != 0) hash.add(word);
    return hash.value();
}

class Duplicates {
public:
    Duplicates(const Codes& codes, std::size_t radius, const Mask& mask, unsigned threads, Stop& stop)
        : codes_(codes), radius_(radius), threads_(useful_threads(threads, codes.rows * codes.bytes)), stop_(stop), kernels_(level()),
          groups_(codes.rows) {
        for (std::size_t row = 0; row < codes.rows; ++row)
            if (mask.bits == nullptr || (mask.bits[row / 8] >> (row % 8) & 1)) rows_.push_back({0, static_cast<std::uint32_t>(row)});
    }

    void run(std::int64_t* out) {
        join_equal();
        const std::size_t bits = codes_.bytes * 8, parts = radius_ + 1;
        // Of radius + 1 parts, two codes within the radius have one in common. Where parts are so small that rows share one by
        // chance, all pairs are fewer than the pairs of all parts: then there is one part, of no bits.
        const bool selective = bits / parts >= 63 || (std::size_t{1} << bits / parts) > parts;
        if (radius_ > 0 && selective)
            for (std::size_t part = 0; part < parts && stop_.reason() == Stop::Reason::none; ++part) join_near(part, parts);
        if (radius_ > 0 && !selective) join_near(bits, 1);
        groups_.flatten();
        for (std::size_t row = 0; row < codes_.rows; ++row) out[row] = groups_.of(static_cast<std::uint32_t>(row));
    }

private:
    using Run = std::pair<std::size_t, std::size_t>;      // of rows_, one hash
    using Pair = std::pair<std::uint32_t, std::uint32_t>;

    const std::uint8_t* code(std::uint32_t row) const { return codes_.data + std::size_t{row} * codes_.bytes; }

    // Calls work(first, last) for pieces of [0, count) on all threads.
    template <class Work>
    void share(std::size_t count, std::size_t piece, Work work) {
        std::atomic<std::size_t> next{0};
        run_parallel(threads_, [&](unsigned) {
            for (std::size_t first; (first = next++ * piece) < count && !stop_.now();) work(first, std::min(count, first + piece));
        });
    }

    // Brings rows of one hash together, and lists where they stand.
    template <class HashRow>
    void sort(HashRow hash) {
        share(rows_.size(), kRowsPerTask, [&](std::size_t first, std::size_t last) {
            for (std::size_t i = first; i < last; ++i) rows_[i].key = hash(code(rows_[i].row));
        });
        sort_by_key(rows_, spare_, 32);
        runs_.clear();
        for (std::size_t first = 0, last; first < rows_.size(); first = last) {
            for (last = first + 1; last < rows_.size() && rows_[last].key == rows_[first].key;) ++last;
            if (last - first > 1) runs_.push_back({first, last});
        }
    }

    // Equal codes become one: all that follows compares different codes, so a million copies of one cost nothing.
    void join_equal() {
        const std::size_t bytes = codes_.bytes;
        sort([&](const std::uint8_t* code) {
            Hash hash;
            for (std::size_t i = 0; i < bytes; i += 8) {
                std::uint64_t word = 0;
                std::memcpy(&word, code + i, std::min<std::size_t>(8, bytes - i));
                hash.add(word);
            }
            return hash.value();
        });
        for (const Run& run : runs_) {
            if (stop_.now()) return;
            const auto first = rows_.begin() + static_cast<std::ptrdiff_t>(run.first), last = rows_.begin() + static_cast<std::ptrdiff_t>(run.second);
            const auto compare = [&](const Keyed& a, const Keyed& b) { return std::memcmp(code(a.row), code(b.row), bytes); };
            const bool one = std::all_of(first, last, [&](const Keyed& k) { return compare(*first, k) == 0; });
            if (!one) std::stable_sort(first, last, [&](const Keyed& a, const Keyed& b) { return compare(a, b) < 0; });
            for (auto it = first + 1; it < last; ++it)
                if (one || compare(it[-1], *it) == 0) groups_.join(it[-1].row, it->row);
        }
        groups_.flatten();
        std::erase_if(rows_, [&](const Keyed& k) { return groups_.of(k.row) != k.row; });
    }

    // Joins rows within the radius that have this part of their bits in common.
    void join_near(std::size_t part, std::size_t parts) {
        const std::size_t bits = codes_.bytes * 8;
        sort([&](const std::uint8_t* code) { return hash_of(code, bits, part, parts); });
        std::vector<std::vector<Pair>> found(threads_);
        std::atomic<std::size_t> next{0};
        run_parallel(threads_, [&](unsigned thread) {
            Local local;
            for (std::size_t first; (first = next++ * 64) < runs_.size() && !stop_.now();)
                for (std::size_t i = first; i < std::min(runs_.size(), first + 64); ++i) compare(runs_[i], local, found[thread]);
        });
        for (const auto& pairs : found)
            for (const auto& [a, b] : pairs) groups_.join(a, b);
        groups_.flatten();
    }

    // What a thread needs to compare one run.
    struct Local {
        std::vector<Pair> members;                     // group and row, sorted
        std::vector<std::uint32_t> waiting, joined;    // groups: of each of `codes`; those that are taken next
        std::vector<std::uint8_t> codes, asking;
        std::vector<std::uint16_t> distances;
    };

    void compare(const Run& run, Local& local, std::vector<Pair>& found) {
        if (run.second - run.first > kFew) return compare_many(run, local, found);
        for (std::size_t i = run.first; i < run.second; ++i)
            for (std::size_t j = i + 1; j < run.second; ++j) {
                const std::uint32_t a = rows_[i].row, b = rows_[j].row;
                if (groups_.of(a) == groups_.of(b)) continue;
                std::uint16_t distance;
                kernels_.row_distances(code(a), 1, codes_.bytes, code(b), &distance);
                if (distance <= radius_) found.emplace_back(a, b);
            }
    }

    // A group grows from its members in this run: each is compared with the rows that are not in it yet, and whole groups join it.
    // So rows that belong together are soon out of the way, and are not all compared with each other.
    void compare_many(const Run& run, Local& local, std::vector<Pair>& found) {
        const std::size_t bytes = codes_.bytes;
        local.members.clear();
        for (std::size_t i = run.first; i < run.second; ++i) local.members.emplace_back(groups_.of(rows_[i].row), rows_[i].row);
        std::sort(local.members.begin(), local.members.end());
        if (local.members.front().first == local.members.back().first) return;
        local.waiting.clear();
        local.codes.clear();
        for (const auto& [group, row] : local.members) {
            local.waiting.push_back(group);
            local.codes.insert(local.codes.end(), code(row), code(row) + bytes);
        }
        local.distances.resize(local.waiting.size());
        while (!local.waiting.empty() && !stop_.now()) {
            const std::uint32_t group = local.waiting.back();
            take_last(local);
            for (std::size_t at = 0; at < local.asking.size() && !local.waiting.empty() && !stop_.now(); at += bytes) {
                kernels_.row_distances(local.codes.data(), local.waiting.size(), bytes, local.asking.data() + at, local.distances.data());
                local.joined.clear();
                for (std::size_t i = 0; i < local.waiting.size(); ++i)
                    if (local.distances[i] <= radius_) local.joined.push_back(local.waiting[i]);
                if (local.joined.empty()) continue;
                for (const std::uint32_t other : local.joined) found.emplace_back(group, other);
                take_joined(local);
            }
        }
    }

    // Moves the codes of the last group from those that wait to those that ask. Groups stay together, in their order.
    void take_last(Local& local) const {
        std::size_t left = local.waiting.size() - 1;
        while (left > 0 && local.waiting[left - 1] == local.waiting[left]) --left;
        local.asking.assign(local.codes.begin() + static_cast<std::ptrdiff_t>(left * codes_.bytes), local.codes.end());
        local.codes.resize(left * codes_.bytes);
        local.waiting.resize(left);
    }

    // The same with those of the joined groups.
    void take_joined(Local& local) const {
        const std::size_t bytes = codes_.bytes;
        std::size_t out = 0;    // `joined` ascends, as `waiting` does
        for (std::size_t i = 0; i < local.waiting.size(); ++i) {
            const std::uint8_t* const from = local.codes.data() + i * bytes;
            if (std::binary_search(local.joined.begin(), local.joined.end(), local.waiting[i])) {
                local.asking.insert(local.asking.end(), from, from + bytes);
                continue;
            }
            if (out != i) std::memcpy(local.codes.data() + out * bytes, from, bytes);
            local.waiting[out++] = local.waiting[i];
        }
        local.waiting.resize(out);
        local.codes.resize(out * bytes);
    }

    const Codes& codes_;
    std::size_t radius_;
    unsigned threads_;
    Stop& stop_;
    const Kernels& kernels_;
    Groups groups_;
    std::vector<Keyed> rows_, spare_;
    std::vector<Run> runs_;
};

}  // namespace

void duplicates(const Codes& codes, std::size_t radius, const Mask& mask, unsigned threads, Stop& stop, std::int64_t* groups) {
    Duplicates(codes, radius, mask, threads, stop).run(groups);
}

}  // namespace bpr
