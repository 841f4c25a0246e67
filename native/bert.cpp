// The network: what is checked and laid out anew when weights come in, and the order in which a text passes the layers. The loops
// themselves are a level's (bert_impl.h); what a text is, and which file weights come from, is not known here.
#include "bert.h"

#include "pool.h"
#include "rotate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace bpr {

namespace {

constexpr std::size_t kMostWidth = 4096;     // of the network; an inner layer may be four times as wide
constexpr std::size_t kMostRows = 1 << 16;    // of a text
constexpr std::size_t kFeedRows = 48;    // tokens that pass the two dense layers together: what is between them stays in the cache

// Behind the GELU a few tokens of a text (most often [CLS] and [SEP]) have values ten times as large as all others: seven bits of
// those are too coarse. Their rows pass the layer twice, the second time with what the first has left.
constexpr float kMassive = 6;

void require(bool holds, const std::string& what) {
    if (!holds) throw std::invalid_argument(what);
}

std::string shape_of(const Floats& floats) { return "float32[" + std::to_string(floats.rows) + ", " + std::to_string(floats.columns) + "]"; }

std::vector<float> copied(const Floats& floats, std::size_t rows, std::size_t columns, const char* what) {
    require(floats.rows == rows && floats.columns == columns,
            std::string(what) + " must be float32[" + std::to_string(rows) + ", " + std::to_string(columns) + "], not " + shape_of(floats));
    std::vector<float> list(floats.data, floats.data + rows * columns);
    require(std::all_of(list.begin(), list.end(), [](float x) { return std::isfinite(x); }), std::string(what) + " must be finite");
    return list;
}

// Weights that some level would have to clip are refused at all of them (bert_avx2.cpp says what is added in 16 bits).
void check_pairs(const Weights& weights, const char* what) {
    for (std::size_t i = 0; i < weights.in; i += 2)
        for (std::size_t c = 0; c < weights.out; ++c) {
            const int a = weights.data[i * weights.out + c], b = weights.data[(i + 1) * weights.out + c];
            require(std::max(a, 0) + std::max(b, 0) <= kMostOfPair && std::min(a, 0) + std::min(b, 0) >= -kMostOfPair,
                    std::string(what) + " has two neighbouring weights whose products do not fit into 16 bits");
        }
}

// [in, out] → [out / 16, in / 4, 16, 4]
std::vector<std::int8_t> panels_of(const Weights& weights) {
    std::vector<std::int8_t> panels(weights.in * weights.out);
    std::int8_t* to = panels.data();
    for (std::size_t column = 0; column < weights.out; column += kPanelColumns)
        for (std::size_t i = 0; i < weights.in; i += 4)
            for (std::size_t c = column; c < column + kPanelColumns; ++c)
                for (std::size_t j = i; j < i + 4; ++j) *to++ = weights.data[j * weights.out + c];
    return panels;
}

std::vector<float> sums_of(const Weights& weights, const std::vector<float>& scales) {
    std::vector<std::int32_t> whole(weights.out);
    for (std::size_t i = 0; i < weights.in; ++i)
        for (std::size_t c = 0; c < weights.out; ++c) whole[c] += weights.data[i * weights.out + c];
    std::vector<float> sums(weights.out);
    for (std::size_t c = 0; c < weights.out; ++c) sums[c] = scales[c] * static_cast<float>(whole[c]);
    return sums;
}

// Parts of one allocation, each aligned for vectors.
class Cut {
public:
    explicit Cut(std::uint8_t* from) : at_(from) {}
    template <class T>
    T* take(std::size_t count) {
        T* part = reinterpret_cast<T*>(at_ == nullptr ? nullptr : at_ + size_);
        size_ += (count * sizeof(T) + 63) / 64 * 64;
        return part;
    }
    std::size_t size() const { return size_; }

private:
    std::uint8_t* at_;
    std::size_t size_ = 0;
};

}  // namespace

