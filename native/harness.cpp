// The kernel without Python, for machines where only this can run (an emulated ARM, a borrowed AVX-512 one, valgrind):
//   harness                      every level = a naive count and a float64 sum, over widths, rows, l, threads and masks;
//                                cells that are all visited = the same count, and codes in the cells of their nearest centroids;
//                                the encoder's products = naive ones, and its vectors the same bits at every level
//   harness bert                 the encoder alone; its time for a text of 17 and of 140 tokens at every level
//   harness bench ROWS BYTES     time per question and level, beside a plain read of the same bytes; and of the rerank
#include "bert.h"
#include "cells.h"
#include "duplicates.h"
#include "hamming.h"
#include "lookup.h"
#include "rerank.h"
#include "scan.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace bpr;
std::mt19937_64 random_bits(20210604);

std::vector<std::uint8_t> random_bytes(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random_bits());
    return bytes;
}

Stop never() { return Stop(-1, nullptr, {}); }

struct Case {
    std::size_t bytes, rows, questions, l;
    bool masked;
    unsigned threads;
};

[[noreturn]] void fail(const Case& c, const char* what) {
    std::printf("FAILED at level %s: %s (bytes %zu, rows %zu, questions %zu, l %zu, masked %d, threads %u)\n", level().name, what,
                c.bytes, c.rows, c.questions, c.l, c.masked, c.threads);
    std::exit(1);
}

// The l nearest by the definition: count, sort, cut.
std::vector<std::pair<int, std::int64_t>> naive(const Case& c, const std::uint8_t* codes, const std::uint8_t* question, const std::uint8_t* mask) {
    std::vector<std::pair<int, std::int64_t>> all;
    for (std::size_t r = 0; r < c.rows; ++r) {
        int distance = 0;
        for (std::size_t i = 0; i < c.bytes; ++i) distance += std::popcount(static_cast<unsigned>(codes[r * c.bytes + i] ^ question[i]));
        if (mask == nullptr || (mask[r / 8] >> (r % 8) & 1)) all.emplace_back(distance, r);
    }
    std::sort(all.begin(), all.end());
    all.resize(std::min(all.size(), c.l));
    return all;
}

void check_scan(const Case& c, const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& questions, const Mask& mask) {
    const std::size_t l = std::min(c.l, mask.live);
    std::vector<std::int64_t> rows(c.questions * l + 1);
    std::vector<std::int32_t> found(c.questions * l + 1);
    Stop stop = never();
    const Codes all{codes.data(), c.rows, c.bytes}, asked{questions.data(), c.questions, c.bytes};
    scan(all, asked, l, mask, c.threads, stop, rows.data(), found.data());
    for (std::size_t j = 0; j < c.questions; ++j) {
        const auto expected = naive(c, codes.data(), questions.data() + j * c.bytes, mask.bits);
        for (std::size_t i = 0; i < l; ++i) {
            if (rows[j * l + i] != expected[i].second) fail(c, "wrong row");
            if (found[j * l + i] != expected[i].first) fail(c, "wrong distance");
        }
    }
}

// Hash tables over the first bits, asked until all is known; and with a scan so cheap that some questions are given up.
void check_lookup(const Case& c, const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& questions, const Mask& mask) {
    const std::size_t l = std::min(c.l, mask.live), width = std::min<std::size_t>(c.bytes * 8, 9), count = std::min<std::size_t>(c.bytes * 8 / width, 20);
    if (l == 0) return;
    std::vector<std::uint16_t> bits(count * width);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    std::vector<std::uint32_t> starts(count * ((std::size_t{1} << width) + 1)), sorted(count * c.rows);
    std::vector<std::int64_t> rows(c.questions * l);
    std::vector<std::int32_t> found(c.questions * l);
    std::vector<Effort> efforts(c.questions);
    Stop stop = never();
    const Codes all{codes.data(), c.rows, c.bytes}, asked{questions.data(), c.questions, c.bytes};
    build_tables(all, bits.data(), count, width, c.threads, stop, starts.data(), sorted.data());
    for (const double scan_cost : {1e100, 3e4}) {
        lookup(all, {bits.data(), starts.data(), sorted.data(), count, width}, asked, l, mask, {10, 2, 13, scan_cost}, c.threads, c.threads, stop,
               rows.data(), found.data(), efforts.data());
        for (std::size_t j = 0; j < c.questions; ++j) {
            if (efforts[j].outcome == Outcome::corrupt || (scan_cost > 1e99 && efforts[j].outcome != Outcome::found)) fail(c, "a look-up did not end");
            const auto expected = naive(c, codes.data(), questions.data() + j * c.bytes, mask.bits);
            for (std::size_t i = 0; i < l; ++i)
                if (rows[j * l + i] != expected[i].second || found[j * l + i] != expected[i].first) fail(c, "a look-up found something else");
        }
    }
}

