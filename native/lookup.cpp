// How a question is looked up: keys at a growing distance from its own, table by table, as long as what that costs stays below a
// scan; scan.cpp takes over where it does not. What a probe and a comparison cost is the caller's to say.
#include "lookup.h"

#include "hamming.h"
#include "radix.h"
#include "select.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

namespace bpr {
namespace {

// The share of a scan that may be spent on a question before it is known that looking up will be cheaper.
constexpr double kExplore = 0.01;
// The share that a look-up may be estimated at when it sets out: estimates are off by some.
constexpr double kClearly = 0.75;
// Keys whose rows are found together: enough for memory to work ahead, few enough to change one's mind between them.
constexpr std::size_t kKeys = 512;
// Rows whose codes are fetched ahead of their comparison.
constexpr std::size_t kAhead = 16;
// Rows of a table between two looks at the deadline.
constexpr std::size_t kRowsPerLook = 1 << 16;

std::uint32_t key_of(const std::uint8_t* code, const std::uint16_t* bits, std::size_t width) {
    std::uint32_t key = 0;
    for (std::size_t i = 0; i < width; ++i) key = key << 1 | (code[bits[i] / 8] >> (7 - bits[i] % 8) & 1u);
    return key;
}

// One table: the rows sorted by their keys, and where each key begins.
void build_table(const Codes& codes, const std::uint16_t* bits, std::size_t width, Stop& stop, std::vector<Keyed>& keyed,
                 std::vector<Keyed>& spare, std::uint32_t* starts, std::uint32_t* rows) {
    keyed.resize(codes.rows);
    for (std::size_t row = 0; row < codes.rows; ++row) {
        if (row % kRowsPerLook == 0 && stop.now()) return;
        keyed[row] = {key_of(codes.data + row * codes.bytes, bits, width), static_cast<std::uint32_t>(row)};
    }
    sort_by_key(keyed, spare, width);
    std::size_t key = 0;
    for (std::size_t i = 0; i < codes.rows; ++i) {
        for (; key <= keyed[i].key; ++key) starts[key] = static_cast<std::uint32_t>(i);
        rows[i] = keyed[i].row;
    }
    for (; key <= std::size_t{1} << width; ++key) starts[key] = static_cast<std::uint32_t>(codes.rows);
}

// Rows that were seen. While they are few, in a small open table: a bit for every row would have to be cleared for every question.
class RowSet {
public:
    explicit RowSet(std::size_t rows) : rows_(rows) {}

    void clear() {
        slots_.assign(kSlots, 0);
        bits_.clear();
        size_ = 0;
    }

    bool add(std::uint32_t row) {    // false: it was in already
        if (!bits_.empty()) return set(row);
        std::size_t at = row * 2654435769u >> (32 - kSlotBits);
        while (slots_[at] != 0 && slots_[at] != row + 1) at = (at + 1) % kSlots;
        if (slots_[at] != 0) return false;
        slots_[at] = row + 1;
        if (++size_ > kSlots / 2) take_bits();
        return true;
    }

private:
    static constexpr unsigned kSlotBits = 11;
    static constexpr std::size_t kSlots = 1 << kSlotBits;

    bool set(std::uint32_t row) {
        const std::uint64_t bit = std::uint64_t{1} << row % 64;
        const bool fresh = (bits_[row / 64] & bit) == 0;
        bits_[row / 64] |= bit;
        return fresh;
    }

    void take_bits() {
        bits_.assign((rows_ + 63) / 64, 0);
        for (const std::uint32_t slot : slots_)
            if (slot != 0) set(slot - 1);
    }

    std::size_t rows_, size_ = 0;
    std::vector<std::uint32_t> slots_;    // row + 1, or 0: free
    std::vector<std::uint64_t> bits_;     // one a row, or none yet
};

// One thread's look-ups, one question after another.
//
// Each table is asked for its keys at distance 0, 1, 2 … from the question's: ring by ring. A row that no ring has shown differs from
// the question in at least as many bits of each table as rings of it were asked, so its distance is at least the sum of all rings
// asked, `sure_`. As soon as l rows nearer than that are known, they and their ties are the answer.
class Searcher {
public:
    Searcher(const Codes& codes, const Tables& tables, std::size_t l, const Mask& mask, const Costs& costs, Stop& stop)
        : codes_(codes), tables_(tables), l_(l), mask_(mask), costs_(costs), stop_(stop), kernels_(level()), seen_(codes.rows),
          keys_(tables.count), rings_(tables.count), density_(tables.count), choose_(tables.width + 2) {
        choose_[0] = 1;
        for (std::size_t r = 1; r <= tables.width; ++r) choose_[r] = choose_[r - 1] * static_cast<double>(tables.width - r + 1) / static_cast<double>(r);
        choose_[tables.width + 1] = std::numeric_limits<double>::infinity();    // no such ring: all rows were shown
        even_ = static_cast<double>(codes.rows) / static_cast<double>(std::size_t{1} << tables.width);
    }

