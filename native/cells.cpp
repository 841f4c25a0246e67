// How a question goes through cells. All centroids are scored; the best cells, as many as hold the budget's rows, are cut into
// ranges of codes; threads take ranges in that order, best first, so that the distance that a row must have to enter falls
// early. Rows do not ascend here as in a scan, so a row enters by (distance, row): Closest.
#include "cells.h"

#include "hamming.h"
#include "select.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

namespace bpr {
namespace {

constexpr std::size_t kScoredTogether = 256;       // centroids of a task
constexpr std::size_t kRangeBytes = 1 << 16;       // codes of a task, at most; a cell has less as a rule
constexpr std::size_t kTileRows = 256;             // codes whose distances are compared with the bound while they are in the first-level cache
constexpr std::size_t kStep = 8;                   // distances of which it is asked together whether one passes
constexpr std::int16_t kFar = 0x7FFF;              // a distance that no bound reaches
constexpr std::size_t kSteps = 1024;               // steps from the lowest score of a cell to the highest
// How many deviations the best cell of a usual question lies above the mean of all cells, squared; and how many times the share
// of a usual question another may visit.
constexpr double kUsual = 23, kMost = 4;
constexpr std::size_t kHead = 1536;                // bytes of a range that nobody has asked for when it begins (hamming_impl.h: fetch_ahead)
constexpr std::size_t kFewKeys = 64;               // sorted by comparing

// The distance of the wanted-th nearest row seen, by counting: where fewer were seen, one that none has.
struct Bound {
    std::size_t wanted = 1, below = 0;    // below: rows seen nearer than `at`, always < wanted
    std::uint32_t at = 0;

    // counts: rows seen at each distance, this one among them.
    void add(std::uint32_t distance, const std::uint32_t* counts) {
        below += distance < at;
        while (below >= wanted) below -= counts[--at];
    }
};

// The l nearest of the codes that one thread sees, in any order; of equally distant ones those of the lower rows. A code comes
// with its position. Its row is looked up only if it stays that long: most of the look-ups wait for memory.
class alignas(64) Closest {    // threads have one each, side by side: not in the same line of the cache
public:
    void reset(const std::uint32_t* rows, std::size_t count, std::size_t l, std::size_t threads, std::size_t bits) {
        rows_ = rows;
        row_count_ = count;
        const auto none = static_cast<std::uint32_t>(bits + 1);
        all_ = {l, 0, none};
        share_ = {(l + threads - 1) / threads, 0, none};
        counts_.assign(bits + 2, 0);
        most_ = std::min(2 * l, count) + 256;
        kept_.resize(std::min(most_, std::size_t{1} << 13));
        size_ = known_ = 0;
    }

    // A code that is farther than the l-th nearest cannot enter; one that is as far may. Where every thread has its share of
    // the l at most as far as some distance, all have l.
    std::uint32_t bound() const { return all_.at; }
    std::uint32_t bound_of_share() const { return share_.at; }
    std::size_t size() const { return size_; }

    void add(std::uint32_t distance, std::uint64_t position) {
        if (size_ == kept_.size()) size_ < most_ ? kept_.resize(std::min(most_, 2 * size_)) : make_room();
        kept_[size_++] = Candidate(distance, position).key;
        ++counts_[distance];
        all_.add(distance, counts_.data());
        share_.add(distance, counts_.data());
    }

    // Those at most as far as `bound`, with their rows.
    void append_to(std::vector<std::uint64_t>& keys, std::uint32_t bound) {
        drop_farther(bound);
        look_up();
        keys.insert(keys.end(), kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(size_));
    }

private:
    // Few are as far as the bound; where many are, rows decide.
    void make_room() {
        drop_farther(bound());
        if (size_ <= most_ - most_ / 4) return;
        look_up();
        std::nth_element(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(all_.wanted - 1), kept_.begin() + static_cast<std::ptrdiff_t>(size_));
        size_ = known_ = all_.wanted;
    }

    void drop_farther(std::uint32_t bound) {
        std::size_t out = 0, known = 0;
        for (std::size_t i = 0; i < size_; ++i) {    // no branch: which stay is as good as random
            kept_[out] = kept_[i];
            out += kept_[i] >> 48 <= bound;
            known = i < known_ ? out : known;
        }
        size_ = out;
        known_ = known;
    }

    void look_up() {
        constexpr std::uint64_t kPosition = (std::uint64_t{1} << 48) - 1;
        for (std::size_t i = known_; i < size_; ++i) __builtin_prefetch(rows_ + (kept_[i] & kPosition));
        for (std::size_t i = known_; i < size_; ++i) {
            const std::uint32_t row = rows_[kept_[i] & kPosition];
            if (row >= row_count_) throw std::invalid_argument("the cells name a row that is not in the index");
            kept_[i] = (kept_[i] & ~kPosition) | row;
        }
        known_ = size_;
    }