// The second half of the rows are copies of the first: with a radius of 0 each has its own for a group.
void check_duplicates(const Case& c, const std::vector<std::uint8_t>& codes) {
    std::vector<std::int64_t> groups(c.rows), wider(c.rows);
    Stop stop = never();
    const Codes all{codes.data(), c.rows, c.bytes};
    duplicates(all, 0, {nullptr, c.rows}, c.threads, stop, groups.data());
    duplicates(all, c.bytes / 4 + 1, {nullptr, c.rows}, c.threads, stop, wider.data());
    for (std::size_t row = 0; row < c.rows; ++row) {
        const auto first = static_cast<std::size_t>(groups[row]);
        if (first > row || std::memcmp(codes.data() + first * c.bytes, codes.data() + row * c.bytes, c.bytes) != 0) fail(c, "different codes in one group");
        if (wider[row] > groups[row] || wider[row] != wider[first]) fail(c, "a wider radius parts a group");
    }
}

// Random cells, all visited: the same rows and distances. And every code to its nearest centroid, where all are on the shortlist.
void check_cells(const Case& c, const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& questions, const Mask& mask) {
    const std::size_t l = std::min(c.l, mask.live), bits = c.bytes * 8, count = 1 + random_bits() % 9;
    std::vector<std::vector<std::uint32_t>> members(count);
    for (std::size_t row = 0; row < c.rows; ++row) members[random_bits() % count].push_back(static_cast<std::uint32_t>(row));
    std::vector<std::uint8_t> laid_out;
    std::vector<std::uint32_t> order, nearest(c.rows);
    std::vector<std::int64_t> starts{0}, rows(c.questions * l + 1), visited(c.questions);
    for (const auto& cell : members) {
        for (const std::uint32_t row : cell) laid_out.insert(laid_out.end(), codes.begin() + row * c.bytes, codes.begin() + (row + 1) * c.bytes);
        order.insert(order.end(), cell.begin(), cell.end());
        starts.push_back(static_cast<std::int64_t>(order.size()));
    }
    std::vector<std::int8_t> centroids(count * bits);
    for (auto& x : centroids) x = static_cast<std::int8_t>(random_bits());
    std::vector<float> vectors(c.questions * bits);
    for (auto& x : vectors) x = static_cast<float>(random_bits() % 2001) / 1000 - 1;
    std::vector<std::int32_t> found(c.questions * l + 1), fits(c.rows);
    Stop stop = never();
    const Codes asked{questions.data(), c.questions, c.bytes};
    probe({{laid_out.data(), c.rows, c.bytes}, order.data(), starts.data(), {centroids.data(), count, bits}}, {asked, vectors.data()}, l, 1, mask, c.threads,
          stop, rows.data(), found.data(), visited.data());
    for (std::size_t j = 0; j < c.questions; ++j) {
        const auto expected = naive(c, codes.data(), questions.data() + j * c.bytes, mask.bits);
        for (std::size_t i = 0; i < l; ++i)
            if (rows[j * l + i] != expected[i].second || found[j * l + i] != expected[i].first) fail(c, "cells and scan differ");
    }
    assign({codes.data(), c.rows, c.bytes}, {centroids.data(), count, bits}, count, c.threads, stop, nearest.data(), fits.data());
    for (std::size_t row = 0; row < c.rows; ++row) {
        std::vector<std::int64_t> fit(count, 0);
        for (std::size_t i = 0; i < count * bits; ++i) {
            const int value = centroids[i], sign = codes[row * c.bytes + i % bits / 8] >> (7 - i % 8) & 1 ? 1 : -1;
            fit[i / bits] += 2 * 127 * value * sign - value * value;
        }
        const auto best = std::max_element(fit.begin(), fit.end());
        if (best - fit.begin() != nearest[row] || *best != fits[row]) fail(c, "a code is in a wrong cell");
    }
}

float exact_score(const Case& c, const Planes& p, const float* question, std::int64_t row, double& size) {
    double sum = 0;
    size = 0;
    for (std::size_t i = 0; i < c.bytes * 8; ++i) {
        const std::size_t at = static_cast<std::size_t>(row) * c.bytes + i / 8;
        const int shift = 7 - static_cast<int>(i % 8);
        const double value = p.magnitudes == nullptr ? 1.0 : p.levels[p.magnitudes[at] >> shift & 1];
        sum += question[i] * (p.signs.data[at] >> shift & 1 ? value : -value);
        size += std::abs(question[i] * value);
    }
    return static_cast<float>(sum);
}