    Effort run(const std::uint8_t* question, std::int64_t* rows, std::int32_t* distances) {
        begin(question);
        Outcome outcome = Outcome::fell_back;
        while (!stop_.now()) {
            const std::size_t table = cheapest();
            if (rings_[table] > tables_.width) {    // every ring of every table, and rows are missing
                outcome = Outcome::corrupt;
                break;
            }
            const Next next = ring(table);
            if (next == Next::give_up) break;
            if (next == Next::corrupt) outcome = Outcome::corrupt;
            if (next == Next::corrupt || enough()) break;
        }
        if (enough() && outcome != Outcome::corrupt && stop_.reason() == Stop::Reason::none) {
            outcome = Outcome::found;
            finish(rows, distances);
        }
        return {probes_, visited_, outcome};
    }

private:
    enum class Next { go_on, give_up, corrupt };
    struct Range {
        std::uint32_t first, last;
    };

    void begin(const std::uint8_t* question) {
        question_ = question;
        for (std::size_t t = 0; t < tables_.count; ++t) {
            keys_[t] = key_of(question, tables_.bits + t * tables_.width, tables_.width);
            __builtin_prefetch(starts(t) + keys_[t]);
        }
        std::fill(rings_.begin(), rings_.end(), 0);
        for (std::size_t t = 0; t < tables_.count; ++t)    // the first ring is one key: what it holds is known at once
            density_[t] = static_cast<double>(starts(t)[keys_[t] + 1]) - static_cast<double>(starts(t)[keys_[t]]);
        bound_ = codes_.bytes * 8 + 1;
        counts_.assign(bound_ + 1, 0);
        below_ = sure_ = asked_ = 0;
        set_out_ = false;
        spent_ = static_cast<double>(tables_.count) * costs_.probe;
        probes_ = listed_ = visited_ = 0;
        kept_.clear();
        seen_.clear();
    }

    const std::uint32_t* starts(std::size_t table) const { return tables_.starts + table * ((std::size_t{1} << tables_.width) + 1); }

    double ring_cost(std::size_t ring, double density) const {
        return choose_[ring] * (costs_.probe + density * (costs_.list + costs_.visit));
    }

    std::size_t cheapest() const {
        std::size_t best = 0;
        double least = ring_cost(rings_[0], density_[0]);
        for (std::size_t t = 1; t < tables_.count; ++t) {
            const double cost = ring_cost(rings_[t], density_[t]);
            if (cost < least) best = t, least = cost;
        }
        return best;
    }

    bool enough() const { return bound_ < sure_ || visited_ == static_cast<std::int64_t>(mask_.live); }

    // Whether to spend `next` more. Either it is little, whatever comes of it; or l rows are known, so that it is known too how far to
    // look at most, and that costs clearly less than a scan. Who has set out for that goes on while the rest is cheaper than a scan.
    bool worth(double next) {
        if (spent_ + next <= kExplore * costs_.scan) return true;
        if (bound_ > codes_.bytes * 8) return false;
        const double rest = std::max(next, to_reach(bound_));
        set_out_ = set_out_ || spent_ + rest <= kClearly * costs_.scan;
        return set_out_ && rest <= costs_.scan;
    }

    // What it will cost until every row up to this distance was shown: so many more rings, the small ones first.
    double to_reach(std::size_t distance) const {
        if (distance < sure_) return 0;
        std::size_t missing = distance + 1 - sure_;
        const double density = std::max(even_, static_cast<double>(listed_) / static_cast<double>(std::max<std::int64_t>(1, probes_)));
        double cost = -static_cast<double>(asked_) * ring_cost(0, density);    // keys of a ring that has begun
        for (std::size_t r = 0; r <= tables_.width && missing > 0; ++r) {
            const auto behind = static_cast<std::size_t>(std::count_if(rings_.begin(), rings_.end(), [&](std::size_t done) { return done <= r; }));
            const std::size_t steps = std::min(missing, behind);
            cost += static_cast<double>(steps) * ring_cost(r, density);
            missing -= steps;
        }
        return missing > 0 ? std::numeric_limits<double>::infinity() : cost;
    }

