// How all codes are compared: tasks of codes for the threads, tiles of them for the caches, code by code for few questions and
// bit-sliced for many (hamming_impl.h), and what is kept of each question (select.h). The levels decide none of this.
#include "scan.h"

#include "hamming.h"
#include "select.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>

namespace bpr {
namespace {

// Fewer questions than this are compared code by code: transposing a tile pays only when enough of them share it.
constexpr std::size_t kSliceFrom = 6;
// Questions that share a tile: their offsets and counters must stay in the second-level cache, and for a large l the
// candidates they keep must stay few.
constexpr std::size_t kBatch = 256, kKept = 1 << 20;
// Rows of a task: small enough for a deadline and to even out slow threads, large enough for the hardware prefetcher.
constexpr std::size_t kTaskBytes = 1 << 18;
// Codes compared one by one while they stay in the first-level cache.
constexpr std::size_t kRowTileBytes = 1 << 14;
// Distances that are compared with the bound together, and one that no bound reaches.
constexpr std::size_t kStep = 32;
constexpr std::int16_t kFar = 0x7FFF;
// Work worth waking one more thread for.
constexpr std::size_t kBytesPerThread = 1 << 20;
// Where few rows of a task are live, they are copied together and the others never touched. To fetch a scattered code takes
// as long as to compare it with so many questions, row by row or sliced.
constexpr std::size_t kGatherRows = 8, kGatherSliced = 16;
// Scattered codes that are asked for ahead of the one that is copied.
constexpr std::size_t kAsked = 32;

// The offsets of one question (hamming_impl.h): its own bits go through the same queue as the planes.
void prepare(const Kernels& k, const Shape& shape, const std::uint8_t* code, std::uint16_t* offsets, bool& parity) {
    std::vector<std::uint8_t> queue(shape.bits + 1 + shape.triples, 0);
    for (std::size_t i = 0; i < shape.bits; ++i) queue[i] = code[i / 8] >> (i % 8) & 1;
    for (std::size_t t = 0; t < shape.inputs; ++t) {
        std::size_t variant = 0;
        if (t < shape.triples) {
            const std::uint8_t x = queue[3 * t], y = queue[3 * t + 1], z = queue[3 * t + 2];
            variant = x + 2u * y + 4u * z;
            queue[shape.bits + 1 + t] = x ^ y ^ z;
        }
        offsets[t] = static_cast<std::uint16_t>((t % k.chunk_inputs * kVariants + variant) * k.vector_bytes);
    }
    parity = queue[shape.bits + shape.triples] != 0;
}

// Codes side by side in memory, and which rows they are: neighbours in the index, or gathered from it.
struct Block {
    const std::uint8_t* codes;
    std::size_t rows, first;
    const std::uint64_t* numbers = nullptr;    // the row of each code, ascending; nullptr: first, first + 1, …

    std::size_t row(std::size_t i) const { return numbers == nullptr ? first + i : numbers[i]; }
};

// Rows whose codes are wanted side by side, up to `room` of them. They are named first and fetched together, in a loop of a few
// instructions: a processor waits for many pages and lines at a time only while it sees so many ahead, and a prefetch waits for
// its page too. Fetched one by one as the mask names them, they took twice as long.
class Gathered {
public:
    Gathered(const Codes& codes, std::size_t room) : codes_(codes), numbers_(room), memory_(room * codes.bytes) {}

    bool full() const { return count_ == numbers_.size(); }
    std::size_t count() const { return count_; }
    void clear() { count_ = 0; }
    void add(std::size_t row) { numbers_[count_++] = row; }

    Block block() {
        switch (codes_.bytes) {    // the usual widths without a call
            case 48: copy_all<48>(); break;
            case 96: copy_all<96>(); break;
            default: copy_all<0>();
        }
        return {memory_.data(), count_, 0, numbers_.data()};
    }

private:
    template <std::size_t kWidth>    // 0: any
    void copy_all() {
        const std::size_t width = kWidth != 0 ? kWidth : codes_.bytes;
        for (std::size_t i = 0; i < count_; ++i) {
            const std::uint8_t* ahead = codes_.data + numbers_[std::min(i + kAsked, count_ - 1)] * width;
            for (std::size_t at = 0; at < width; at += 64) __builtin_prefetch(ahead + at);
            __builtin_prefetch(ahead + width - 1);
            std::memcpy(memory_.data() + i * width, codes_.data + numbers_[i] * width, width);
        }
    }

