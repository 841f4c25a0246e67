// What an instruction set must provide: the two inner loops of the Hamming scan, the one of the rerank and the one over the
// centroids of cells, behind one table of function pointers.
//
// Contract, the same at every level:
//   * a code is `bytes` bytes (1..512), row-major, no padding, any alignment; nothing outside [codes, codes + rows * bytes) is read;
//   * distance = number of differing bits, exact, at most 4096;
//   * score = the sum that rerank_portable.cpp makes, in its order, so that it is the same bits;
//   * what a level computes is a pure function of its inputs: every level gives the same numbers as the portable one.
// Ties, order, threads and deadlines are not known here (scan.cpp).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace bpr {

static_assert(std::endian::native == std::endian::little, "planes and tables take the first byte of a code for the lowest of a word");

// Memory for vector loads and stores: 64-byte aligned and a multiple of 64 bytes long.
class Scratch {
public:
    explicit Scratch(std::size_t bytes = 0) { reserve(bytes); }
    void reserve(std::size_t bytes) {
        if (bytes <= size_) return;
        size_ = (bytes + 63) / 64 * 64;
        data_.reset(static_cast<std::uint8_t*>(::operator new(size_, std::align_val_t(64))));
    }
    std::uint8_t* data() { return data_.get(); }

private:
    struct Free {
        void operator()(std::uint8_t* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<std::uint8_t, Free> data_;
    std::size_t size_ = 0;
};

// How a code of `bits` bits is counted when it is sliced (hamming_impl.h says why).
struct Shape {
    explicit Shape(std::size_t code_bytes);
    std::size_t bytes;       // of one code
    std::size_t bits;        // bytes * 8
    std::size_t triples;     // full adders of the lowest weight = carries to count
    std::size_t inputs;      // triples, padded to whole blocks
    std::size_t counters;    // vectors that hold one bit-sliced distance
};

constexpr std::size_t kBlock = 32;            // carries that one pass of the adder tree takes
constexpr std::size_t kVariants = 8;          // a carry for each of the 2^3 patterns of the question's bits

// One question, prepared for a level: where in the tables its carries stand, and the parity of all its bits.
struct SlicedQuestion {
    const std::uint16_t* offsets;   // [inputs], in bytes from the start of the table of the input's chunk
    bool parity;
};

struct SlicedTile {
    const std::uint8_t* codes;      // first row of the tile
    std::size_t rows;               // 1..tile_rows
    const std::uint64_t* live;      // bit r of the tile set: row r may be returned; [tile_rows / 64]
    std::size_t ahead;              // bytes behind this tile's that the next one will need: fetched while this one is counted
};

// One question, prepared for the rerank: what each nibble of a row adds to its score. A nibble is four signs or, with two
// planes, two signs above their two magnitudes. Tables are 64-byte aligned. Turning all signs of a nibble turns its share's.
struct Shares {
    const float* tables;              // [bytes * 2 (two planes: 4), 16], in the order of the dimensions
    const std::uint8_t* signs;        // [rows, bytes]
    const std::uint8_t* magnitudes;   // the same, or nullptr: one plane
    std::size_t bytes;
};

struct BertKernels;

struct Kernels {
    const char* name;
    std::size_t tile_rows;          // rows that one vector holds as single bits
    std::size_t vector_bytes;       // tile_rows / 8
    std::size_t chunk_inputs;       // carries whose tables fit the first-level cache together

    // distances[r] = Hamming distance of row r to the question, for `rows` rows one after another.
    void (*row_distances)(const std::uint8_t* codes, std::size_t rows, std::size_t bytes, const std::uint8_t* question,
                          std::uint16_t* distances);

    // Distance of every row of the tile to every question. For question j: passing[j] (tile_rows bits) gets the live
    // rows with distance < bounds[j], and counters[j] (shape.counters vectors) the distances, bit-sliced: bit b of
    // row r's distance is bit r of vector b. `scratch` needs tile_scratch_bytes(shape).
    void (*tile_distances)(const Shape& shape, const SlicedTile& tile, const SlicedQuestion* questions, std::size_t count,
                           const std::uint16_t* bounds, std::uint8_t* scratch, std::uint8_t* counters,
                           std::uint64_t* passing);

    // scores[i] = score of row rows[i], for i < count.
    void (*row_scores)(const Shares& shares, const std::int64_t* rows, std::size_t count, float* scores);

    // out[r] = product of row r of `count` centroids with the question, `width` (a multiple of 8) dimensions; no sum overflows.
    void (*products)(const std::int8_t* rows, std::size_t count, std::size_t width, const std::int16_t* question, std::int32_t* out);

    const BertKernels* bert;    // the loops of the encoder (bert.h)

    std::size_t tile_scratch_bytes(const Shape& shape) const;
};

// The loops of the rerank: plain C++ for the levels that have nothing better, and AVX2 for those that have it.
void row_scores_portable(const Shares& shares, const std::int64_t* rows, std::size_t count, float* scores);
#if defined(BPR_X86)
void row_scores_avx2(const Shares& shares, const std::int64_t* rows, std::size_t count, float* scores);
#endif

// The loop over the centroids of cells.
void products_portable(const std::int8_t* rows, std::size_t count, std::size_t width, const std::int16_t* question, std::int32_t* out);
#if defined(BPR_X86)
void products_avx2(const std::int8_t* rows, std::size_t count, std::size_t width, const std::int16_t* question, std::int32_t* out);
#endif

extern const Kernels kPortable;
#if defined(BPR_X86)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#elif defined(BPR_NEON)
extern const Kernels kNeon;
#endif

// The levels this machine can run, slowest first, by cpuid and by what the operating system saves (dispatch.cpp).
const std::vector<const Kernels*>& supported_levels();
// The level in use: the fastest supported one, or what BPR_SIMD names; throws std::invalid_argument for an unknown name.
const Kernels& level();
void use_level(const char* name);    // nullptr: back to the default

}  // namespace bpr
