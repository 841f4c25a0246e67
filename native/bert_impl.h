// The loops of BERT's forward pass, for any instruction set. Each bert_<isa>.cpp includes this file once, inside its own
// anonymous namespace and with its own compiler flags, so that no instruction of one level can leak into another.
//
// All floats are made in vectors of eight lanes with the same operations in the same order, whatever the registers of a level:
// lane by lane, then the eight lanes by pairs. fma is a true fused multiply-add at every level. So results are the same bits.
//
// A level gives V (eight floats) and Ints, fma, max and min (a > b ? a : b, so that what is no number gives way to b), to_bytes,
// to_words, add_pairs, and kTileRows with tile<R, Most>(panel, in, bytes of R rows, int32[R][16]); Most: the largest byte.

constexpr std::size_t kLanes = 8;

[[gnu::always_inline]] inline V load(const float* from) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
}
[[gnu::always_inline]] inline void store(float* to, V v) { std::memcpy(to, &v, sizeof(V)); }
[[gnu::always_inline]] inline V all(float x) { return V{x, x, x, x, x, x, x, x}; }

inline float sum_of(V v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }
template <class Pick>
inline float best_of(V v, Pick better) {
    float best = v[0];
    for (std::size_t i = 1; i < kLanes; ++i) best = better(v[i], best) ? v[i] : best;
    return best;
}
inline float largest(V v) { return best_of(v, [](float a, float b) { return a > b; }); }
inline float smallest(V v) { return best_of(v, [](float a, float b) { return a < b; }); }

// 2^x for x <= 126; below -126 it is that of -126, which is nothing. Relative error 1e-7.
[[gnu::always_inline]] inline V exp2_of(V x) {
    x = max(x, all(-126));
    const V shift = all(12582912);    // 1.5 · 2²³: adding it rounds to a whole number, which then stands in the lowest bits
    const V whole = x + shift, f = x - (whole - shift);
    V p = fma(f, all(0.001327644451521337f), all(0.009675538167357445f));
    p = fma(p, f, all(0.05550713464617729f));
    p = fma(p, f, all(0.24022120237350464f));
    p = fma(p, f, all(0.6931469440460205f));
    p = fma(p, f, all(1));
    return reinterpret_cast<V>(reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(whole) << 23));
}

// x · Φ(x), with Φ as the logistic function of an odd polynomial: less than 3e-5 from erf's, where the usual tanh form, which
// has one coefficient less, is 5e-4. Beyond |x| = 5.5 the polynomial would turn round.
[[gnu::always_inline]] inline V gelu_of(V x) {
    const V square = min(x * x, all(30));
    V p = fma(square, all(0.00101426522f), all(-0.106775731f));    // the coefficients, times -log2 e
    p = fma(p, square, all(-2.30112134f));
    return x / (all(1) + exp2_of(min(p * x, all(126))));
}

// ── Rows to bytes ────────────────────────────────────────────────────────────────────────────────────────────────────

// A row whose smallest and largest values are known. All of 0..most is used, and 0 need not be one of the values: the rows'
// lows are made up for by the sums of the weights.
inline void row_to_bytes(const float* x, std::size_t width, V low, V high, const Bytes& bytes, std::size_t row) {
    const float least = smallest(low), range = largest(high) - least, most = static_cast<float>(bytes.most);
    bytes.lows[row] = least, bytes.steps[row] = range / most;
    std::uint8_t* to = bytes.values + row * width;
    const V factor = all(range > 0 ? most / range : 0), first = all(least), half = all(0.5f);
    for (std::size_t i = 0; i < width; i += kGrain) {
        V v[4];
        for (std::size_t j = 0; j < 4; ++j) {
            v[j] = fma(load(x + i + j * kLanes) - first, factor, half);
            v[j] = min(max(v[j], all(0)), all(most));
        }
        to_bytes(v, to + i);
    }
}

inline void quantize(const float* x, std::size_t rows, std::size_t width, const Bytes& bytes) {
    for (std::size_t r = 0; r < rows; ++r, x += width) {
        V low = load(x), high = low;
        for (std::size_t i = kLanes; i < width; i += kLanes) low = min(load(x + i), low), high = max(load(x + i), high);
        row_to_bytes(x, width, low, high, bytes, r);
    }
}