std::size_t attention_floats(std::size_t rows, std::size_t size) {
    const std::size_t padded = (rows + 7) / 8 * 8;
    // Some queries' weights as floats and as words; one head's queries, keys and values as words.
    return kQueries * padded + (kQueries * padded + rows * size + size * padded + (rows + 1) * size + 1) / 2;
}

// What a call needs beside the network.
struct Bert::Work {
    Work(std::uint8_t* memory, std::size_t rows, std::size_t width, std::size_t inner, std::size_t heads) {
        Cut cut(memory);
        x = cut.take<float>(rows * width);
        qkv = cut.take<float>(rows * 3 * width);
        context = cut.take<float>(rows * width);
        pooled = cut.take<float>(width);
        scratch = cut.take<float>(attention_floats(rows, width / heads));
        narrow = {cut.take<std::uint8_t>(rows * width), cut.take<float>(rows), cut.take<float>(rows), kSevenBits};
        between = cut.take<float>(kFeedRows * inner);
        wide = {cut.take<std::uint8_t>(kFeedRows * inner), cut.take<float>(kFeedRows), cut.take<float>(kFeedRows), kSevenBits};
        bytes = cut.size();
    }
    float *x, *qkv, *context, *pooled, *scratch, *between;
    Bytes narrow, wide;
    std::size_t bytes;
};

void multiply(const std::uint8_t* rows, std::size_t count, const Weights& weights, int most, float* out) {
    require(weights.in >= kGrain && weights.in <= 4 * kMostWidth && weights.in % kGrain == 0 && weights.out % kPanelColumns == 0,
            "weights must be int8[32 · i, 16 · j]");
    require(most == kSevenBits || most == kEightBits, "activations have seven or eight bits");
    require(std::all_of(rows, rows + count * weights.in, [&](std::uint8_t x) { return x <= most; }), "an activation is too large");
    check_pairs(weights, "the product");
    const std::vector<std::int8_t> panels = panels_of(weights);
    const std::vector<float> ones(std::max(weights.out, count), 1.0f), zeros(std::max(weights.out, count), 0.0f);
    std::vector<std::uint8_t> values(rows, rows + count * weights.in);
    std::vector<float> steps = ones, lows = zeros;
    const Bytes bytes{values.data(), steps.data(), lows.data(), most};
    level().bert->dense({weights.in, weights.out, panels.data(), ones.data(), zeros.data(), zeros.data()}, bytes, count, out);
}

Bert::Bert(const Settings& settings, const std::int8_t* words, std::size_t vocabulary, const Floats& word_scales, const Floats& places,
           const Floats& segments, const Floats& gamma, const Floats& beta)
    : settings_(settings), vocabulary_(vocabulary), width_(places.columns), longest_(places.rows), kinds_(segments.rows) {
    require(width_ >= kGrain && width_ <= kMostWidth && width_ % kGrain == 0, "the width of the network must be a multiple of 32, up to 4096");
    require(settings.heads >= 1 && width_ % settings.heads == 0 && width_ / settings.heads % 8 == 0, "a head must have a multiple of 8 dimensions");
    require(vocabulary >= 1 && longest_ >= 1 && longest_ <= kMostRows, "a network needs words and 1 to 65536 places");
    require(std::isfinite(settings.epsilon) && settings.epsilon >= 0, "epsilon must be finite");
    words_.assign(words, words + vocabulary * width_);
    word_scales_ = copied(word_scales, 1, vocabulary, "word_scales");
    places_ = copied(places, longest_, width_, "places");
    segments_ = copied(segments, kinds_, kinds_ == 0 ? segments.columns : width_, "segments");
    last_ = norm_of(gamma, beta);
}

Bert::Norm Bert::norm_of(const Floats& gamma, const Floats& beta) const {
    return {copied(gamma, 1, width_, "gamma"), copied(beta, 1, width_, "beta")};
}