    const std::uint32_t* rows_ = nullptr;
    std::size_t row_count_ = 0;
    Bound all_, share_;
    std::vector<std::uint32_t> counts_;      // codes seen at each distance; exact as far as a bound
    std::vector<std::uint64_t> kept_;        // keys of Candidates: the first `known_` with rows, those up to `size_` with positions
    std::size_t most_ = 0, size_ = 0, known_ = 0;
};

// Sorts by `width` bits from bit `shift` on, keeping the order of equals.
void sort_by_digit(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& spare, unsigned shift, unsigned width) {
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    std::vector<std::uint32_t> next(mask + 2, 0);
    for (const std::uint64_t key : keys) ++next[(key >> shift & mask) + 1];
    for (std::size_t d = 1; d <= mask; ++d) next[d] += next[d - 1];
    spare.resize(keys.size());
    for (const std::uint64_t key : keys) spare[next[key >> shift & mask]++] = key;
    keys.swap(spare);
}

// Ascending. Keys have a distance and a row below `rows`: a few digits, so that nothing is compared.
void sort_keys(std::vector<std::uint64_t>& keys, std::size_t rows, std::size_t bits) {
    if (keys.size() <= kFewKeys) return std::sort(keys.begin(), keys.end());
    const auto row_bits = static_cast<unsigned>(std::bit_width(rows)), digits = (row_bits + 11) / 12, width = (row_bits + digits - 1) / digits;
    std::vector<std::uint64_t> spare;
    for (unsigned d = 0; d < digits; ++d) sort_by_digit(keys, spare, d * width, width);
    sort_by_digit(keys, spare, 48, static_cast<unsigned>(std::bit_width(bits)));
}

// The question in whole numbers, as large as sums allow: centroids are at most 128.
void quantise(const float* vector, std::size_t bits, std::int16_t* out) {
    float largest = 0;
    for (std::size_t i = 0; i < bits; ++i) largest = std::max(largest, std::abs(vector[i]));
    const std::size_t limit = std::min<std::size_t>(std::numeric_limits<std::int16_t>::max(), std::numeric_limits<std::int32_t>::max() / (128 * bits));
    const double scale = largest > 0 ? static_cast<double>(limit) / largest : 0;
    for (std::size_t i = 0; i < bits; ++i) out[i] = static_cast<std::int16_t>(std::lrint(vector[i] * scale));
}

struct Range {
    std::size_t first, last;    // positions
};

// One question's way through the cells, on one thread or on several.
class Probe {
public:
    Probe(const Cells& cells, const std::uint8_t* code, const float* vector, std::size_t l, double share, const Mask& mask,
          unsigned threads, Stop& stop)
        : cells_(cells), code_(code), l_(l), share_(share), mask_(mask), stop_(stop), kernels_(level()), question_(bits()),
          scores_(cells.centroids.count), closest_(threads), shares_(threads) {
        quantise(vector, bits(), question_.data());
        order_.reserve(cells.centroids.count);
        ranges_.reserve(cells.centroids.count + cells.codes.rows / range_rows());    // choose() must not throw: others wait for it
        for (auto& bound : shares_) bound.store(static_cast<std::uint32_t>(bits() + 1));
        for (Closest& closest : closest_) closest.reset(cells.rows, cells.codes.rows, l, threads, bits());
    }

    // False: told to stop.
    bool run(std::int64_t* rows, std::int32_t* distances, std::int64_t* visited) {
        run_parallel(static_cast<unsigned>(closest_.size()), [this](unsigned thread) {
            if (score()) visit(thread);
        });
        while (stop_.reason() == Stop::Reason::none && seen() < l_) {    // a mask left too few
            budget_ *= 2;
            choose();
            run_parallel(static_cast<unsigned>(closest_.size()), [this](unsigned thread) { visit(thread); });
        }
        if (stop_.reason() != Stop::Reason::none) return false;
        merge(rows, distances);
        *visited = static_cast<std::int64_t>(visited_);
        return true;
    }

private:
    std::size_t bits() const { return cells_.centroids.bits; }
    std::size_t range_rows() const { return kRangeBytes / cells_.codes.bytes; }
    std::size_t size_of(std::size_t cell) const { return static_cast<std::size_t>(cells_.starts[cell + 1] - cells_.starts[cell]); }