    // The next ring of one table: all keys that differ from the question's in exactly so many bits.
    Next ring(std::size_t table) {
        const std::size_t distance = rings_[table];
        if (!worth(ring_cost(distance, density_[table]))) return Next::give_up;
        const std::uint64_t end = std::uint64_t{1} << tables_.width;
        std::uint64_t flips = (std::uint64_t{1} << distance) - 1;
        std::size_t rows = 0;
        while (flips < end) {
            ranges_.clear();
            for (; flips < end && ranges_.size() < kKeys; flips = next_with_as_many_ones(flips)) {
                const auto key = static_cast<std::uint32_t>(keys_[table] ^ flips);
                __builtin_prefetch(starts(table) + key);
                ranges_.push_back({key, 0});
            }
            std::size_t listed = 0;
            asked_ += ranges_.size();
            if (!find_ranges(table, listed)) return Next::corrupt;
            if (stop_.now() || !worth(static_cast<double>(listed) * (costs_.list + costs_.visit))) return Next::give_up;
            if (!visit(table)) return Next::corrupt;
            rows += listed;
        }
        asked_ = 0;
        ++rings_[table];
        ++sure_;
        density_[table] = std::max(even_, static_cast<double>(rows) / choose_[distance]);
        return Next::go_on;
    }

    static std::uint64_t next_with_as_many_ones(std::uint64_t x) {
        if (x == 0) return std::numeric_limits<std::uint64_t>::max();
        const std::uint64_t lowest = x & (~x + 1), carried = x + lowest;
        return carried | (((x ^ carried) >> 2) / lowest);
    }

    // Turns keys into the ranges of their rows.
    bool find_ranges(std::size_t table, std::size_t& listed) {
        const std::uint32_t* const all = tables_.rows + table * codes_.rows;
        std::size_t out = 0;
        for (const Range& asked : ranges_) {
            const Range range{starts(table)[asked.first], starts(table)[asked.first + 1]};
            if (range.first > range.last || range.last > codes_.rows) return false;
            ranges_[out] = range;
            out += range.first < range.last;
            listed += range.last - range.first;
            __builtin_prefetch(all + range.first);
        }
        probes_ += static_cast<std::int64_t>(ranges_.size());
        spent_ += static_cast<double>(ranges_.size()) * costs_.probe;
        ranges_.resize(out);
        return true;
    }

    // Compares the rows of the ranges that were not seen yet.
    bool visit(std::size_t table) {
        const std::uint32_t* const all = tables_.rows + table * codes_.rows;
        unseen_.clear();
        std::size_t listed = 0;
        for (const Range& range : ranges_) {
            listed += range.last - range.first;
            for (std::uint32_t i = range.first; i < range.last; ++i) {
                const std::uint32_t row = all[i];
                if (row >= codes_.rows) return false;
                if (seen_.add(row)) unseen_.push_back(row);
            }
        }
        listed_ += static_cast<std::int64_t>(listed);
        std::int64_t compared = 0;
        for (std::size_t i = 0; i < unseen_.size(); ++i) {
            if (i % 4096 == 0 && stop_.now()) return true;
            if (i + kAhead < unseen_.size()) fetch(unseen_[i + kAhead]);
            const std::size_t row = unseen_[i];
            if (mask_.bits != nullptr && (mask_.bits[row / 8] >> (row % 8) & 1) == 0) continue;
            std::uint16_t distance;
            kernels_.row_distances(codes_.data + row * codes_.bytes, 1, codes_.bytes, question_, &distance);
            ++compared;
            keep(distance, row);
        }
        visited_ += compared;
        spent_ += static_cast<double>(listed) * costs_.list + static_cast<double>(compared) * costs_.visit;
        return true;
    }

    void fetch(std::size_t row) const {
        const std::uint8_t* const code = codes_.data + row * codes_.bytes;
        for (std::size_t at = 0; at < codes_.bytes; at += 64) __builtin_prefetch(code + at);
        __builtin_prefetch(code + codes_.bytes - 1);
    }

    // bound_ is the distance of the l-th nearest so far: counting as in select.h, but rows come in any order, so those at it stay.
    void keep(std::uint32_t distance, std::size_t row) {
        if (distance > bound_) return;
        kept_.emplace_back(distance, row);
        if (distance < bound_) {
            ++counts_[distance];
            ++below_;
            while (below_ >= l_) below_ -= counts_[--bound_];
        }
        if (kept_.size() < 2 * l_ + 256) return;
        std::nth_element(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(l_), kept_.end());
        kept_.resize(l_, Candidate(0, 0));
    }