void Bert::add_layer(const Layer& layer) {
    const std::size_t inner = layer.inner.out;
    require(inner >= kGrain && inner <= 4 * kMostWidth && inner % kGrain == 0, "an inner layer must be a multiple of 32 wide, up to 16384");
    const auto packed = [&](const Weights& given, std::size_t in, std::size_t out, const char* what) {
        require(given.in == in && given.out == out, std::string("the weights of ") + what + " have another shape than the network");
        check_pairs(given, what);
        std::vector<float> scales = copied(given.scales, 1, out, what), sums = sums_of(given, scales);
        return Packed{panels_of(given), std::move(scales), std::move(sums), given.bias.data == nullptr ? List{} : copied(given.bias, 1, out, what), in, out};
    };
    require(layer.qkv.bias.data != nullptr && layer.inner.bias.data != nullptr, "qkv and inner need a bias");
    layers_.push_back({norm_of(layer.qkv_gamma, layer.qkv_beta), norm_of(layer.attention_gamma, layer.attention_beta),
                       norm_of(layer.inner_gamma, layer.inner_beta), norm_of(layer.outer_gamma, layer.outer_beta),
                       packed(layer.qkv, width_, 3 * width_, "qkv"), packed(layer.attention, width_, width_, "attention"),
                       packed(layer.inner, width_, inner, "inner"), packed(layer.outer, inner, width_, "outer")});
    inner_ = std::max(inner_, inner);
}

void Bert::add_output(const Floats& weight, const Floats& bias) {
    const std::size_t bits = weight.rows;
    require(bits >= kPanel && bits % kPanel == 0, "an output must be a multiple of 8 wide");
    const List rows = copied(weight, bits, width_, "the projection");
    List panels(rows.size());    // [bits / 8, width, 8]
    for (std::size_t b = 0; b < bits; ++b)
        for (std::size_t i = 0; i < width_; ++i) panels[(b / kPanel * width_ + i) * kPanel + b % kPanel] = rows[b * width_ + i];
    outputs_.push_back({std::move(panels), copied(bias, 1, bits, "the projection's bias")});
}

void Bert::check_ids(const std::int64_t* ids, const std::int64_t* segments, std::size_t count) const {
    require(count >= 1 && count <= longest_, "a text must have 1 to " + std::to_string(longest_) + " tokens, not " + std::to_string(count));
    require((segments != nullptr) == (kinds_ > 0), kinds_ > 0 ? "the network needs segments" : "the network has no segments");
    for (std::size_t i = 0; i < count; ++i) {
        require(ids[i] >= 0 && static_cast<std::uint64_t>(ids[i]) < vocabulary_, "a token id is outside the vocabulary");
        require(segments == nullptr || (segments[i] >= 0 && static_cast<std::uint64_t>(segments[i]) < kinds_), "a segment is outside the network's");
    }
}

void Bert::embed(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, float* x) const {
    for (std::size_t r = 0; r < count; ++r, x += width_) {
        const auto id = static_cast<std::size_t>(ids[r]);
        const std::int8_t* word = words_.data() + id * width_;
        for (std::size_t i = 0; i < width_; ++i) x[i] = static_cast<float>(word[i]) * word_scales_[id] + places_[r * width_ + i];
        if (segments == nullptr) continue;
        const float* segment = segments_.data() + static_cast<std::size_t>(segments[r]) * width_;
        for (std::size_t i = 0; i < width_; ++i) x[i] += segment[i];
    }
}

// What the bytes of a row have left of its values goes through the layer as a second row.
void Bert::add_rest(const Dense& dense, const BertKernels& k, float* x, std::size_t row, const Bytes& bytes, float* out) const {
    for (std::size_t i = 0; i < dense.in; ++i) x[i] -= bytes.lows[row] + bytes.steps[row] * static_cast<float>(bytes.values[row * dense.in + i]);
    k.quantize(x, 1, dense.in, bytes);    // in the place of the first row, whose turn has been
    k.dense(dense, bytes, 1, out);
}

