// Exact selection while rows stream past in ascending order: what may still enter the best l, and nothing else, is kept.
// No heap: a distance is a small integer, so counting says at once where the l-th stands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bpr {

// Distance and row in one word that sorts by (distance, row). Rows stay below 2^48.
struct Candidate {
    std::uint64_t key;
    Candidate(std::uint64_t distance, std::uint64_t row) : key(distance << 48 | row) {}
    std::uint32_t distance() const { return static_cast<std::uint32_t>(key >> 48); }
    std::int64_t row() const { return static_cast<std::int64_t>(key & ((std::uint64_t{1} << 48) - 1)); }
    bool operator<(const Candidate& o) const { return key < o.key; }
};

// The l nearest of the rows seen by one thread, ties to the lower row.
class Nearest {
public:
    void reset(std::size_t l, std::size_t bits) {
        l_ = l;
        below_ = 0;
        bound_ = static_cast<std::uint32_t>(bits + 1);
        counts_.assign(bits + 2, 0);
        kept_.clear();
        kept_.reserve(std::min<std::size_t>(capacity(), 1u << 14));
    }

    // A later row enters only with a smaller distance than this: l rows at most this far were seen, and they came first.
    std::uint32_t bound() const { return bound_; }

    void add(std::uint32_t distance, std::uint64_t row) {
        if (kept_.size() >= capacity()) compact();
        kept_.emplace_back(distance, row);
        ++counts_[distance];
        ++below_;
        while (below_ >= l_) below_ -= counts_[--bound_];
    }

    // Leaves at most l candidates, still by row: all nearer than the bound, and the first of those at it.
    void compact() {
        std::size_t at_bound = bound_ < counts_.size() - 1 ? l_ - below_ : 0;
        std::size_t out = 0;
        for (const Candidate& c : kept_) {    // no branch: which rows stay is as good as random
            const std::size_t tie = c.distance() == bound_ && at_bound > 0;
            kept_[out] = c;
            out += tie | static_cast<std::size_t>(c.distance() < bound_);
            at_bound -= tie;
        }
        kept_.resize(out, Candidate(0, 0));
    }

    const std::vector<Candidate>& kept() const { return kept_; }
    std::vector<Candidate>& kept() { return kept_; }

private:
    // Room for as many again as can stay, so that compacting costs a constant per row.
    std::size_t capacity() const { return 2 * l_ + 256; }

    std::size_t l_ = 0, below_ = 0;      // below_: rows seen nearer than bound_, always < l_
    std::uint32_t bound_ = 0;
    std::vector<std::uint32_t> counts_;  // rows seen at each distance
    std::vector<Candidate> kept_;        // in the order of rows
};

// The l first by (distance, row) of what several threads kept: counting sort by distance, then rows inside one distance.
inline void merge_nearest(const std::vector<Nearest*>& parts, std::size_t l, std::size_t bits, std::int64_t* rows,
                          std::int32_t* distances) {
    std::vector<std::size_t> start(bits + 2, 0);    // start[d + 1]: candidates at distance d, then where they begin
    for (Nearest* part : parts) {
        part->compact();
        for (const Candidate& c : part->kept()) ++start[c.distance() + 1];
    }
    std::size_t farthest = 0;
    for (std::size_t d = 0; d <= bits; ++d) {
        if (start[d] < l) farthest = d;
        start[d + 1] += start[d];
    }
    std::vector<std::int64_t> sorted(start[farthest + 1]);
    std::vector<std::size_t> next(start.begin(), start.end());
    for (Nearest* part : parts)
        for (const Candidate& c : part->kept())
            if (c.distance() <= farthest) sorted[next[c.distance()]++] = c.row();
    for (std::size_t d = 0; d <= farthest; ++d) {
        const auto first = sorted.begin() + static_cast<std::ptrdiff_t>(start[d]), last = sorted.begin() + static_cast<std::ptrdiff_t>(start[d + 1]);
        if (parts.size() > 1) std::sort(first, last);    // one thread's rows ascend already
        for (std::size_t i = start[d]; i < std::min(l, start[d + 1]); ++i) {
            rows[i] = sorted[i];
            distances[i] = static_cast<std::int32_t>(d);
        }
    }
}

struct Scored {
    float score;
    std::int64_t row;
};

// A type, not a function: std::sort would call a function by its address, and puts this in place of the call.
struct Better {
    bool operator()(const Scored& a, const Scored& b) const { return a.score > b.score || (a.score == b.score && a.row < b.row); }
};

// Puts the best k first, in order. Scores are finite (rerank.cpp sees to it), so this is a total order.
inline void keep_best(std::vector<Scored>& scored, std::size_t k) {
    if (k < scored.size()) {
        std::nth_element(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(k), scored.end(), Better{});
        scored.resize(k);
    }
    std::sort(scored.begin(), scored.end(), Better{});
}

// Of many scores those that may be among the best k, into `kept`: exact, and without a branch that hangs on a score (on random
// ones a processor guesses every second wrong). Scores are counted in equal steps from the lowest to the highest; so the step of
// the k-th best is known, and what lies below it goes. Where scores are too near to each other to have steps, all stay.
inline void first_cut(const float* scores, const std::int64_t* rows, std::size_t count, std::size_t k, std::vector<Scored>& kept) {
    constexpr std::size_t kSteps = 256;
    constexpr float kNear = 1e-30f;    // the scale must be finite
    float low = count > 0 ? scores[0] : 0, high = low;
    for (std::size_t i = 0; i < count; ++i) {
        low = std::min(low, scores[i]);
        high = std::max(high, scores[i]);
    }
    const float scale = high - low > kNear ? static_cast<float>(kSteps - 1) / (high - low) : 0;
    const auto step = [&](float score) { return static_cast<std::int32_t>((score - low) * scale); };    // a higher score's is no lower

    std::uint32_t counts[kSteps] = {};
    for (std::size_t i = 0; i < count; ++i) ++counts[step(scores[i])];
    std::int32_t bound = kSteps;
    std::size_t stay = 0;
    while (stay < k && bound > 0) stay += counts[--bound];
    kept.resize(stay + 1);    // one more: what goes is written too, where the next to stay will be
    std::size_t out = 0;
    for (std::size_t i = 0; i < count; ++i) {
        kept[out] = {scores[i], rows[i]};
        out += step(scores[i]) >= bound;
    }
    kept.resize(stay);
}

// The k best scores of the rows seen by one thread, ties to the lower row.
class Best {
public:
    explicit Best(std::size_t k) : k_(k) {}

    void add(float score, std::int64_t row) {
        if (full_ && !(score > bound_)) return;    // a later row loses a tie
        kept_.push_back({score, row});
        if (kept_.size() >= 2 * k_ + 64) compact();
    }

    std::vector<Scored>& kept() { return kept_; }

private:
    void compact() {
        std::nth_element(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(k_ - 1), kept_.end(), Better{});
        kept_.resize(k_);
        bound_ = kept_[k_ - 1].score;
        full_ = true;
    }

    std::size_t k_;
    bool full_ = false;
    float bound_ = 0;
    std::vector<Scored> kept_;
};

}  // namespace bpr