inline void gelu(float* x, std::size_t rows, std::size_t width, const Bytes& bytes) {
    for (std::size_t r = 0; r < rows; ++r, x += width) {
        V low = all(std::numeric_limits<float>::infinity()), high = -low;
        for (std::size_t i = 0; i < width; i += kLanes) {
            const V v = gelu_of(load(x + i));
            store(x + i, v);
            low = min(v, low), high = max(v, high);
        }
        row_to_bytes(x, width, low, high, bytes, r);
    }
}

// ── Layer norm ───────────────────────────────────────────────────────────────────────────────────────────────────────

// x: what is normalised, γ and β applied, and its extremes.
inline void affine(const float* x, std::size_t width, V scale, V shift, const Affine& affine, float* to, V& low, V& high) {
    low = all(std::numeric_limits<float>::infinity()), high = -low;
    for (std::size_t i = 0; i < width; i += kLanes) {
        const V v = fma(fma(load(x + i), scale, shift), load(affine.gamma + i), load(affine.beta + i));
        low = min(v, low), high = max(v, high);
        store(to + i, v);
    }
}

inline void norm(float* x, std::size_t rows, std::size_t width, float epsilon, const Affine& residual, const Affine* next, const Bytes* bytes) {
    constexpr std::size_t kMostWidth = 4096;
    alignas(64) float other[kMostWidth];
    for (std::size_t r = 0; r < rows; ++r, x += width) {
        V a = all(0), b = all(0);    // two sums hide the latency of an addition
        for (std::size_t i = 0; i < width; i += 2 * kLanes) a += load(x + i), b += load(x + i + kLanes);
        const float mean = sum_of(a + b) / static_cast<float>(width);
        a = b = all(0);
        for (std::size_t i = 0; i < width; i += 2 * kLanes) {
            const V left = load(x + i) - all(mean), right = load(x + i + kLanes) - all(mean);
            a = fma(left, left, a), b = fma(right, right, b);
        }
        const float scale = 1 / std::sqrt(sum_of(a + b) / static_cast<float>(width) + epsilon);
        const V by = all(scale), plus = all(-mean * scale);
        V low, high;
        if (next != nullptr) {
            affine(x, width, by, plus, *next, other, low, high);
            row_to_bytes(other, width, low, high, *bytes, r);
        }
        affine(x, width, by, plus, residual, x, low, high);
    }
}

// ── Products of bytes ────────────────────────────────────────────────────────────────────────────────────────────────

// Sixteen outputs of R rows.
template <std::size_t R>
inline void dense_tile(const Dense& dense, const Bytes& in, std::size_t row, std::size_t column, float* out) {
    alignas(64) std::int32_t found[R][kPanelColumns];
    const std::int8_t* panel = dense.panels + column * dense.in;
    const std::uint8_t* rows = in.values + row * dense.in;
    in.most == kSevenBits ? tile<R, kSevenBits>(panel, dense.in, rows, found) : tile<R, kEightBits>(panel, dense.in, rows, found);
    for (std::size_t c = 0; c < kPanelColumns; c += kLanes) {
        const V scales = load(dense.scales + column + c), sums = load(dense.sums + column + c);
        for (std::size_t r = 0; r < R; ++r) {
            float* to = out + (row + r) * dense.out + column + c;
            const V before = load(dense.bias != nullptr ? dense.bias + column + c : to);
            Ints whole;
            std::memcpy(&whole, found[r] + c, sizeof(whole));
            const V product = __builtin_convertvector(whole, V);
            store(to, fma(product, all(in.steps[row + r]) * scales, fma(all(in.lows[row + r]), sums, before)));
        }
    }
}

// The rows that are left when whole tiles have been taken.
template <std::size_t R>
inline void dense_rest(const Dense& dense, const Bytes& in, std::size_t row, std::size_t left, std::size_t column, float* out) {
    if constexpr (R > 0) {
        if (left == R) dense_tile<R>(dense, in, row, column, out);
        else dense_rest<R - 1>(dense, in, row, left, column, out);
    }
}

// A panel of weights stays in the first-level cache while all rows pass by.
inline void dense(const Dense& dense, const Bytes& in, std::size_t rows, float* out) {
    for (std::size_t column = 0; column < dense.out; column += kPanelColumns) {
        std::size_t r = 0;
        for (; r + kTileRows <= rows; r += kTileRows) dense_tile<kTileRows>(dense, in, r, column, out);
        dense_rest<kTileRows - 1>(dense, in, r, rows - r, column, out);
    }
}