    const Codes& codes_;
    std::size_t count_ = 0;
    std::vector<std::uint64_t> numbers_;
    std::vector<std::uint8_t> memory_;
};

// One call's work on up to kBatch questions.
class Scan {
public:
    Scan(const Codes& codes, const std::uint8_t* questions, std::size_t count, std::size_t l, const Mask& mask,
         unsigned threads, Stop& stop)
        : codes_(codes), questions_(questions), count_(count), l_(l), mask_(mask), stop_(stop), shape_(codes.bytes),
          kernels_(level()), sliced_(count >= kSliceFrom), task_rows_(task_rows()), nearest_(threads), shared_(count) {
        for (auto& bound : shared_) bound.store(static_cast<std::uint32_t>(shape_.bits + 1));
        if (!sliced_) return;
        offsets_.resize(count * shape_.inputs);
        prepared_.resize(count);
        for (std::size_t j = 0; j < count; ++j) {
            prepared_[j].offsets = offsets_.data() + j * shape_.inputs;
            prepare(kernels_, shape_, questions + j * codes.bytes, offsets_.data() + j * shape_.inputs, prepared_[j].parity);
        }
    }

    void run(std::int64_t* rows, std::int32_t* distances) {
        run_parallel(static_cast<unsigned>(nearest_.size()), [this](unsigned thread) { work(thread); });
        if (stop_.reason() != Stop::Reason::none) return;
        std::atomic<std::size_t> next{0};
        run_parallel(count_ > 1 ? static_cast<unsigned>(nearest_.size()) : 1, [&](unsigned) {
            for (std::size_t j; (j = next++) < count_ && !stop_.now();) merge(j, rows + j * l_, distances + j * l_);
        });
    }

private:
    std::size_t task_rows() const {
        const std::size_t tiles = std::max<std::size_t>(1, kTaskBytes / codes_.bytes / kernels_.tile_rows);
        return tiles * kernels_.tile_rows;    // whole tiles, so that a mask's words line up
    }

    // Tasks are taken in the order of rows, so each thread sees its rows ascend, as Nearest needs.
    void work(unsigned thread) {
        nearest_[thread].resize(count_);
        for (Nearest& n : nearest_[thread]) n.reset(l_, shape_.bits);
        Local local(*this, nearest_[thread]);
        for (std::size_t first; (first = next_++ * task_rows_) < codes_.rows;) {
            if (stop_.now()) return;
            const std::size_t last = std::min(codes_.rows, first + task_rows_), live = mask_.count(first, last);
            if (live == 0) continue;
            if (gathering_pays(live, last - first)) {
                mask_.each(first, last, [&](std::size_t row) {
                    local.gathered.add(row);
                    if (local.gathered.full()) compare_gathered(local);
                });
            } else {
                compare_gathered(local);
                in_order(local, first, last);
            }
        }
        compare_gathered(local);
    }

    // What one thread has for itself.
    struct Local {
        Local(const Scan& scan, std::vector<Nearest>& its_nearest)
            : nearest(its_nearest), bounds(scan.count_), distances(scan.row_tile()), gathered(scan.codes_, scan.mask_.bits == nullptr ? 0 : scan.tile()) {
            if (!scan.sliced_) return;
            scratch.reserve(scan.kernels_.tile_scratch_bytes(scan.shape_));
            counters.reserve(scan.count_ * scan.shape_.counters * scan.kernels_.vector_bytes);
            passing.resize(scan.count_ * scan.kernels_.tile_rows / 64);
            live.resize(scan.kernels_.tile_rows / 64);
        }
        std::vector<Nearest>& nearest;
        Scratch scratch, counters;
        std::vector<std::uint64_t> passing, live;
        std::vector<std::uint16_t> bounds, distances;
        Gathered gathered;
    };

    std::size_t row_tile() const { return std::max<std::size_t>(1, kRowTileBytes / codes_.bytes / kStep) * kStep; }

    std::size_t tile() const { return sliced_ ? kernels_.tile_rows : row_tile(); }