// Returns a checksum of the scores' bits: equal on every machine, so that an emulated run can be compared with a native one.
std::uint64_t check_scores(const Case& c, const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& magnitudes, bool two) {
    std::vector<float> questions(c.questions * c.bytes * 8);
    for (auto& q : questions) q = static_cast<float>(static_cast<double>(random_bits() >> 11) / 4503599627370496.0 - 1.0);
    const Planes planes{{codes.data(), c.rows, c.bytes}, two ? magnitudes.data() : nullptr, {0.4528f, 1.5104f}};
    const std::size_t k = std::min(c.l, c.rows);
    std::vector<std::int64_t> every(c.questions * c.rows), best(c.questions * k + 1), all(c.questions * k + 1);
    for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::int64_t>(c.rows - 1 - i % c.rows);    // not as scan_scores takes them
    std::vector<float> scores(c.questions * k + 1), all_scores(c.questions * k + 1);
    Stop stop = never();
    const FloatQuestions asked{questions.data(), c.questions};
    rerank(planes, asked, every.data(), c.rows, k, c.threads, stop, best.data(), scores.data());
    scan_scores(planes, asked, k, {nullptr, c.rows}, c.threads, stop, all.data(), all_scores.data());
    if (best != all || std::memcmp(scores.data(), all_scores.data(), c.questions * k * sizeof(float)) != 0) fail(c, "rerank and scan_scores differ");
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < c.questions * k; ++i) {
        double size;
        const float exact = exact_score(c, planes, questions.data() + i / k * c.bytes * 8, best[i], size);
        if (std::abs(exact - scores[i]) > 1e-5 * size) fail(c, "score too far from float64");
        if (i % k != 0 && (scores[i] > scores[i - 1] || (scores[i] == scores[i - 1] && best[i] < best[i - 1]))) fail(c, "scores out of order");
        sum = sum * 6364136223846793005ull + std::bit_cast<std::uint32_t>(scores[i]) + static_cast<std::uint64_t>(best[i]);
    }
    return sum;
}

std::uint64_t check(const Case& c) {
    auto codes = random_bytes(c.rows * c.bytes);
    for (std::size_t i = c.rows / 2 * c.bytes; i + c.bytes <= codes.size() && i >= c.bytes; i += c.bytes)
        std::memcpy(codes.data() + i, codes.data() + i - c.rows / 2 * c.bytes, c.bytes);    // ties
    auto questions = random_bytes(c.questions * c.bytes), mask = random_bytes((c.rows + 7) / 8);
    if (c.rows % 8 != 0) mask.back() &= static_cast<std::uint8_t>((1u << c.rows % 8) - 1);
    for (std::size_t i = 0; i < mask.size() && c.l == 10; ++i)
        if (i % 5 != 0) mask[i] = 0;    // few live rows: they are gathered
    std::size_t live = 0;
    for (const auto b : mask) live += static_cast<std::size_t>(std::popcount(b));
    check_scan(c, codes, questions, c.masked ? Mask{mask.data(), live} : Mask{nullptr, c.rows});
    check_lookup(c, codes, questions, c.masked ? Mask{mask.data(), live} : Mask{nullptr, c.rows});
    check_duplicates(c, codes);
    if (c.rows * c.bytes > 80'000) return 0;    // the definition is slow
    check_cells(c, codes, questions, c.masked ? Mask{mask.data(), live} : Mask{nullptr, c.rows});
    const auto magnitudes = random_bytes(c.rows * c.bytes);
    return check_scores(c, codes, magnitudes, false) ^ check_scores(c, codes, magnitudes, true) << 1;
}

void check_everything() {
    std::uint64_t reference = 0;
    for (const Kernels* k : supported_levels()) {
        use_level(k->name);
        random_bits.seed(20210604);
        std::uint64_t sum = 0;
        std::size_t cases = 0;
        for (const std::size_t bytes : {1, 2, 3, 5, 7, 8, 9, 12, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 97, 128, 256, 511, 512})
            for (const std::size_t rows : {1, 7, 64, 129, 513, 1100})
                for (const std::size_t questions : {1, 9})
                    for (const std::size_t l : {std::size_t{1}, std::size_t{10}, rows + 3}) {
                        const Case c{bytes, rows, questions, l, random_bits() % 3 == 0, 1 + static_cast<unsigned>(random_bits() % 4)};
                        sum = sum * 31 + check(c);
                        ++cases;
                    }
        if (k == supported_levels().front()) reference = sum;
        if (sum != reference) fail({}, "scores are not bit-equal to the portable level's");
        std::printf("%-8s %zu cases equal the definition; checksum of all scores %016llx\n", k->name, cases, static_cast<unsigned long long>(sum));
    }
}

// ── The encoder ──────────────────────────────────────────────────────────────────────────────────────────────────────

// Weights whose neighbours sum up to no more than 128.
std::vector<std::int8_t> random_weights(std::size_t count) {
    std::vector<std::int8_t> weights(count);
    for (auto& w : weights) w = static_cast<std::int8_t>(static_cast<int>(random_bits() % 129) - 64);
    return weights;
}

std::vector<float> random_floats(std::size_t count, float size, float middle = 0) {
    std::vector<float> floats(count);
    for (auto& f : floats) f = middle + size * (static_cast<float>(random_bits() >> 40) / 8388608.0f - 1.0f);
    return floats;
}

void check_products(std::size_t in, std::size_t out, std::size_t rows, int most) {
    const auto weights = random_weights(in * out);
    auto values = random_bytes(rows * in);
    for (auto& v : values) v = static_cast<std::uint8_t>(random_bits() % 3 == 0 ? most : v % (most + 1));
    std::vector<float> found(rows * out);
    multiply(values.data(), rows, {weights.data(), in, out, {}, {}}, most, found.data());
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < out; ++c) {
            int sum = 0;
            for (std::size_t i = 0; i < in; ++i) sum += values[r * in + i] * weights[i * out + c];
            if (static_cast<float>(sum) != found[r * out + c]) fail({in, rows, out, 0, false, 0}, "a product of bytes is wrong");
        }
}