// ── Attention ────────────────────────────────────────────────────────────────────────────────────────────────────────
//
// In whole numbers of 16 bits, of which vpmaddwd multiplies twice as many as fma does floats: two neighbours' products, added in
// 32 bits. Queries and keys have as many bits as their sums allow (13 for heads of 32 dimensions), values and weights 15.

[[gnu::always_inline]] inline Ints load_ints(const void* from) {
    Ints v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

// A pair of 16 bits in every lane.
[[gnu::always_inline]] inline Ints all_pairs(const std::int16_t* from) {
    std::int32_t pair;
    std::memcpy(&pair, from, sizeof(pair));
    return Ints{pair, pair, pair, pair, pair, pair, pair, pair};
}

// To the nearest whole number, for what is smaller than 2²²; beyond it, and for what is no number, some number or other.
[[gnu::always_inline]] inline Ints rounded(V x) {
    const V shift = all(12582912);
    return reinterpret_cast<Ints>(x + shift) - reinterpret_cast<Ints>(shift);
}

// The largest |value| of a head's [rows, size].
inline float largest_of(const float* x, std::size_t stride, std::size_t rows, std::size_t size) {
    V high = all(0);
    for (std::size_t r = 0; r < rows; ++r, x += stride)
        for (std::size_t i = 0; i < size; i += kLanes) high = max(max(load(x + i), -load(x + i)), high);
    return largest(high);
}

// The same as words of at most `most`, row after row; the scale that they are in.
inline float to_words_of(const float* x, std::size_t stride, std::size_t rows, std::size_t size, float most, std::int16_t* to) {
    const float high = largest_of(x, stride, rows, size);
    const V factor = all(high > 0 ? most / high : 0);
    for (std::size_t r = 0; r < rows; ++r, x += stride, to += size)
        for (std::size_t i = 0; i < size; i += kLanes) to_words(rounded(load(x + i) * factor), to + i);
    return high / most;
}

// One head's part of a text.
struct Head {
    std::size_t rows, padded, size;    // padded: rows, to whole vectors
    std::int16_t* queries;             // [rows, size]
    std::int16_t* keys;                // [size / 2, padded, 2]: dimensions by pairs
    std::int16_t* values;              // [(rows + 1) / 2, size, 2]: tokens by pairs
    std::int16_t* words;               // [kQueries, padded]: weights
    float* weights;                    // the same as floats
    float scale, step;                 // of a product of query and key in exponents of 2; of one of weight and value
};

// Tokens by pairs, the last one with nothing if their number is odd.
inline float pair_values(const float* x, std::size_t stride, const Head& head) {
    const float high = largest_of(x, stride, head.rows, head.size);
    const V factor = all(high > 0 ? kMostWord / high : 0);
    for (std::size_t r = 0; r < head.rows; r += 2, x += 2 * stride)
        for (std::size_t i = 0; i < head.size; i += kLanes) {
            const Ints low = rounded(load(x + i) * factor);
            const Ints above = r + 1 < head.rows ? rounded(load(x + stride + i) * factor) << 16 : Ints{};
            const Ints pair = (low & 0xFFFF) | above;
            std::memcpy(head.values + (r / 2 * head.size + i) * 2, &pair, sizeof(pair));
        }
    return high / kMostWord;
}

// query, key, value: [rows, 3 · width], this head's part of each.
inline void take_head(const float* query, std::size_t width, Head& head) {
    const std::size_t stride = 3 * width, pairs = head.size / 2;
    const float *key = query + width, *value = key + width;
    // So that `size` products fit into 31 bits.
    const float most = std::min(kMostWord, std::floor(std::sqrt(2147483647.0f / static_cast<float>(head.size))) - 1);
    const float of_keys = to_words_of(key, stride, head.rows, head.size, most, head.queries);    // in their place for now
    std::memset(head.keys, 0, pairs * head.padded * 4);
    for (std::size_t r = 0; r < head.rows; ++r)
        for (std::size_t i = 0; i < pairs; ++i) std::memcpy(head.keys + (i * head.padded + r) * 2, head.queries + r * head.size + 2 * i, 4);
    const float of_queries = to_words_of(query, stride, head.rows, head.size, most, head.queries);
    head.scale = of_queries * of_keys * 1.44269504f / std::sqrt(static_cast<float>(head.size));
    head.step = pair_values(value, stride, head) / kMostWord;
}

// out[r][c] = factor · Σ a[r][i] · b[i][c] for R rows and C vectors of columns; i goes by pairs, b: [pairs, b_columns, 2]
template <std::size_t R, std::size_t C>
[[gnu::always_inline]] inline void product(const std::int16_t* a, std::size_t a_stride, std::size_t pairs, const std::int16_t* b,
                                           std::size_t b_columns, float factor, float* out, std::size_t out_stride) {
    Ints sums[R][C] = {};
    for (std::size_t i = 0; i < pairs; ++i, b += 2 * b_columns) {
        Ints right[C];
        for (std::size_t c = 0; c < C; ++c) right[c] = load_ints(b + 2 * c * kLanes);
        for (std::size_t r = 0; r < R; ++r) {
            const Ints left = all_pairs(a + r * a_stride + 2 * i);
            for (std::size_t c = 0; c < C; ++c) sums[r][c] = add_pairs(sums[r][c], left, right[c]);
        }
    }
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t c = 0; c < C; ++c) store(out + r * out_stride + c * kLanes, __builtin_convertvector(sums[r][c], V) * all(factor));
}