    bool gathering_pays(std::size_t live, std::size_t rows) const {
        return live * (count_ + (sliced_ ? kGatherSliced : kGatherRows)) < rows * count_;
    }

    // What may still enter: nearer than this thread's own bound, and not farther than any thread's.
    std::uint32_t bound(const Nearest& nearest, std::size_t question) const {
        return std::min(nearest.bound(), shared_[question].load(std::memory_order_relaxed) + 1);
    }

    void share(const Nearest& nearest, std::size_t question) {
        std::uint32_t seen = shared_[question].load(std::memory_order_relaxed);
        while (nearest.bound() < seen && !shared_[question].compare_exchange_weak(seen, nearest.bound(), std::memory_order_relaxed)) {}
    }

    // The rows [first, last) where they lie, tile by tile.
    void in_order(Local& local, std::size_t first, std::size_t last) {
        if (sliced_) refresh_bounds(local);
        for (std::size_t row = first; row < last && !stop_.now(); row += tile()) {
            const Block block{codes_.data + row * codes_.bytes, std::min(tile(), last - row), row};
            if (!sliced_) {
                row_by_row(local, block);
                continue;
            }
            std::uint64_t any = 0;
            for (std::size_t w = 0; w < local.live.size(); ++w) {
                const std::size_t from = std::min(w * 64, block.rows), to = std::min(from + 64, block.rows);
                any |= local.live[w] = from < to ? mask_.word(row + from, row + to) : 0;
            }
            if (any != 0) slices(local, block, std::min(tile(), last - row - block.rows) * codes_.bytes);
        }
        if (sliced_) share_all(local);
    }

    // The rows gathered so far, all of them live.
    void compare_gathered(Local& local) {
        if (local.gathered.count() == 0 || stop_.now()) return local.gathered.clear();
        const Block block = local.gathered.block();
        local.gathered.clear();
        if (!sliced_) return row_by_row(local, block);
        for (std::size_t w = 0; w < local.live.size(); ++w) {
            const std::size_t left = block.rows - std::min(w * 64, block.rows);
            local.live[w] = left < 64 ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
        }
        refresh_bounds(local);
        slices(local, block, 0);
        share_all(local);
    }

    void refresh_bounds(Local& local) const {
        for (std::size_t j = 0; j < count_; ++j) local.bounds[j] = static_cast<std::uint16_t>(bound(local.nearest[j], j));
    }

    void share_all(const Local& local) {
        for (std::size_t j = 0; j < count_; ++j) share(local.nearest[j], j);
    }

    void row_by_row(Local& local, const Block& block) {
        for (std::size_t j = 0; j < count_; ++j) {
            kernels_.row_distances(block.codes, block.rows, codes_.bytes, questions_ + j * codes_.bytes, local.distances.data());
            std::fill(local.distances.begin() + static_cast<std::ptrdiff_t>(block.rows), local.distances.end(), kFar);
            pick(local.nearest[j], local.distances, bound(local.nearest[j], j), block);
            share(local.nearest[j], j);
        }
    }

    // Few rows pass, so the least distance of a whole step is asked first (the compiler makes that vector code).
    void pick(Nearest& nearest, const std::vector<std::uint16_t>& distances, std::uint32_t limit, const Block& block) {
        for (std::size_t first = 0; first < block.rows; first += kStep) {
            std::int16_t least = kFar;    // signed, because that is the minimum every vector unit has
            for (std::size_t i = 0; i < kStep; ++i) least = std::min(least, static_cast<std::int16_t>(distances[first + i]));
            if (static_cast<std::uint32_t>(least) >= limit) continue;
            for (std::size_t r = first; r < first + kStep; ++r) {
                if (distances[r] >= limit || !mask_.has(block.row(r))) continue;
                nearest.add(distances[r], block.row(r));
                limit = std::min(limit, nearest.bound());
            }
        }
    }

    // One tile, bit-sliced; local.live says which of its rows count. ahead: bytes behind it that will be needed next.
    void slices(Local& local, const Block& block, std::size_t ahead) {
        const std::size_t words = local.live.size();
        const SlicedTile tile{block.codes, block.rows, local.live.data(), ahead};
        kernels_.tile_distances(shape_, tile, prepared_.data(), count_, local.bounds.data(), local.scratch.data(),
                                local.counters.data(), local.passing.data());
        for (std::size_t j = 0; j < count_; ++j)
            for (std::size_t w = 0; w < words; ++w)
                if (const std::uint64_t passing = local.passing[j * words + w]) collect(local, j, w, passing, block);
    }