// x: a sum whose norm is still to be taken, before and after.
void Bert::run_layer(const PackedLayer& layer, const BertKernels& k, std::size_t count, Work& work) const {
    const Affine to_qkv = layer.qkv_norm.view(), to_inner = layer.inner_norm.view();
    Bytes fine = work.narrow;
    fine.most = kEightBits;
    k.norm(work.x, count, width_, settings_.epsilon, layer.attention_norm.view(), &to_qkv, &fine);
    k.dense(layer.qkv.view(), fine, count, work.qkv);
    k.attention(work.qkv, count, width_, settings_.heads, work.scratch, work.context);
    k.quantize(work.context, count, width_, work.narrow);
    k.dense(layer.attention.view(), work.narrow, count, work.x);

    k.norm(work.x, count, width_, settings_.epsilon, layer.outer_norm.view(), &to_inner, &work.narrow);
    const Dense inner = layer.inner.view(), outer = layer.outer.view();
    for (std::size_t first = 0; first < count; first += kFeedRows) {
        const std::size_t rows = std::min(kFeedRows, count - first);
        k.dense(inner, {work.narrow.values + first * width_, work.narrow.steps + first, work.narrow.lows + first, kSevenBits}, rows, work.between);
        k.gelu(work.between, rows, inner.out, work.wide);
        k.dense(outer, work.wide, rows, work.x + first * width_);
        for (std::size_t r = 0; r < rows; ++r)
            if (work.wide.steps[r] * kSevenBits > kMassive) add_rest(outer, k, work.between + r * inner.out, r, work.wide, work.x + (first + r) * width_);
    }
}

void Bert::pool(const BertKernels& k, std::size_t count, float* x, float* pooled) const {
    const std::size_t rows = settings_.mean ? count : 1;
    k.norm(x, rows, width_, settings_.epsilon, last_.view(), nullptr, nullptr);
    std::copy(x, x + width_, pooled);
    for (std::size_t r = 1; r < rows; ++r)
        for (std::size_t i = 0; i < width_; ++i) pooled[i] += x[r * width_ + i];
    for (std::size_t i = 0; i < width_; ++i) pooled[i] /= static_cast<float>(rows);
    if (!settings_.normalize) return;
    double square = 0;
    for (std::size_t i = 0; i < width_; ++i) square += static_cast<double>(pooled[i]) * static_cast<double>(pooled[i]);
    const auto length = static_cast<float>(std::sqrt(square));
    for (std::size_t i = 0; length > 0 && i < width_; ++i) pooled[i] /= length;
}

template <class Finish>
void Bert::run(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, Finish finish) {
    check_ids(ids, segments, count);
    Scratch memory;
    {
        std::lock_guard lock(mutex_);
        if (!idle_.empty()) memory = std::move(idle_.back()), idle_.pop_back();
    }
    memory.reserve(Work(nullptr, count, width_, inner_, settings_.heads).bytes);
    Work work(memory.data(), count, width_, inner_, settings_.heads);
    const BertKernels& k = *level().bert;
    embed(ids, segments, count, work.x);
    for (const PackedLayer& layer : layers_) run_layer(layer, k, count, work);
    finish(k, work);
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(memory));
}

void Bert::project(const Output& head, const float* rows, std::size_t count, float* out) const {
    const std::size_t bits = head.bias.size();
    Stop never(-1, nullptr, {});
    rotate(rows, count, width_, head.panels.data(), bits, 1, never, out);
    for (std::size_t r = 0; r < count; ++r)
        for (std::size_t b = 0; b < bits; ++b) out[r * bits + b] += head.bias[b];
}

void Bert::encode(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, std::size_t output, float* out) {
    const Output& head = outputs_.at(output);
    run(ids, segments, count, [&](const BertKernels& k, Work& work) {
        pool(k, count, work.x, work.pooled);
        project(head, work.pooled, 1, out);
    });
}

void Bert::encode_tokens(const std::int64_t* ids, const std::int64_t* segments, std::size_t count, std::size_t output, float* out) {
    const Output& head = outputs_.at(output);
    run(ids, segments, count, [&](const BertKernels& k, Work& work) {
        k.norm(work.x, count, width_, settings_.epsilon, last_.view(), nullptr, nullptr);
        project(head, work.x, count, out);
    });
}

}  // namespace bpr