    // All centroids, shared by the threads; who ends the last task chooses the cells, and the others wait for that.
    bool score() {
        const std::size_t count = cells_.centroids.count, tasks = (count + kScoredTogether - 1) / kScoredTogether;
        for (std::size_t task; (task = next_task_++) < tasks;) {
            if (stop_.now()) return false;
            const std::size_t first = task * kScoredTogether;
            kernels_.products(cells_.centroids.data + first * bits(), std::min(kScoredTogether, count - first), bits(), question_.data(), scores_.data() + first);
            if (++scored_ == tasks) {
                choose();
                chosen_.store(true, std::memory_order_release);
            }
        }
        while (!chosen_.load(std::memory_order_acquire)) {
            if (stop_.now()) return false;
            std::this_thread::yield();
        }
        return true;
    }

    // The cells to visit, by (score descending, cell), as far as they have not been visited: the least number of them that has
    // the budget's rows. Scores are counted in steps first, so that only cells that may be among them are sorted.
    void choose() {
        const auto [low, high] = std::minmax_element(scores_.begin(), scores_.end());
        const std::int64_t lowest = *low;
        const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(*high - lowest))) - static_cast<int>(std::bit_width(kSteps - 1)));
        const auto step = [&](std::size_t cell) { return static_cast<std::size_t>(scores_[cell] - lowest) >> shift; };

