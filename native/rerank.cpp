// Scores by table look-up. A nibble of signs (or two signs with their two magnitudes) takes one of 16 values, so the question's
// share of the score for each value is summed once and then looked up: 192 look-ups for 768 sign bits or for 384 dimensions of
// two planes, instead of 768 multiplications and an unpacked row. All tables of such a question are 12 KiB: they stay in the
// first-level cache. The sums themselves are made by the level in use (rerank_portable.cpp says in which order).
#include "rerank.h"

#include "hamming.h"
#include "select.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace bpr {
namespace {

constexpr std::size_t kGroup = 128;         // rows fetched, then scored: with the tables they fit the first-level cache
constexpr std::size_t kTileRows = 1024;     // rows that one question's tables are used for before the next question's
constexpr std::size_t kTableBudget = 8 << 20;
constexpr std::size_t kTried = 8;           // candidates that show whether a plane lies in memory or on disk
constexpr std::chrono::microseconds kDiskTime{10};    // a fault that the page cache can serve takes about 1 µs

// 16 values of four signs, the first dimension's on top.
void fill_one(const float* q, float* out) {
    const float upper[4] = {-q[0] - q[1], q[1] - q[0], q[0] - q[1], q[0] + q[1]};
    const float lower[4] = {-q[2] - q[3], q[3] - q[2], q[2] - q[3], q[2] + q[3]};
    for (unsigned v = 0; v < 16; ++v) out[v] = upper[v >> 2] + lower[v & 3];
}

// 16 values of two signs above their two magnitudes.
void fill_two(const float* q, const float* levels, float* out) {
    const float first[4] = {-q[0] * levels[0], -q[0] * levels[1], q[0] * levels[0], q[0] * levels[1]};    // [sign, magnitude]
    const float second[4] = {-q[1] * levels[0], -q[1] * levels[1], q[1] * levels[0], q[1] * levels[1]};
    for (unsigned v = 0; v < 16; ++v) out[v] = first[(v >> 2 & 2) | (v >> 1 & 1)] + second[(v >> 1 & 2) | (v & 1)];
}

// One question's tables, and the scores they give at the level that is in use when they are made.
class Table {
public:
    Table(const Planes& planes, const float* question)
        : memory_(bytes_for(planes)), shares_{reinterpret_cast<float*>(memory_.data()), planes.signs.data, planes.magnitudes, planes.signs.bytes} {
        const bool two = planes.magnitudes != nullptr;
        auto* out = reinterpret_cast<float*>(memory_.data());
        for (std::size_t i = 0; i < planes.signs.bytes * 8; i += two ? 2 : 4, out += 16)
            two ? fill_two(question + i, planes.levels, out) : fill_one(question + i, out);
    }

    static std::size_t bytes_for(const Planes& planes) {
        return planes.signs.bytes * (planes.magnitudes != nullptr ? 4 : 2) * 16 * sizeof(float);
    }

    // scores[i] of the row rows[i].
    void score(const std::int64_t* rows, std::size_t count, float* scores) const { level_.row_scores(shares_, rows, count, scores); }

private:
    const Kernels& level_ = level();
    Scratch memory_;
    Shares shares_;
};

// Asks for every cache line of scattered rows, all of a group before the first is needed: a processor waits for as many lines
// (and entries of the page table) at once as it sees asked for in the few hundred instructions ahead of it. Zen 3 waits for a
// prefetch as for a load, so that asking for the next group while this one is scored gains nothing there.
void fetch(const std::uint8_t* plane, std::size_t bytes, const std::int64_t* rows, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint8_t *row = plane + static_cast<std::size_t>(rows[i]) * bytes, *last = row + bytes - 1;
        for (; row < last; row += 64) __builtin_prefetch(row);
        __builtin_prefetch(last);
        asm volatile("" ::"r"(last));    // GCC drops the call of a function that does nothing but prefetch
    }
}

// Reads the rows' first bytes, for nothing but the time it takes: the compiler must believe that they are needed.
void touch(const std::uint8_t* plane, std::size_t bytes, const std::int64_t* rows, std::size_t count) {
    unsigned sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += plane[static_cast<std::size_t>(rows[i]) * bytes];
    asm volatile("" ::"r"(sum));
}

// A second plane that lies on disk costs a page fault a candidate, one after the other. A few rows are tried; if that took
// as long as a disk takes, the system is asked for all others at once, so that the disk can work on many of them together.
void fetch_if_on_disk(const Planes& planes, const std::int64_t* rows, std::size_t count) {
    using Clock = std::chrono::steady_clock;
    const std::size_t tried = std::min(kTried, count);
    const auto begin = Clock::now();
    touch(planes.magnitudes, planes.signs.bytes, rows, tried);
    if (Clock::now() - begin < tried * kDiskTime) return;
    static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    for (std::size_t i = tried; i < count; ++i) {
        const auto at = reinterpret_cast<std::uintptr_t>(planes.magnitudes + static_cast<std::size_t>(rows[i]) * planes.signs.bytes);
        const std::uintptr_t start = at / page * page;
        madvise(reinterpret_cast<void*>(start), at + planes.signs.bytes - start, MADV_WILLNEED);    // advice: may fail
    }
}