// A network of random weights: its constants live as long as it does not copy them.
void fill(Bert& bert, std::size_t layers, std::size_t width, std::size_t inner) {
    const auto gamma = random_floats(width, 0.5f, 1), beta = random_floats(width, 0.3f), bias = random_floats(3 * width + inner, 0.3f);
    const auto scales = random_floats(3 * width + inner, 0.0005f, 0.001f), projection = random_floats(width * width, 0.1f);
    const Floats g{gamma.data(), 1, width}, b{beta.data(), 1, width};
    for (std::size_t layer = 0; layer < layers; ++layer) {
        const auto qkv = random_weights(width * 3 * width), attention = random_weights(width * width);
        const auto first = random_weights(width * inner), second = random_weights(inner * width);
        const auto product = [&](const auto& weights, std::size_t in, std::size_t out, bool biased) {
            return Weights{weights.data(), in, out, {scales.data(), 1, out}, biased ? Floats{bias.data(), 1, out} : Floats{nullptr, 0, 0}};
        };
        bert.add_layer({g, b, g, b, g, b, g, b, product(qkv, width, 3 * width, true), product(attention, width, width, false),
                        product(first, width, inner, true), product(second, inner, width, false)});
    }
    bert.add_output({projection.data(), width, width}, b);
}

struct Network {
    Network(std::size_t layers, std::size_t width, std::size_t heads, std::size_t inner)
        : words(random_weights(kWords * width)), scales(random_floats(kWords, 0.005f, 0.01f)), places(random_floats(512 * width, 0.2f)),
          affine(random_floats(width, 0.2f, 1)), out(width),
          bert({heads, 1e-12f, true, true}, words.data(), kWords, {scales.data(), 1, kWords}, {places.data(), 512, width}, {nullptr, 0, 0},
               {affine.data(), 1, width}, {affine.data(), 1, width}) {
        fill(bert, layers, width, inner);
    }
    const std::vector<float>& encode(std::size_t tokens) {
        std::vector<std::int64_t> ids(tokens);
        for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int64_t>(i * 7919 % kWords);
        bert.encode(ids.data(), nullptr, tokens, 0, out.data());
        return out;
    }
    static constexpr std::size_t kWords = 1000;
    std::vector<std::int8_t> words;
    std::vector<float> scales, places, affine, out;
    Bert bert;
};

