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
        std::vector<Nearest>& nearest = nearest_[thread];
        nearest.resize(count_);
        for (Nearest& n : nearest) n.reset(l_, shape_.bits);
        Local local;
        local.bounds.resize(count_);
        if (sliced_) {
            local.scratch.reserve(kernels_.tile_scratch_bytes(shape_));
            local.counters.reserve(count_ * shape_.counters * kernels_.vector_bytes);
            local.passing.resize(count_ * kernels_.tile_rows / 64);
        }
        for (std::size_t first; (first = next_++ * task_rows_) < codes_.rows;) {
            const std::size_t last = std::min(codes_.rows, first + task_rows_);
            if (sliced_ ? !slices(nearest, local, first, last) : !row_by_row(nearest, local, first, last)) return;
        }
    }

    struct Local {
        Scratch scratch, counters;
        std::vector<std::uint64_t> passing, live;
        std::vector<std::uint16_t> bounds, distances;
    };

    // What may still enter: nearer than this thread's own bound, and not farther than any thread's.
    std::uint32_t bound(const Nearest& nearest, std::size_t question) const {
        return std::min(nearest.bound(), shared_[question].load(std::memory_order_relaxed) + 1);
    }

    void share(const Nearest& nearest, std::size_t question) {
        std::uint32_t seen = shared_[question].load(std::memory_order_relaxed);
        while (nearest.bound() < seen && !shared_[question].compare_exchange_weak(seen, nearest.bound(), std::memory_order_relaxed)) {}
    }

    bool alive(std::size_t row) const { return mask_.bits == nullptr || (mask_.bits[row / 8] >> (row % 8) & 1); }

    bool row_by_row(std::vector<Nearest>& nearest, Local& local, std::size_t first, std::size_t last) {
        const std::size_t tile = std::max<std::size_t>(1, kRowTileBytes / codes_.bytes / kStep) * kStep;
        local.distances.resize(tile);
        for (std::size_t row = first; row < last; row += tile) {
            if (stop_.now()) return false;
            const std::size_t rows = std::min(tile, last - row);
            for (std::size_t j = 0; j < count_; ++j) {
                kernels_.row_distances(codes_.data + row * codes_.bytes, rows, codes_.bytes, questions_ + j * codes_.bytes, local.distances.data());
                std::fill(local.distances.begin() + static_cast<std::ptrdiff_t>(rows), local.distances.end(), kFar);
                pick(nearest[j], local.distances.data(), tile, bound(nearest[j], j), row);
                share(nearest[j], j);
            }
        }
        return true;
    }

    // Few rows pass, so the least distance of a whole step is asked first (the compiler makes that vector code).
    void pick(Nearest& nearest, const std::uint16_t* distances, std::size_t count, std::uint32_t limit, std::size_t row) {
        for (std::size_t first = 0; first < count; first += kStep) {
            std::int16_t least = kFar;    // signed, because that is the minimum every vector unit has
            for (std::size_t i = 0; i < kStep; ++i) least = std::min(least, static_cast<std::int16_t>(distances[first + i]));
            if (static_cast<std::uint32_t>(least) >= limit) continue;
            for (std::size_t r = first; r < first + kStep; ++r) {
                if (distances[r] >= limit || !alive(row + r)) continue;
                nearest.add(distances[r], row + r);
                limit = std::min(limit, nearest.bound());
            }
        }
    }

    bool slices(std::vector<Nearest>& nearest, Local& local, std::size_t first, std::size_t last) {
        const std::size_t words = kernels_.tile_rows / 64;
        for (std::size_t j = 0; j < count_; ++j) local.bounds[j] = static_cast<std::uint16_t>(bound(nearest[j], j));
        for (std::size_t row = first; row < last; row += kernels_.tile_rows) {
            if (stop_.now()) return false;
            const std::size_t rows = std::min(kernels_.tile_rows, last - row);
            set_live(local.live, row, rows);
            const std::size_t ahead = std::min(kernels_.tile_rows, last - row - rows) * codes_.bytes;
            const SlicedTile tile{codes_.data + row * codes_.bytes, rows, local.live.data(), ahead};
            kernels_.tile_distances(shape_, tile, prepared_.data(), count_, local.bounds.data(), local.scratch.data(),
                                    local.counters.data(), local.passing.data());
            for (std::size_t j = 0; j < count_; ++j)
                for (std::size_t w = 0; w < words; ++w)
                    if (const std::uint64_t passing = local.passing[j * words + w]) collect(nearest[j], local, j, w, passing, row + w * 64);
        }
        for (std::size_t j = 0; j < count_; ++j) share(nearest[j], j);
        return true;
    }

    void set_live(std::vector<std::uint64_t>& live, std::size_t row, std::size_t rows) const {
        live.assign(kernels_.tile_rows / 64, 0);
        if (mask_.bits != nullptr) {
            std::memcpy(live.data(), mask_.bits + row / 8, (rows + 7) / 8);
            return;
        }
        for (std::size_t w = 0; w * 64 < rows; ++w) live[w] = rows - w * 64 >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (rows - w * 64)) - 1;
    }

    // Read the distances of the passing rows back from the bit-sliced counters.
    void collect(Nearest& nearest, Local& local, std::size_t question, std::size_t word, std::uint64_t passing, std::size_t row) {
        const std::size_t words = kernels_.tile_rows / 64;
        const auto* counter = reinterpret_cast<const std::uint64_t*>(local.counters.data()) + question * shape_.counters * words + word;
        for (; passing != 0; passing &= passing - 1) {
            const int r = std::countr_zero(passing);
            std::uint32_t distance = 0;    // from the highest bit down, so that every shift is by the same amount
            for (std::size_t b = shape_.counters; b-- > 0;) distance = distance * 2 + static_cast<std::uint32_t>(counter[b * words] >> r & 1);
            if (distance < nearest.bound()) nearest.add(distance, row + static_cast<std::size_t>(r));
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
        const unsigned useful = useful_threads(threads, codes.rows * codes.bytes * count);
        Scan(codes, questions.data + first * codes.bytes, count, l, mask, useful, stop).run(rows + first * l, distances + first * l);
    }
}

void distances(const Codes& codes, const Codes& questions, const std::int64_t* rows, std::size_t count, unsigned threads,
               Stop& stop, std::int32_t* out) {
    const Kernels& kernels = level();
    std::atomic<std::size_t> next{0};
    run_parallel(useful_threads(threads, questions.rows * count * codes.bytes), [&](unsigned) {
        for (std::size_t j; (j = next++) < questions.rows;) {
            for (std::size_t i = 0; i < count; ++i) {
                if (i % 1024 == 0 && stop.now()) return;
                std::uint16_t distance;
                kernels.row_distances(codes.data + static_cast<std::size_t>(rows[j * count + i]) * codes.bytes, 1, codes.bytes,
                                      questions.data + j * codes.bytes, &distance);
                out[j * count + i] = distance;
            }
        }
    });
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
