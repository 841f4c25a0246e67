// BERT's forward pass for one text, with products of bytes: token ids in, a vector out, or one for each token. One text is one call on one thread.
//
// Contract, the same at every level: every sum of bytes is exact, and every float is made by the same operations in the same
// order (bert_impl.h), so that a text's vector is the same bits at every level, alone and in company.
#pragma once

#include "hamming.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace bpr {

constexpr std::size_t kPanelColumns = 16;    // outputs whose weights lie together
constexpr std::size_t kQueries = 4;          // of a head that are attended to together
constexpr std::size_t kGrain = 32;           // every width of the network is a multiple of it
// The largest byte of an activation: seven bits for speed, eight where seven cost too much closeness (bert.cpp says where).
constexpr int kSevenBits = 127, kEightBits = 255;
constexpr float kMostWord = 32767;           // 16 bits, in attention
// Of two neighbouring weights with the same sign: a pair of products fits into 16 bits, and with seven bits even two pairs do.
constexpr int kMostOfPair = 128;
static_assert(kEightBits * kMostOfPair < 1 << 15 && 2 * kSevenBits * kMostOfPair < 1 << 15);

// Rows of activations as bytes, each row with its own scale: value = low + step · byte.
struct Bytes {
    std::uint8_t* values;    // [rows, width], each at most `most`
    float *steps, *lows;     // [rows]
    int most;                // kSevenBits or kEightBits
};

// out = scale · (bytes · weights) + bias
struct Dense {
    std::size_t in, out;
    const std::int8_t* panels;    // [out / 16, in / 4, 16, 4]: four weights of each of sixteen outputs, then the next four
    const float *scales, *sums;   // [out]; sums: scale · the sum of the output's weights, for the rows' lows
    const float* bias;            // [out], or nullptr: add to what is there
};

// γ · normalised + β
struct Affine {
    const float *gamma, *beta;
};

struct BertKernels {
    // out[r][c] = bias[c] (or out[r][c]) + the product of row r; out: [rows, dense.out]
    void (*dense)(const Dense& dense, const Bytes& in, std::size_t rows, float* out);
    // x: [rows, width] becomes its layer norm under `residual`; the same norm under `next` goes to `bytes`.
    void (*norm)(float* x, std::size_t rows, std::size_t width, float epsilon, const Affine& residual, const Affine* next, const Bytes* bytes);
    // x: [rows, width] → GELU, in place → bytes
    void (*gelu)(float* x, std::size_t rows, std::size_t width, const Bytes& bytes);
    void (*quantize)(const float* x, std::size_t rows, std::size_t width, const Bytes& bytes);
    // qkv: [rows, 3 · width], query, key, value → out: [rows, width]; scratch: attention_floats(rows, width / heads)
    void (*attention)(const float* qkv, std::size_t rows, std::size_t width, std::size_t heads, float* scratch, float* out);
};

std::size_t attention_floats(std::size_t rows, std::size_t size);

extern const BertKernels kBertPortable;
#if defined(BPR_X86)
extern const BertKernels kBertAvx2, kBertAvx512;
#endif

// ── The network ──────────────────────────────────────────────────────────────────────────────────────────────────────

// What a network is made of, as the file has it. Everything is checked and copied; std::invalid_argument says what is wrong.
struct Floats {
    const float* data;
    std::size_t rows, columns;    // a list has one row
};
struct Weights {
    const std::int8_t* data;    // [in, out]
    std::size_t in, out;
    Floats scales, bias;        // bias.data may be nullptr
};
struct Layer {
    Floats qkv_gamma, qkv_beta, attention_gamma, attention_beta, inner_gamma, inner_beta, outer_gamma, outer_beta;
    Weights qkv, attention, inner, outer;
};

// The product alone, at the level in use: rows: [count, weights.in] of at most `most` → out: [count, weights.out], whole numbers.
void multiply(const std::uint8_t* rows, std::size_t count, const Weights& weights, int most, float* out);

class Bert {
public:
    struct Settings {
        std::size_t heads;
        float epsilon;
        bool mean, normalize;    // pooling: the mean of all tokens, or the first; then to length 1
    };
    // words: int8[vocabulary, width] with a scale each; places: [longest, width]; segments: [kinds, width], or none.
    Bert(const Settings& settings, const std::int8_t* words, std::size_t vocabulary, const Floats& word_scales, const Floats& places,
         const Floats& segments, const Floats& gamma, const Floats& beta);
    void add_layer(const Layer& layer);
    void add_output(const Floats& weight, const Floats& bias);    // weight: [bits, width]

    std::size_t output_bits(std::size_t output) const { return outputs_.at(output).bias.size(); }
    // ids, segments: [count]; segments may be nullptr. out: [output_bits(output)]
    void encode(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, std::size_t output, float* out);
    // The output of every token instead of the pooled one's. out: [count, output_bits(output)]
    void encode_tokens(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, std::size_t output, float* out);

private:
    using List = std::vector<float>;
    struct Packed {
        std::vector<std::int8_t> panels;
        List scales, sums, bias;
        std::size_t in, out;
        Dense view() const { return {in, out, panels.data(), scales.data(), sums.data(), bias.empty() ? nullptr : bias.data()}; }
    };
    struct Norm {
        List gamma, beta;
        Affine view() const { return {gamma.data(), beta.data()}; }
    };
    struct PackedLayer {
        Norm qkv_norm, attention_norm, inner_norm, outer_norm;
        Packed qkv, attention, inner, outer;
    };
    struct Output {
        List panels, bias;    // panels: as rotate.h has them
    };
    struct Work;

    // Runs the layers; `finish` gets what they leave: sums whose last norm is still to be taken.
    template <class Finish>
    void run(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, Finish finish);
    void project(const Output& head, const float* rows, std::size_t count, float* out) const;
    void check_ids(const std::int64_t* ids, const std::int64_t* segments, std::size_t count) const;
    void embed(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, float* x) const;
    void run_layer(const PackedLayer& layer, const BertKernels& k, std::size_t count, Work& work) const;
    void add_rest(const Dense& dense, const BertKernels& k, float* x, std::size_t row, const Bytes& bytes, float* out) const;
    void pool(const BertKernels& k, std::size_t count, float* x, float* pooled) const;
    Norm norm_of(const Floats& gamma, const Floats& beta) const;

    Settings settings_;
    std::size_t vocabulary_, width_, longest_, kinds_;
    std::vector<std::int8_t> words_;
    List word_scales_, places_, segments_;
    Norm last_;
    std::vector<PackedLayer> layers_;
    std::vector<Output> outputs_;
    std::size_t inner_ = 0;    // the widest inner layer

    // Memory for the calls under way: kept, because to get megabytes from the system and give them back costs page faults.
    std::mutex mutex_;
    std::vector<Scratch> idle_;
};

}  // namespace bpr
