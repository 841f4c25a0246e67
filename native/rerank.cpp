// Scores by table look-up. A byte of signs (or a nibble of signs with its nibble of magnitudes) takes one of 256 values, so
// the question's share of the score for each value is summed once and then looked up: 96 look-ups for 768 sign bits or
// for 384 dimensions of two planes, instead of 768 multiplications and an unpacked row. All tables of a question are 96 KiB,
// so rows are taken in groups, and a group goes through kBlockTables tables (which stay in the first-level cache) at a time.
//
// Every sum is made in one fixed order (inside a table, then kLanes running sums, then pairs of those), with no vector code of
// ours and no fused multiply-add (-ffp-contract=off): scores are the same bits on every machine.
#include "rerank.h"

#include "select.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace bpr {
namespace {

constexpr std::size_t kLanes = 8;           // independent sums: hides the latency of an addition, and rounds less
constexpr std::size_t kBlockTables = 16;    // 16 KiB
constexpr std::size_t kGroup = 256;         // rows: their sums are 8 KiB
constexpr std::size_t kTileRows = 1024;     // rows that one question's tables are used for before the next question's
constexpr std::size_t kTableBudget = 8 << 20;
constexpr std::size_t kTried = 8;           // candidates that show whether a plane lies in memory or on disk
constexpr std::chrono::microseconds kDiskTime{10};    // a fault that the page cache can serve takes about 1 µs

// 256 values of a byte of signs: the high nibble is the first four dimensions.
void fill_one(const float* question, float* out) {
    float nibble[2][16];
    for (unsigned half = 0; half < 2; ++half)
        for (unsigned v = 0; v < 16; ++v) {
            const float* q = question + half * 4;
            nibble[half][v] = ((v & 8 ? q[0] : -q[0]) + (v & 4 ? q[1] : -q[1])) + ((v & 2 ? q[2] : -q[2]) + (v & 1 ? q[3] : -q[3]));
        }
    for (unsigned high = 0; high < 16; ++high)
        for (unsigned low = 0; low < 16; ++low) out[high * 16 + low] = nibble[0][high] + nibble[1][low];
}

// 256 values of a nibble of signs above its nibble of magnitudes: four dimensions, two by two.
void fill_two(const float* question, const float* levels, float* out) {
    float pair[2][4][4];    // [first or second two dimensions][their signs][their magnitudes]
    for (unsigned half = 0; half < 2; ++half)
        for (unsigned signs = 0; signs < 4; ++signs)
            for (unsigned large = 0; large < 4; ++large) {
                const float a = question[half * 2] * levels[large >> 1], b = question[half * 2 + 1] * levels[large & 1];
                pair[half][signs][large] = (signs & 2 ? a : -a) + (signs & 1 ? b : -b);
            }
    for (unsigned v = 0; v < 64; ++v)
        for (unsigned last = 0; last < 4; ++last) out[v * 4 + last] = pair[0][v >> 4][v & 3] + pair[1][v >> 2 & 3][last];
}

// One question's tables, and the scores they give.
class Table {
public:
    Table(const Planes& planes, const float* question) : planes_(planes) {
        const std::size_t bits = planes.signs.bytes * 8;
        shares_.resize(bits / (two() ? 4 : 8) * 256);
        float* out = shares_.data();
        for (std::size_t i = 0; i < bits; i += two() ? 4 : 8, out += 256)
            two() ? fill_two(question + i, planes.levels, out) : fill_one(question + i, out);
    }

    // scores[i] of the row `row_of(i)`, for i < count <= kGroup.
    template <class Row>
    void score(std::size_t count, Row row_of, float* scores) const {
        two() ? score<2>(count, row_of, scores) : score<1>(count, row_of, scores);
    }

private:
    bool two() const { return planes_.magnitudes != nullptr; }

    // Where the shares of the bytes of `signs` and `large` stand in their tables, for all bytes of a word at once: one plane
    // has one table a byte; two planes have one for the high nibbles and one for the low ones.
    template <int P>
    static void places(std::uint64_t signs, std::uint64_t large, std::uint64_t* place) {
        constexpr std::uint64_t kHigh = 0xF0F0F0F0F0F0F0F0ull, kLow = ~kHigh;
        place[0] = P == 1 ? signs : (signs & kHigh) | (large >> 4 & kLow);
        if constexpr (P == 2) place[1] = (signs << 4 & kHigh) | (large & kLow);
    }

    template <int P>
    static float share(const float* table, const std::uint64_t* place, std::size_t byte) {
        const float first = table[place[0] >> byte * 8 & 255];
        if constexpr (P == 1) return first;
        else return first + table[256 + (place[1] >> byte * 8 & 255)];
    }