void write(const std::vector<Scored>& best, std::int64_t* rows, float* scores) {
    for (std::size_t i = 0; i < best.size(); ++i) {
        rows[i] = best[i].row;
        scores[i] = best[i].score;
    }
}

// Where the codes of rows stand. All are asked for before the first is needed, as in fetch().
const std::int64_t* positions_of(const Planes& planes, const std::int64_t* rows, std::size_t count, std::vector<std::int64_t>& memory) {
    if (planes.positions == nullptr) return rows;
    memory.resize(count);
    for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(planes.positions + rows[i]);
    for (std::size_t i = 0; i < count; ++i) {
        memory[i] = planes.positions[rows[i]];
        if (static_cast<std::size_t>(memory[i]) >= planes.signs.rows) throw std::invalid_argument("a position is outside the index");
    }
    return memory.data();
}

// The scores of one question's candidates. False: told to stop.
bool score_rows(const Planes& planes, const float* question, const std::int64_t* rows, std::size_t count, Stop& stop, float* scores) {
    if (planes.magnitudes != nullptr) fetch_if_on_disk(planes, rows, count);
    const Table table(planes, question);
    for (std::size_t first = 0; first < count; first += kGroup) {
        if (stop.now()) return false;
        const std::size_t here = std::min(kGroup, count - first);
        fetch(planes.signs.data, planes.signs.bytes, rows + first, here);
        if (planes.magnitudes != nullptr) fetch(planes.magnitudes, planes.signs.bytes, rows + first, here);
        table.score(rows + first, here, scores + first);
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
        std::vector<float> all(l);
        std::vector<std::int64_t> memory;
        std::vector<Scored> best;
        for (std::size_t j; (j = next++) < questions.count;) {
            const std::int64_t* const positions = positions_of(planes, rows_in + j * l, l, memory);
            if (!score_rows(planes, questions.data + j * bits, positions, l, stop, all.data())) return;
            first_cut(all.data(), rows_in + j * l, l, k, best);
            keep_best(best, k);
            write(best, rows + j * k, scores + j * k);
        }
    });
}

namespace {

// Scores rows, ascending, kGroup at a time.
void score_tile(const Planes& planes, const Table& table, const std::vector<std::int64_t>& rows, std::vector<std::int64_t>& memory, Best& best) {
    float scores[kGroup];
    for (std::size_t first = 0; first < rows.size(); first += kGroup) {
        const std::size_t count = std::min(kGroup, rows.size() - first);
        const std::int64_t* places = positions_of(planes, rows.data() + first, count, memory);
        const bool scattered = planes.positions != nullptr || rows[first + count - 1] - rows[first] >= static_cast<std::int64_t>(2 * count);
        if (scattered) {    // no prefetcher sees them coming
            fetch(planes.signs.data, planes.signs.bytes, places, count);
            if (planes.magnitudes != nullptr) fetch(planes.magnitudes, planes.signs.bytes, places, count);
        }
        table.score(places, count, scores);
        for (std::size_t i = 0; i < count; ++i) best.add(scores[i], rows[first + i]);
    }
}

// All live rows against a batch of questions whose tables fit the cache together.
void scan_batch(const Planes& planes, const FloatQuestions& questions, std::size_t k, const Mask& mask, unsigned threads,
                Stop& stop, std::int64_t* rows, float* scores) {
    std::vector<Table> tables;
    for (std::size_t j = 0; j < questions.count; ++j) tables.emplace_back(planes, questions.data + j * planes.signs.bytes * 8);
    std::vector<std::vector<Best>> best(threads, std::vector<Best>(questions.count, Best(k)));
    std::atomic<std::size_t> next{0};
    run_parallel(threads, [&](unsigned thread) {
        std::vector<std::int64_t> memory, live;    // live: of one tile, or of several where few rows are live
        const auto score = [&] {
            for (std::size_t j = 0; j < questions.count && !stop.now(); ++j) score_tile(planes, tables[j], live, memory, best[thread][j]);
            live.clear();
        };
        for (std::size_t first; (first = next++ * kTileRows) < planes.signs.rows && !stop.now();) {
            const std::size_t last = std::min(planes.signs.rows, first + kTileRows);
            mask.each(first, last, [&](std::size_t row) { live.push_back(static_cast<std::int64_t>(row)); });
            if (live.size() > kTileRows / 2) score();
        }
        score();
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
    threads = useful_threads(threads, mask.live * planes.signs.bytes * std::min<std::size_t>(questions.count, 64));
    const std::size_t bits = planes.signs.bytes * 8, table_bytes = Table::bytes_for(planes);
    const std::size_t batch = std::clamp<std::size_t>(kTableBudget / table_bytes, 1, std::max<std::size_t>(1, (1 << 20) / (k + 1)));
    for (std::size_t first = 0; first < questions.count && stop.reason() == Stop::Reason::none && k > 0; first += batch) {
        const FloatQuestions part{questions.data + first * bits, std::min(batch, questions.count - first)};
        scan_batch(planes, part, k, mask, threads, stop, rows + first * k, scores + first * k);
    }
}

}  // namespace bpr