    void finish(std::int64_t* rows, std::int32_t* distances) {
        std::sort(kept_.begin(), kept_.end());
        for (std::size_t i = 0; i < l_; ++i) {
            rows[i] = kept_[i].row();
            distances[i] = static_cast<std::int32_t>(kept_[i].distance());
        }
    }

    const Codes& codes_;
    const Tables& tables_;
    std::size_t l_;
    const Mask& mask_;
    const Costs& costs_;
    Stop& stop_;
    const Kernels& kernels_;
    const std::uint8_t* question_ = nullptr;
    RowSet seen_;
    std::vector<std::uint32_t> unseen_;     // rows of the last ranges
    std::vector<std::uint32_t> keys_;       // [table], the question's
    std::vector<std::size_t> rings_;        // [table], how many were asked
    std::vector<double> density_;           // [table], rows a key in the last ring; before the first: in the first
    std::vector<double> choose_;            // [ring], its keys
    std::vector<Range> ranges_;
    std::vector<Candidate> kept_;
    std::vector<std::uint32_t> counts_;     // rows seen at each distance
    std::size_t bound_ = 0, below_ = 0, sure_ = 0, asked_ = 0;
    bool set_out_ = false;
    std::int64_t probes_ = 0, listed_ = 0, visited_ = 0;
    double spent_ = 0, even_ = 0;
};

}  // namespace

void build_tables(const Codes& codes, const std::uint16_t* bits, std::size_t count, std::size_t width, unsigned threads, Stop& stop,
                  std::uint32_t* starts, std::uint32_t* rows) {
    std::atomic<std::size_t> next{0};
    run_parallel(static_cast<unsigned>(std::min<std::size_t>(useful_threads(threads, codes.rows * codes.bytes), count)), [&](unsigned) {
        std::vector<Keyed> keyed, spare;
        for (std::size_t t; (t = next++) < count && !stop.now();)
            build_table(codes, bits + t * width, width, stop, keyed, spare, starts + t * ((std::size_t{1} << width) + 1), rows + t * codes.rows);
    });
}

namespace {

// One scan for all questions that gave up.
void scan_rest(const Codes& codes, const Codes& questions, std::size_t l, const Mask& mask, unsigned threads, Stop& stop, std::int64_t* rows,
               std::int32_t* distances, const Effort* efforts) {
    std::vector<std::size_t> rest;
    for (std::size_t j = 0; j < questions.rows; ++j)
        if (efforts[j].outcome == Outcome::fell_back) rest.push_back(j);
    if (rest.size() == questions.rows) return scan(codes, questions, l, mask, threads, stop, rows, distances);
    std::vector<std::uint8_t> asked(rest.size() * codes.bytes);
    std::vector<std::int64_t> found(rest.size() * l);
    std::vector<std::int32_t> far(rest.size() * l);
    for (std::size_t i = 0; i < rest.size(); ++i) std::memcpy(asked.data() + i * codes.bytes, questions.data + rest[i] * codes.bytes, codes.bytes);
    scan(codes, {asked.data(), rest.size(), codes.bytes}, l, mask, threads, stop, found.data(), far.data());
    for (std::size_t i = 0; i < rest.size(); ++i) {
        std::copy_n(found.data() + i * l, l, rows + rest[i] * l);
        std::copy_n(far.data() + i * l, l, distances + rest[i] * l);
    }
}

}  // namespace

void lookup(const Codes& codes, const Tables& tables, const Codes& questions, std::size_t l, const Mask& mask, const Costs& costs,
            unsigned workers, unsigned threads, Stop& stop, std::int64_t* rows, std::int32_t* distances, Effort* efforts) {
    std::fill(efforts, efforts + questions.rows, Effort{0, 0, Outcome::fell_back});
    // Where l rows cannot be known before giving up, there is nothing to begin with.
    if (static_cast<double>(l) * (costs.list + costs.visit) <= kExplore * costs.scan) {
        std::atomic<std::size_t> next{0};
        run_parallel(static_cast<unsigned>(std::min<std::size_t>(questions.rows, workers)), [&](unsigned) {
            Searcher searcher(codes, tables, l, mask, costs, stop);
            for (std::size_t j; (j = next++) < questions.rows && !stop.now();)
                efforts[j] = searcher.run(questions.data + j * codes.bytes, rows + j * l, distances + j * l);
        });
    }
    if (stop.reason() == Stop::Reason::none) scan_rest(codes, questions, l, mask, threads, stop, rows, distances, efforts);
}

}  // namespace bpr