void check_encoder() {
    std::uint64_t reference = 0;
    for (const Kernels* k : supported_levels()) {
        use_level(k->name);
        random_bits.seed(20210605);
        for (const std::size_t in : {32, 64, 384, 1536})
            for (const std::size_t rows : {1, 2, 3, 4, 5, 7, 12, 17, 29})
                for (const int most : {kSevenBits, kEightBits}) check_products(in, 48, rows, most);
        std::uint64_t sum = 0;
        for (const std::size_t width : {32, 96, 384}) {
            Network network(2, width, width == 96 ? 4 : width / 32, 2 * width);
            for (const std::size_t tokens : {1, 2, 5, 16, 17, 49, 130})
                for (const float x : network.encode(tokens)) {
                    if (!std::isfinite(x)) fail({width, tokens, 0, 0, false, 0}, "a vector is not finite");
                    sum = sum * 6364136223846793005ull + std::bit_cast<std::uint32_t>(x);
                }
        }
        if (k == supported_levels().front()) reference = sum;
        if (sum != reference) fail({}, "vectors are not bit-equal to the portable level's");
        std::printf("%-8s products equal the definition; checksum of all vectors %016llx\n", k->name, static_cast<unsigned long long>(sum));
    }
}

template <class F>
double best_ms(F run) {
    double best = 1e30;
    for (int i = 0; i < 5; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        run();
        best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
}

void bench_encoder() {
    Network network(6, 384, 12, 1536);
    for (const Kernels* k : supported_levels()) {
        use_level(k->name);
        for (const std::size_t tokens : {17, 140}) {
            const double ms = best_ms([&] { network.encode(tokens); });
            std::printf("%-8s %3zu tokens: %8.3f ms, %.1f µs a token\n", k->name, tokens, ms, 1000 * ms / static_cast<double>(tokens));
        }
    }
}

// One question's 1000 candidates, each time others: right after a rerank of the same rows, and after all codes were read, which
// leaves few of them (and little else) in the caches.
void bench_rerank(const Planes& planes, const char* what) {
    const Codes& codes = planes.signs;
    std::vector<float> question(codes.bytes * 8);
    for (auto& q : question) q = static_cast<float>(random_bits() % 2001) / 1000 - 1;
    std::vector<std::int64_t> rows(1000), best(100);
    std::vector<float> scores(100);
    std::vector<double> took[2];
    Stop stop = never();
    for (int i = 0; i < 62; ++i) {
        for (auto& row : rows) row = static_cast<std::int64_t>(random_bits() % codes.rows);
        read_all(codes, 1, stop);
        for (auto& times : took) {
            const auto begin = std::chrono::steady_clock::now();
            rerank(planes, {question.data(), 1}, rows.data(), rows.size(), best.size(), 1, stop, best.data(), scores.data());
            times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
        }
    }
    for (auto& times : took) std::sort(times.begin(), times.end());
    std::printf("%-8s rerank of 1000, %s: cold %.1f µs (best %.1f), hot %.1f µs (best %.1f)\n", level().name, what, took[0][31], took[0][0],
                took[1][31], took[1][0]);
}

void bench(std::size_t rows, std::size_t bytes, unsigned threads) {
    const auto codes = random_bytes(rows * bytes), large = random_bytes(rows * bytes), questions = random_bytes(256 * bytes);
    const Codes all{codes.data(), rows, bytes};
    std::vector<std::int64_t> found(256 * 1000);
    std::vector<std::int32_t> far(256 * 1000);
    Stop stop = never();
    std::printf("%u threads; read once: %.2f ms\n", threads, best_ms([&] { read_all(all, threads, stop); }));
    for (const Kernels* k : supported_levels()) {
        if (const char* only = std::getenv("BPR_SIMD"); only != nullptr && std::strcmp(only, k->name) != 0) continue;
        use_level(k->name);
        for (const std::size_t count : {1, 2, 4, 6, 8, 16, 64, 256}) {
            const double ms = best_ms([&] { scan(all, {questions.data(), count, bytes}, std::min<std::size_t>(1000, rows), {nullptr, rows}, threads, stop, found.data(), far.data()); });
            std::printf("%-8s %3zu questions: %8.3f ms each, %.3f ns a code\n", k->name, count, ms / static_cast<double>(count),
                        ms * 1e6 * threads / static_cast<double>(count) / static_cast<double>(rows));
        }
        bench_rerank({all, nullptr, {}}, "one plane");
        bench_rerank({all, large.data(), {0.4528f, 1.5104f}}, "two planes");
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc >= 4 && std::string(argv[1]) == "bench") {
        bench(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10), argc > 4 ? static_cast<unsigned>(std::atoi(argv[4])) : 1);
        return 0;
    }
    if (argc >= 2 && std::string(argv[1]) == "bert") {
        check_encoder();
        bench_encoder();
        return 0;
    }
    check_everything();
    check_encoder();
}