        std::array<std::size_t, kSteps> rows{};
        std::uint64_t sum = 0, squares = 0;
        for (std::size_t cell = 0; cell < scores_.size(); ++cell) {
            rows[step(cell)] += size_of(cell);
            sum += step(cell);
            squares += step(cell) * step(cell);
        }
        if (budget_ == 0) budget_ = std::max(l_, budget(static_cast<double>(sum), static_cast<double>(squares), static_cast<double>((*high - lowest) >> shift)));
        std::size_t bound = kSteps, within = 0;
        while (bound > 0 && within < budget_) within += rows[--bound];
        order_.clear();
        for (std::size_t cell = 0; cell < scores_.size(); ++cell)
            if (step(cell) >= bound) order_.push_back(static_cast<std::uint64_t>(std::int64_t{*high} - scores_[cell]) << 32 | cell);
        std::sort(order_.begin(), order_.end());
        cut_into_ranges();
    }

    // The question's own share, from the scores of all cells in steps. Its odds are multiplied, so that all stays all.
    std::size_t budget(double sum, double squares, double highest) const {
        const auto count = static_cast<double>(scores_.size());
        const double above = highest - sum / count, variance = squares / count - sum / count * (sum / count);
        const double times = above > 0 ? std::clamp(kUsual * variance / (above * above), 1 / kMost, kMost) : 1;
        const double part = times * share_ / (1 - share_ + times * share_);
        return std::min(cells_.codes.rows, static_cast<std::size_t>(std::ceil(part * static_cast<double>(cells_.codes.rows))));
    }

    void cut_into_ranges() {
        ranges_.clear();
        next_range_ = 0;
        std::size_t within = 0;
        for (std::size_t i = 0; i < order_.size() && within < budget_; ++i) {
            const std::size_t cell = order_[i] & 0xFFFFFFFF, end = static_cast<std::size_t>(cells_.starts[cell + 1]);
            within += size_of(cell);
            if (i < cells_visited_) continue;
            for (auto first = static_cast<std::size_t>(cells_.starts[cell]); first < end; first += range_rows()) ranges_.push_back({first, std::min(end, first + range_rows())});
            cells_visited_ = i + 1;
        }
        visited_ = within;
    }

    void visit(unsigned thread) {
        Closest& closest = closest_[thread];
        for (std::size_t i; (i = next_range_++) < ranges_.size();) {
            if (stop_.now()) return;
            if (i + closest_.size() < ranges_.size()) fetch(ranges_[i + closest_.size()]);    // this thread's next, as a rule
            visit(closest, ranges_[i]);
            shares_[thread].store(closest.bound_of_share(), std::memory_order_relaxed);
        }
    }

    void fetch(const Range& range) const {
        const std::uint8_t* const codes = cells_.codes.data + range.first * cells_.codes.bytes;
        const std::size_t bytes = std::min(kHead, (range.last - range.first) * cells_.codes.bytes);
        for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(codes + i);
    }

    // What no code of any thread may be farther than.
    std::uint32_t shared_bound() const {
        std::uint32_t farthest = 0;
        for (const auto& bound : shares_) farthest = std::max(farthest, bound.load(std::memory_order_relaxed));
        return farthest;
    }

    void visit(Closest& closest, const Range& range) {
        std::uint16_t distances[kTileRows];
        const std::size_t bytes = cells_.codes.bytes;
        const std::uint32_t shared = shared_bound();
        for (std::size_t first = range.first; first < range.last; first += kTileRows) {
            const std::size_t count = std::min(kTileRows, range.last - first), whole = (count + kStep - 1) / kStep * kStep;
            kernels_.row_distances(cells_.codes.data + first * bytes, count, bytes, code_, distances);
            std::fill(distances + count, distances + whole, static_cast<std::uint16_t>(kFar));
            pick(closest, distances, whole, first, shared);
        }
    }

    // Few codes pass: they are marked in a byte each (the compiler makes that vector code), and eight bytes are looked at together.
    void pick(Closest& closest, const std::uint16_t* distances, std::size_t count, std::size_t position, std::uint32_t shared) {
        std::uint8_t passes[kTileRows];
        const auto limit = static_cast<std::int16_t>(std::min(closest.bound(), shared));    // signed: that is what every vector unit compares
        for (std::size_t i = 0; i < count; ++i) passes[i] = static_cast<std::int16_t>(distances[i]) <= limit;
        for (std::size_t first = 0; first < count; first += kStep) {
            std::uint64_t marks;
            std::memcpy(&marks, passes + first, kStep);
            for (; marks != 0; marks &= marks - 1) {
                const std::size_t i = first + static_cast<std::size_t>(std::countr_zero(marks)) / 8;
                if (distances[i] <= closest.bound() && alive(position + i)) closest.add(distances[i], position + i);
            }
        }
    }

    bool alive(std::size_t position) const {
        if (mask_.bits == nullptr) return true;
        const std::size_t row = cells_.rows[position];
        if (row >= cells_.codes.rows) throw std::invalid_argument("the cells name a row that is not in the index");
        return mask_.bits[row / 8] >> (row % 8) & 1;
    }

    // Live rows seen, as long as they are fewer than l: until then all are kept.
    std::size_t seen() const {
        std::size_t sum = 0;
        for (const Closest& closest : closest_) sum += closest.size();
        return visited_ == cells_.codes.rows ? std::max(sum, l_) : sum;
    }

    void merge(std::int64_t* rows, std::int32_t* distances) {
        std::uint32_t bound = shared_bound();
        for (const Closest& closest : closest_) bound = std::min(bound, closest.bound());
        std::vector<std::uint64_t> keys;
        for (Closest& closest : closest_) closest.append_to(keys, bound);
        if (keys.size() < l_) throw std::invalid_argument("the cells do not have every row");
        sort_keys(keys, cells_.codes.rows, bits());
        for (std::size_t i = 0; i < l_; ++i) {
            rows[i] = static_cast<std::int64_t>(keys[i] & ((std::uint64_t{1} << 48) - 1));
            distances[i] = static_cast<std::int32_t>(keys[i] >> 48);
        }
    }

    const Cells& cells_;
    const std::uint8_t* code_;
    std::size_t l_;
    double share_;                            // of all codes, for a usual question
    std::size_t budget_ = 0;                  // codes to visit
    const Mask& mask_;
    Stop& stop_;
    const Kernels& kernels_;
    std::vector<std::int16_t> question_;
    std::vector<std::int32_t> scores_;        // of all cells
    std::vector<std::uint64_t> order_;        // the best cells: how far below the best score, and which
    std::vector<Range> ranges_;               // what is to be visited now
    std::vector<Closest> closest_;            // one a thread
    std::size_t cells_visited_ = 0, visited_ = 0;
    std::vector<std::atomic<std::uint32_t>> shares_;    // [thread], its bound_of_share
    std::atomic<std::size_t> next_task_{0}, scored_{0}, next_range_{0};
    std::atomic<bool> chosen_{false};
};

}  // namespace

void probe(const Cells& cells, const ProbeQuestions& questions, std::size_t l, double share, const Mask& mask, unsigned threads,
           Stop& stop, std::int64_t* rows, std::int32_t* distances, std::int64_t* visited) {
    const std::size_t count = questions.codes.rows, bits = cells.centroids.bits;
    std::fill(visited, visited + count, 0);
    if (l == 0) return;
    const auto one = [&](std::size_t j, unsigned together) {
        Probe probe(cells, questions.codes.data + j * cells.codes.bytes, questions.vectors + j * bits, l, share, mask, together, stop);
        return probe.run(rows + j * l, distances + j * l, visited + j);
    };
    std::atomic<std::size_t> next{0};
    if (count < threads) {    // few questions: the threads share each
        const auto codes = std::max(l, static_cast<std::size_t>(share * static_cast<double>(cells.codes.rows)));
        const std::size_t bytes = codes * cells.codes.bytes + cells.centroids.count * bits;
        while (next < count && one(next++, useful_threads(threads, bytes))) {}
        return;
    }
    run_parallel(static_cast<unsigned>(std::min<std::size_t>(threads, count)), [&](unsigned) {
        for (std::size_t j; (j = next++) < count && one(j, 1);) {}
    });
}

}  // namespace bpr