    // Add the shares of `bytes` <= kBlockTables / P bytes to the sums of one row; byte i belongs to lane i % kLanes.
    template <int P>
    static void add(const float* table, const std::uint8_t* signs, const std::uint8_t* large, std::size_t bytes, float* sums) {
        float lanes[kLanes];
        std::uint64_t s, m = 0, place[P];
        std::memcpy(lanes, sums, sizeof(lanes));
        std::size_t i = 0;
        for (; i + 8 <= bytes; i += 8, table += 8 * P * 256) {
            std::memcpy(&s, signs + i, 8);
            if constexpr (P == 2) std::memcpy(&m, large + i, 8);
            places<P>(s, m, place);
            for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += share<P>(table + lane * P * 256, place, lane);
        }
        for (std::size_t lane = 0; i < bytes; ++i, ++lane, table += P * 256) {
            places<P>(signs[i], P == 2 ? large[i] : 0, place);
            lanes[lane] += share<P>(table, place, 0);
        }
        std::memcpy(sums, lanes, sizeof(lanes));
    }

    template <int P, class Row>
    void score(std::size_t count, Row row_of, float* scores) const {
        constexpr std::size_t kBytes = kBlockTables / P;
        const std::size_t width = planes_.signs.bytes;
        float sums[kGroup][kLanes] = {};
        for (std::size_t first = 0; first < width; first += kBytes) {
            const std::size_t bytes = std::min(kBytes, width - first);
            const float* table = shares_.data() + first * P * 256;
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t at = row_of(i) * width + first;
                const std::uint8_t* large = P == 2 ? planes_.magnitudes + at : nullptr;
                bytes == kBytes ? add<P>(table, planes_.signs.data + at, large, kBytes, sums[i]) : add<P>(table, planes_.signs.data + at, large, bytes, sums[i]);
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            const float* s = sums[i];
            scores[i] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
        }
    }

    const Planes& planes_;
    std::vector<float> shares_;    // [tables, 256]
};

// Reads a byte of every cache line of the row, for nothing but that the line is there afterwards. Loads of different rows
// overlap; a prefetch instruction would be dropped where the page is not in the TLB, which for scattered rows is the rule.
unsigned touch(const Planes& planes, std::int64_t row) {
    const std::size_t bytes = planes.signs.bytes, at = static_cast<std::size_t>(row) * bytes;
    unsigned sum = 0;
    for (std::size_t i = 0; i < bytes + 63; i += 64) {
        const std::size_t byte = at + std::min(i, bytes - 1);
        sum += planes.signs.data[byte];
        if (planes.magnitudes != nullptr) sum += planes.magnitudes[byte];
    }
    return sum;
}

// The compiler must believe that the bytes are needed.
void touch(const Planes& planes, const std::int64_t* rows, std::size_t count) {
    unsigned sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += touch(planes, rows[i]);
    asm volatile("" ::"r"(sum));
}

// A second plane that lies on disk costs a page fault a candidate, one after the other. A few rows are tried; if that took
// as long as a disk takes, the system is asked for all others at once, so that the disk can work on many of them together.
void fetch_if_on_disk(const Planes& planes, const std::int64_t* rows, std::size_t count) {
    using Clock = std::chrono::steady_clock;
    const std::size_t tried = std::min(kTried, count);
    const auto begin = Clock::now();
    touch(planes, rows, tried);
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

bool rerank_one(const Planes& planes, const float* question, const std::int64_t* candidates, std::size_t l, Stop& stop,
                std::vector<Scored>& scored) {
    if (planes.magnitudes != nullptr) fetch_if_on_disk(planes, candidates, l);
    const Table table(planes, question);
    float scores[kGroup];
    scored.clear();
    for (std::size_t first = 0; first < l; first += kGroup) {
        if (stop.now()) return false;
        const std::size_t count = std::min(kGroup, l - first);
        touch(planes, candidates + first, count);
        table.score(count, [&](std::size_t i) { return static_cast<std::size_t>(candidates[first + i]); }, scores);
        for (std::size_t i = 0; i < count; ++i) scored.push_back({scores[i], candidates[first + i]});
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

void score_tile(const Table& table, std::size_t first, std::size_t last, const Mask& mask, Best& best) {
    float scores[kGroup];
    for (; first < last; first += kGroup) {
        const std::size_t count = std::min(kGroup, last - first);
        table.score(count, [&](std::size_t i) { return first + i; }, scores);
        for (std::size_t i = 0; i < count; ++i)
            if (mask.bits == nullptr || (mask.bits[(first + i) / 8] >> ((first + i) % 8) & 1)) best.add(scores[i], static_cast<std::int64_t>(first + i));
    }
}

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
                score_tile(tables[j], first, last, mask, best[thread][j]);
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
    threads = useful_threads(threads, planes.signs.rows * planes.signs.bytes * std::min<std::size_t>(questions.count, 64));
    const std::size_t bits = planes.signs.bytes * 8, table_bytes = planes.signs.bytes * 1024 * (planes.magnitudes != nullptr ? 2 : 1);
    const std::size_t batch = std::clamp<std::size_t>(kTableBudget / table_bytes, 1, std::max<std::size_t>(1, (1 << 20) / (k + 1)));
    for (std::size_t first = 0; first < questions.count && stop.reason() == Stop::Reason::none && k > 0; first += batch) {
        const FloatQuestions part{questions.data + first * bits, std::min(batch, questions.count - first)};
        scan_batch(planes, part, k, mask, threads, stop, rows + first * k, scores + first * k);
    }
}

}  // namespace bpr
