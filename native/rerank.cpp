// Scores by table look-up. A byte of signs (or a nibble of signs with its nibble of magnitudes) takes one of 256 values, so
// the question's share of the score for each value is summed once and then looked up: 96 look-ups for 768 sign bits or
// for 384 dimensions of two planes, instead of 768 multiplications and an unpacked row.
//
// Every sum is made in one fixed order (pairs of nibbles in a table, then kLanes running sums, then pairs of those), with no
// vector code of ours and no fused multiply-add (-ffp-contract=off): scores are the same bits on every machine.
#include "rerank.h"

#include "select.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace bpr {
namespace {

constexpr std::size_t kLanes = 8;          // independent sums: hides the latency of an addition, and rounds less
constexpr std::size_t kAhead = 16;         // candidates whose bytes are asked for before they are needed
constexpr std::size_t kTileRows = 1024;    // rows that one question's table is used for before the next question's
constexpr std::size_t kTableBudget = 8 << 20;

// share[v]: the score of four values whose 0/1 choices are the bits of v, most significant first.
void four_choices(const float* low, const float* high, float* share) {
    for (unsigned v = 0; v < 16; ++v) {
        const float first = (v & 8 ? high[0] : low[0]) + (v & 4 ? high[1] : low[1]);
        const float second = (v & 2 ? high[2] : low[2]) + (v & 1 ? high[3] : low[3]);
        share[v] = first + second;
    }
}

class Table {
public:
    Table(const Planes& planes, const float* question) : bytes_(planes.signs.bytes), two_(planes.magnitudes != nullptr) {
        shares_.resize(bytes_ * 256 * (two_ ? 2 : 1));
        float* out = shares_.data();
        if (two_) {
            for (std::size_t i = 0; i < bytes_ * 8; i += 4, out += 256) fill_two(question + i, planes.levels, out);
        } else {
            for (std::size_t i = 0; i < bytes_ * 8; i += 8, out += 256) fill_one(question + i, out);
        }
    }

    float score(const std::uint8_t* signs, const std::uint8_t* magnitudes) const {
        return two_ ? sum<2>(signs, magnitudes) : sum<1>(signs, magnitudes);
    }

private:
    // 256 values of a byte of signs: the high nibble is the first four dimensions.
    static void fill_one(const float* question, float* out) {
        float minus[8], high[16], low[16];
        for (int i = 0; i < 8; ++i) minus[i] = -question[i];
        four_choices(minus, question, high);
        four_choices(minus + 4, question + 4, low);
        for (unsigned v = 0; v < 256; ++v) out[v] = high[v >> 4] + low[v & 15];
    }

    // 256 values of a nibble of signs above its nibble of magnitudes.
    static void fill_two(const float* question, const float* levels, float* out) {
        for (unsigned v = 0; v < 256; ++v) {
            float value[4];
            for (unsigned i = 0; i < 4; ++i) {
                const float size = question[i] * levels[v >> (3 - i) & 1];
                value[i] = v >> (7 - i) & 1 ? size : -size;
            }
            out[v] = (value[0] + value[1]) + (value[2] + value[3]);
        }
    }

    // The shares of one byte of the code, one table (one plane) or two (two planes).
    template <int Planes>
    static float share(const float* table, const std::uint8_t* signs, const std::uint8_t* magnitudes) {
        if constexpr (Planes == 1) return table[*signs];
        const unsigned s = *signs, m = *magnitudes;
        return table[(s & 0xF0) | m >> 4] + table[256 + ((s & 0x0F) << 4 | (m & 0x0F))];
    }

    template <int Planes>
    float sum(const std::uint8_t* signs, const std::uint8_t* magnitudes) const {
        float lanes[kLanes] = {};
        const float* table = shares_.data();
        std::size_t i = 0;
        for (; i + kLanes <= bytes_; i += kLanes, table += kLanes * Planes * 256)
            for (std::size_t lane = 0; lane < kLanes; ++lane)
                lanes[lane] += share<Planes>(table + lane * Planes * 256, signs + i + lane, magnitudes + i + lane);
        for (std::size_t lane = 0; i < bytes_; ++i, ++lane, table += Planes * 256) lanes[lane] += share<Planes>(table, signs + i, magnitudes + i);
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }

    std::size_t bytes_;
    bool two_;
    std::vector<float> shares_;    // [bytes * planes, 256]
};

void prefetch(const Planes& planes, std::int64_t row) {
    const std::size_t at = static_cast<std::size_t>(row) * planes.signs.bytes;
    for (std::size_t i = 0; i < planes.signs.bytes; i += 64) {
        __builtin_prefetch(planes.signs.data + at + i);
        if (planes.magnitudes != nullptr) __builtin_prefetch(planes.magnitudes + at + i);
    }
}

void write(const std::vector<Scored>& best, std::int64_t* rows, float* scores) {
    for (std::size_t i = 0; i < best.size(); ++i) {
        rows[i] = best[i].row;
        scores[i] = best[i].score;
    }
}

float score_row(const Table& table, const Planes& planes, std::size_t row) {
    const std::size_t at = row * planes.signs.bytes;
    return table.score(planes.signs.data + at, planes.magnitudes != nullptr ? planes.magnitudes + at : planes.signs.data + at);
}

bool rerank_one(const Planes& planes, const float* question, const std::int64_t* candidates, std::size_t l, Stop& stop,
                std::vector<Scored>& scored) {
    const Table table(planes, question);
    scored.resize(l);
    for (std::size_t i = 0; i < l; ++i) {
        if (i % kTileRows == 0 && stop.now()) return false;
        if (i + kAhead < l) prefetch(planes, candidates[i + kAhead]);
        scored[i] = {score_row(table, planes, static_cast<std::size_t>(candidates[i])), candidates[i]};
    }
    return true;
}

}  // namespace

void rerank(const Planes& planes, const FloatQuestions& questions, const std::int64_t* rows_in, std::size_t l, std::size_t k,
            unsigned threads, Stop& stop, std::int64_t* rows, float* scores) {
    const std::size_t bits = planes.signs.bytes * 8;
    std::atomic<std::size_t> next{0};
    // One question's candidates are some 50 µs of work: not worth waking a thread, so threads share questions only.
    run_parallel(static_cast<unsigned>(std::min<std::size_t>(threads, questions.count)), [&](unsigned) {
        std::vector<Scored> scored;
        for (std::size_t j; (j = next++) < questions.count;) {
            if (!rerank_one(planes, questions.data + j * bits, rows_in + j * l, l, stop, scored)) return;
            keep_best(scored, k);
            write(scored, rows + j * k, scores + j * k);
        }
    });
}

namespace {

// All rows against a batch of questions whose tables fit the cache together.
void scan_batch(const Planes& planes, const FloatQuestions& questions, std::size_t k, const Mask& mask, unsigned threads,
                Stop& stop, std::int64_t* rows, float* scores) {
    std::vector<Table> tables;
    for (std::size_t j = 0; j < questions.count; ++j) tables.emplace_back(planes, questions.data + j * planes.signs.bytes * 8);
    std::vector<std::vector<Best>> best(threads, std::vector<Best>(questions.count, Best(k)));
    std::atomic<std::size_t> next{0};
    run_parallel(threads, [&](unsigned thread) {
        for (std::size_t first; (first = next++ * kTileRows) < planes.signs.rows;) {
            const std::size_t last = std::min(planes.signs.rows, first + kTileRows);
            for (std::size_t j = 0; j < questions.count; ++j) {
                if (stop.now()) return;
                for (std::size_t row = first; row < last; ++row)
                    if (mask.bits == nullptr || (mask.bits[row / 8] >> (row % 8) & 1))
                        best[thread][j].add(score_row(tables[j], planes, row), static_cast<std::int64_t>(row));
            }
        }
    });
    if (stop.reason() != Stop::Reason::none) return;
    for (std::size_t j = 0; j < questions.count; ++j) {
        std::vector<Scored> all;
        for (auto& thread : best) all.insert(all.end(), thread[j].kept().begin(), thread[j].kept().end());
        keep_best(all, k);
        write(all, rows + j * k, scores + j * k);
    }
}

}  // namespace

void scan_scores(const Planes& planes, const FloatQuestions& questions, std::size_t k, const Mask& mask, unsigned threads,
                 Stop& stop, std::int64_t* rows, float* scores) {
    const std::size_t bits = planes.signs.bytes * 8, table_bytes = planes.signs.bytes * 1024 * (planes.magnitudes != nullptr ? 2 : 1);
    const std::size_t batch = std::clamp<std::size_t>(kTableBudget / table_bytes, 1, std::max<std::size_t>(1, (1 << 20) / (k + 1)));
    for (std::size_t first = 0; first < questions.count && stop.reason() == Stop::Reason::none && k > 0; first += batch) {
        const FloatQuestions part{questions.data + first * bits, std::min(batch, questions.count - first)};
        scan_batch(planes, part, k, mask, threads, stop, rows + first * k, scores + first * k);
    }
}

}  // namespace bpr