    // Read the distances of the passing rows back from the bit-sliced counters.
    void collect(Local& local, std::size_t question, std::size_t word, std::uint64_t passing, const Block& block) {
        Nearest& nearest = local.nearest[question];
        const std::size_t words = local.live.size();
        const auto* counter = reinterpret_cast<const std::uint64_t*>(local.counters.data()) + question * shape_.counters * words + word;
        for (; passing != 0; passing &= passing - 1) {
            const auto r = static_cast<std::size_t>(std::countr_zero(passing));
            std::uint32_t distance = 0;    // from the highest bit down, so that every shift is by the same amount
            for (std::size_t b = shape_.counters; b-- > 0;) distance = distance * 2 + static_cast<std::uint32_t>(counter[b * words] >> r & 1);
            if (distance < nearest.bound()) nearest.add(distance, block.row(word * 64 + r));
        }
        local.bounds[question] = static_cast<std::uint16_t>(std::min<std::uint32_t>(local.bounds[question], nearest.bound()));
    }

    void merge(std::size_t question, std::int64_t* rows, std::int32_t* distances) {
        std::vector<Nearest*> parts;
        for (auto& thread : nearest_)
            if (!thread.empty()) parts.push_back(&thread[question]);    // a thread that came too late has none
        merge_nearest(parts, l_, shape_.bits, rows, distances);
    }

    const Codes& codes_;
    const std::uint8_t* questions_;
    std::size_t count_, l_;
    const Mask& mask_;
    Stop& stop_;
    Shape shape_;
    const Kernels& kernels_;
    bool sliced_;
    std::size_t task_rows_;
    std::vector<std::uint16_t> offsets_;
    std::vector<SlicedQuestion> prepared_;
    std::vector<std::vector<Nearest>> nearest_;          // [thread][question]
    std::vector<std::atomic<std::uint32_t>> shared_;     // [question], the lowest bound of any thread
    std::atomic<std::size_t> next_{0};
};

}  // namespace

unsigned useful_threads(unsigned threads, std::size_t bytes) {
    return static_cast<unsigned>(std::clamp<std::size_t>(bytes / kBytesPerThread + 1, 1, threads));
}

void scan(const Codes& codes, const Codes& questions, std::size_t l, const Mask& mask, unsigned threads, Stop& stop,
          std::int64_t* rows, std::int32_t* distances) {
    if (l == 0) return;
    const std::size_t batch = std::clamp<std::size_t>(kKept / l, 8, kBatch);
    for (std::size_t first = 0; first < questions.rows && stop.reason() == Stop::Reason::none; first += batch) {
        const std::size_t count = std::min(batch, questions.rows - first);
        const unsigned useful = useful_threads(threads, mask.live * codes.bytes * count + (mask.bits == nullptr ? 0 : codes.rows / 8));
        Scan(codes, questions.data + first * codes.bytes, count, l, mask, useful, stop).run(rows + first * l, distances + first * l);
    }
}

std::uint64_t read_all(const Codes& codes, unsigned threads, Stop& stop) {
    constexpr std::size_t kReadAhead = 8192;    // the best of those tried: the limit must not be a straw man
    const std::size_t bytes = codes.rows * codes.bytes;
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> total{0};
    run_parallel(threads, [&](unsigned) {
        std::uint64_t sums[8] = {};    // independent sums: the loop waits for memory, not for an addition
        for (std::size_t first; (first = next++ * kTaskBytes) < bytes && !stop.now();) {
            const std::size_t last = std::min(bytes, first + kTaskBytes) / 64 * 64;
            for (std::size_t at = first; at < last; at += 64) {
                if (at + kReadAhead < bytes) __builtin_prefetch(codes.data + at + kReadAhead);
                std::uint64_t words[8];
                std::memcpy(words, codes.data + at, 64);
                for (int i = 0; i < 8; ++i) sums[i] += words[i];
            }
        }
        for (const std::uint64_t sum : sums) total += sum;
    });
    return total;
}

}  // namespace bpr