template <std::size_t R>
inline void products(const std::int16_t* a, std::size_t a_stride, std::size_t pairs, const std::int16_t* b, std::size_t columns, float factor,
                     float* out, std::size_t out_stride) {
    std::size_t c = 0;
    for (; c + 2 * kLanes <= columns; c += 2 * kLanes) product<R, 2>(a, a_stride, pairs, b + 2 * c, columns, factor, out + c, out_stride);
    if (c < columns) product<R, 1>(a, a_stride, pairs, b + 2 * c, columns, factor, out + c, out_stride);
}

// Powers of two, divided by their sum, as words; zeros behind the last. x: [padded]
inline void softmax(float* x, std::size_t count, std::size_t padded, std::int16_t* to) {
    for (std::size_t i = count; i < padded; ++i) x[i] = -std::numeric_limits<float>::infinity();
    V high = load(x), sum = all(0);
    for (std::size_t i = kLanes; i < padded; i += kLanes) high = max(load(x + i), high);
    const V top = all(largest(high));
    for (std::size_t i = 0; i < padded; i += kLanes) {
        const V v = exp2_of(load(x + i) - top);
        store(x + i, v);
        sum += v;
    }
    const V factor = all(kMostWord / sum_of(sum));
    for (std::size_t i = 0; i < padded; i += kLanes) to_words(rounded(load(x + i) * factor), to + i);
}

// R queries against all keys.
template <std::size_t R>
inline void attend(const Head& head, std::size_t row, float* out, std::size_t width) {
    products<R>(head.queries + row * head.size, head.size, head.size / 2, head.keys, head.padded, head.scale, head.weights, head.padded);
    for (std::size_t r = 0; r < R; ++r) softmax(head.weights + r * head.padded, head.rows, head.padded, head.words + r * head.padded);
    products<R>(head.words, head.padded, (head.rows + 1) / 2, head.values, head.size, head.step, out + row * width, width);
}

inline void attention(const float* qkv, std::size_t rows, std::size_t width, std::size_t heads, float* scratch, float* out) {
    Head head{};
    head.rows = rows, head.padded = (rows + kLanes - 1) / kLanes * kLanes, head.size = width / heads;
    head.weights = scratch;
    head.words = reinterpret_cast<std::int16_t*>(head.weights + kQueries * head.padded);
    head.queries = head.words + kQueries * head.padded;
    head.keys = head.queries + rows * head.size;
    head.values = head.keys + head.size * head.padded;
    for (std::size_t h = 0; h < heads; ++h) {
        float* const to = out + h * head.size;
        take_head(qkv + h * head.size, width, head);
        std::size_t r = 0;
        for (; r + kQueries <= rows; r += kQueries) attend<kQueries>(head, r, to, width);
        for (; r < rows; ++r) attend<1>(head, r, to, width);
    }
}
