// The only file that knows Python: checks dtype, shape, contiguity and bounds, releases the GIL, calls. No algorithm.
#include "bert.h"
#include "cells.h"
#include "duplicates.h"
#include "hamming.h"
#include "lookup.h"
#include "rerank.h"
#include "rotate.h"
#include "scan.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr std::size_t kMaxBytes = 512;
constexpr unsigned kMaxThreads = 1024;

using CodesArray = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatsArray = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PanelsArray = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using WeightsArray = nb::ndarray<const std::int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IdsArray = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowsArray = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PlacesArray = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BitsArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBits = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flag = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
using Matrix = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

bpr::Codes view(const CodesArray& codes) {
    require(codes.shape(1) >= 1 && codes.shape(1) <= kMaxBytes, "a code must be 1 to 512 bytes wide");
    require(codes.shape(0) < (std::size_t{1} << 48), "too many rows");
    return {codes.data(), codes.shape(0), codes.shape(1)};
}

// Owned memory that becomes a numpy array. new T[] with sizes that numpy itself could not hold throws bad_alloc.
template <class T>
struct Owned {
    Owned(std::size_t rows, std::size_t columns) : data(new T[std::max<std::size_t>(1, checked(rows, columns))]), shape{rows, columns} {}
    static std::size_t checked(std::size_t rows, std::size_t columns) {
        std::size_t total;
        if (__builtin_mul_overflow(rows, columns, &total) || total > std::numeric_limits<std::size_t>::max() / 16) throw std::bad_alloc();
        return total;
    }
    Matrix<T> array() {
        T* held = data.release();
        nb::capsule owner(held, [](void* p) noexcept { delete[] static_cast<T*>(p); });
        return Matrix<T>(held, {shape[0], shape[1]}, owner);
    }
    std::unique_ptr<T[]> data;
    std::size_t shape[2];
};

bpr::Mask live_rows(const std::optional<BitsArray>& mask, std::size_t rows) {
    if (!mask) return {nullptr, rows};
    require(mask->shape(0) == (rows + 7) / 8, "the mask must have one bit a row");
    require(rows % 8 == 0 || mask->data()[rows / 8] >> (rows % 8) == 0, "the mask has bits beyond the last row");
    return {mask->data(), bpr::count_bits(mask->data(), mask->shape(0))};
}

// Checked inside the call, without the GIL and under its deadline: millions of rows take milliseconds. False: told to stop.
bool rows_are_inside(const RowsArray& rows, std::size_t limit, bpr::Stop& stop) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i % 65536 == 0 && stop.now()) return false;
        require(rows.data()[i] >= 0 && static_cast<std::uint64_t>(rows.data()[i]) < limit, "a row number is outside the index");
    }
    return true;
}

bpr::Planes planes_of(const CodesArray& codes, const std::optional<CodesArray>& magnitudes, std::pair<float, float> levels,
                      const std::optional<PlacesArray>& positions) {
    bpr::Planes planes{view(codes), nullptr, {levels.first, levels.second}};
    require(!positions || positions->shape(0) == codes.shape(0), "one position a row is needed");    // what they say is checked on use
    if (positions) planes.positions = positions->data();
    if (!magnitudes) return planes;
    require(magnitudes->shape(0) == codes.shape(0) && magnitudes->shape(1) == codes.shape(1), "magnitudes must have the shape of the codes");
    require(std::isfinite(levels.first) && std::isfinite(levels.second), "levels must be finite");
    planes.magnitudes = magnitudes->data();
    return planes;
}

// Finite, and with room for every partial sum: then scores are finite too and their order is total.
bpr::FloatQuestions questions_of(const FloatsArray& questions, const bpr::Planes& planes) {
    require(questions.shape(1) == planes.signs.bytes * 8, "questions and codes differ in width");
    const double level = planes.magnitudes == nullptr ? 1.0 : std::max(std::abs(planes.levels[0]), std::abs(planes.levels[1]));
    for (std::size_t j = 0; j < questions.shape(0); ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < questions.shape(1); ++i) sum += std::abs(static_cast<double>(questions.data()[j * questions.shape(1) + i]));
        require(sum * std::max(1.0, level) < std::numeric_limits<float>::max() / 4, "question values must be finite and not astronomically large");
    }
    return {questions.data(), questions.shape(0)};
}

// Ctrl-C: Python's handler runs here, between two tiles, and its exception ends the call.
bool interrupted() {
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

class Call {
public:
    Call(double seconds, const std::optional<Flag>& cancel, unsigned threads)
        : stop(seconds, cancel && cancel->size() > 0 ? cancel->data() : nullptr, interrupted), threads(threads) {
        require(threads >= 1 && threads <= kMaxThreads, "threads must be 1 to 1024");
    }
    // Runs the work without the GIL and turns an early end into an exception.
    template <class Work>
    void run(Work work) {
        {
            nb::gil_scoped_release release;
            work();
        }
        if (PyErr_Occurred() != nullptr) throw nb::python_error();    // a Ctrl-C counts, whatever else ended the call
        switch (stop.reason()) {
            case bpr::Stop::Reason::none: return;
            case bpr::Stop::Reason::deadline: PyErr_SetString(PyExc_TimeoutError, "the deadline has passed"); break;
            case bpr::Stop::Reason::cancelled: PyErr_SetString(PyExc_InterruptedError, "cancelled"); break;
            case bpr::Stop::Reason::interrupted: break;    // not reached: the handler's own exception was set
        }
        throw nb::python_error();
    }
    bpr::Stop stop;
    unsigned threads;
};

auto scan(const CodesArray& codes, const CodesArray& questions, std::size_t l, unsigned threads, std::optional<BitsArray> mask,
          double seconds, std::optional<Flag> cancel) {
    const bpr::Codes all = view(codes), asked = view(questions);
    require(asked.bytes == all.bytes, "questions and codes differ in width");
    const bpr::Mask live = live_rows(mask, all.rows);
    l = std::min(l, live.live);
    Owned<std::int64_t> rows(asked.rows, l);
    Owned<std::int32_t> distances(asked.rows, l);
    Call call(seconds, cancel, threads);
    call.run([&] { bpr::scan(all, asked, l, live, call.threads, call.stop, rows.data.get(), distances.data.get()); });
    return nb::make_tuple(rows.array(), distances.array());
}

auto rerank(const CodesArray& codes, std::optional<CodesArray> magnitudes, std::pair<float, float> levels, const FloatsArray& questions,
            const RowsArray& rows, std::size_t k, unsigned threads, double seconds, std::optional<Flag> cancel, std::optional<PlacesArray> positions) {
    const bpr::Planes planes = planes_of(codes, magnitudes, levels, positions);
    const bpr::FloatQuestions asked = questions_of(questions, planes);
    require(rows.shape(0) == asked.count, "one list of rows a question is needed");
    k = std::min(k, rows.shape(1));
    Owned<std::int64_t> best(asked.count, k);
    Owned<float> scores(asked.count, k);
    Call call(seconds, cancel, threads);
    call.run([&] {
        if (rows_are_inside(rows, planes.signs.rows, call.stop))
            bpr::rerank(planes, asked, rows.data(), rows.shape(1), k, call.threads, call.stop, best.data.get(), scores.data.get());
    });
    return nb::make_tuple(best.array(), scores.array());
}

auto scan_scores(const CodesArray& codes, std::optional<CodesArray> magnitudes, std::pair<float, float> levels,
                 const FloatsArray& questions, std::size_t k, unsigned threads, std::optional<BitsArray> mask, double seconds,
                 std::optional<Flag> cancel, std::optional<PlacesArray> positions) {
    const bpr::Planes planes = planes_of(codes, magnitudes, levels, positions);
    const bpr::FloatQuestions asked = questions_of(questions, planes);
    const bpr::Mask live = live_rows(mask, planes.signs.rows);
    k = std::min(k, live.live);
    Owned<std::int64_t> best(asked.count, k);
    Owned<float> scores(asked.count, k);
    Call call(seconds, cancel, threads);
    call.run([&] { bpr::scan_scores(planes, asked, k, live, call.threads, call.stop, best.data.get(), scores.data.get()); });
    return nb::make_tuple(best.array(), scores.array());
}

// Numbers of rows as a bundle stores them: below the limit, or else the bundle is not what it was.
template <class Row>
void mark_rows(const WritableBits& bits, const nb::ndarray<const Row, nb::ndim<1>, nb::c_contig, nb::device::cpu>& rows, std::size_t limit, bool toggle) {
    require(bits.shape(0) == (limit + 7) / 8, "there must be one bit a row");
    bool inside;
    {
        nb::gil_scoped_release release;
        inside = bpr::mark_rows(rows.data(), rows.shape(0), limit, toggle, bits.data());
    }
    require(inside, "a row number is outside the index");
}

bpr::Centroids centroids_of(const WeightsArray& centroids, const bpr::Codes& codes) {
    require(centroids.shape(1) == codes.bytes * 8, "centroids and codes differ in width");
    require(centroids.shape(0) < (std::size_t{1} << 32), "too many cells");
    return {centroids.data(), centroids.shape(0), centroids.shape(1)};
}

// Cells that cover [0, rows) one after the other.
void check_starts(const IdsArray& starts, std::size_t rows) {
    bool holds = starts.shape(0) >= 1 && starts.data()[0] == 0 && starts.data()[starts.shape(0) - 1] == static_cast<std::int64_t>(rows);
    for (std::size_t i = 1; i < starts.shape(0); ++i) holds &= starts.data()[i - 1] <= starts.data()[i];
    require(holds, "the starts of cells must ascend from 0 to the number of rows");
}

auto probe(const CodesArray& codes, const PlacesArray& rows, const IdsArray& starts, const WeightsArray& centroids, const CodesArray& questions,
           const FloatsArray& vectors, std::size_t l, double share, unsigned threads, std::optional<BitsArray> mask, double seconds,
           std::optional<Flag> cancel) {
    const bpr::Codes all = view(codes), asked = view(questions);
    require(asked.bytes == all.bytes, "questions and codes differ in width");
    require(vectors.shape(0) == asked.rows, "one vector a question is needed");
    require(share > 0 && share <= 1, "a share must be more than 0 and at most 1");
    const bpr::FloatQuestions floats = questions_of(vectors, {all, nullptr, {}});
    require(rows.shape(0) == all.rows, "one row a position is needed");    // what they say is checked on use
    require(starts.shape(0) == centroids.shape(0) + 1, "one start a cell, and the end, are needed");
    check_starts(starts, all.rows);
    const bpr::Cells cells{all, rows.data(), starts.data(), centroids_of(centroids, all)};
    const bpr::Mask live = live_rows(mask, all.rows);
    l = std::min(l, live.live);
    Owned<std::int64_t> found(asked.rows, l), visited(asked.rows, 1);
    Owned<std::int32_t> distances(asked.rows, l);
    Call call(seconds, cancel, threads);
    call.run([&] {
        bpr::probe(cells, {asked, floats.data}, l, share, live, call.threads, call.stop, found.data.get(), distances.data.get(), visited.data.get());
    });
    return nb::make_tuple(found.array(), distances.array(), visited.array());
}

auto assign(const CodesArray& codes, const WeightsArray& centroids, std::size_t shortlist, unsigned threads) {
    const bpr::Codes all = view(codes);
    const bpr::Centroids middles = centroids_of(centroids, all);
    require(middles.count >= 1 && shortlist >= 1, "there must be a cell to choose");
    Owned<std::uint32_t> cells(all.rows, 1);
    Owned<std::int32_t> fits(all.rows, 1);
    Call call(-1, std::nullopt, threads);
    call.run([&] { bpr::assign(all, middles, shortlist, call.threads, call.stop, cells.data.get(), fits.data.get()); });
    return nb::make_tuple(cells.array(), fits.array());
}

auto count_ones(const CodesArray& codes, const PlacesArray& order, const IdsArray& starts, unsigned threads) {
    const bpr::Codes all = view(codes);
    check_starts(starts, order.shape(0));
    for (std::size_t i = 0; i < order.shape(0); ++i) require(order.data()[i] < all.rows, "a row number is outside the codes");
    const std::size_t cells = starts.shape(0) - 1;
    Owned<std::int32_t> ones(cells, all.bytes * 8);
    Call call(-1, std::nullopt, threads);
    call.run([&] { bpr::count_ones(all, order.data(), starts.data(), cells, call.threads, call.stop, ones.data.get()); });
    return ones.array();
}

auto rotate(const FloatsArray& vectors, const PanelsArray& panels, unsigned threads) {
    require(vectors.shape(1) == panels.shape(1) && panels.shape(2) == bpr::kPanel, "vectors and rotation differ in dimensions");
    const std::size_t columns = panels.shape(0) * bpr::kPanel;
    Owned<float> out(vectors.shape(0), columns);
    Call call(-1, std::nullopt, threads);
    call.run([&] {
        bpr::rotate(vectors.data(), vectors.shape(0), vectors.shape(1), panels.data(), columns, call.threads, call.stop, out.data.get());
    });
    return out.array();
}

std::uint64_t read_all(const CodesArray& codes, unsigned threads) {
    Call call(-1, std::nullopt, threads);
    std::uint64_t total = 0;
    call.run([&] { total = bpr::read_all(view(codes), call.threads, call.stop); });
    return total;
}

bpr::Floats floats_of(const FloatsArray& array) { return {array.data(), array.shape(0), array.shape(1)}; }

void make_bert(bpr::Bert* place, std::size_t heads, float epsilon, bool mean, bool normalize, const WeightsArray& words,
               const FloatsArray& word_scales, const FloatsArray& places, std::optional<FloatsArray> segments, const FloatsArray& gamma,
               const FloatsArray& beta) {
    require(words.shape(1) == places.shape(1), "words and places differ in width");
    const bpr::Floats none{nullptr, 0, 0};
    new (place) bpr::Bert({heads, epsilon, mean, normalize}, words.data(), words.shape(0), floats_of(word_scales), floats_of(places),
                          segments ? floats_of(*segments) : none, floats_of(gamma), floats_of(beta));
}

// norms: γ and β of qkv, attention, inner and outer; weights, scales: of the same four; biases: of qkv and inner.
void add_layer(bpr::Bert& bert, const std::vector<FloatsArray>& norms, const std::vector<WeightsArray>& weights,
               const std::vector<FloatsArray>& scales, const std::vector<FloatsArray>& biases) {
    require(norms.size() == 8 && weights.size() == 4 && scales.size() == 4 && biases.size() == 2, "a layer has 8 norms, 4 weights, 4 scales and 2 biases");
    const auto norm = [&](std::size_t i) { return floats_of(norms[i]); };
    const auto product = [&](std::size_t i, const FloatsArray* bias) {
        const bpr::Floats none{nullptr, 0, 0};
        return bpr::Weights{weights[i].data(), weights[i].shape(0), weights[i].shape(1), floats_of(scales[i]), bias == nullptr ? none : floats_of(*bias)};
    };
    bert.add_layer({norm(0), norm(1), norm(2), norm(3), norm(4), norm(5), norm(6), norm(7), product(0, &biases[0]), product(1, nullptr),
                    product(2, &biases[1]), product(3, nullptr)});
}

auto encode(bpr::Bert& bert, const IdsArray& ids, std::optional<IdsArray> segments, std::size_t output) {
    require(!segments || segments->shape(0) == ids.shape(0), "one segment a token is needed");
    Owned<float> out(1, bert.output_bits(output));
    {
        nb::gil_scoped_release release;
        bert.encode(ids.data(), segments ? segments->data() : nullptr, ids.shape(0), output, out.data.get());
    }
    return out.array();
}

auto encode_tokens(bpr::Bert& bert, const IdsArray& ids, std::optional<IdsArray> segments, std::size_t output) {
    require(!segments || segments->shape(0) == ids.shape(0), "one segment a token is needed");
    Owned<float> out(ids.shape(0), bert.output_bits(output));
    {
        nb::gil_scoped_release release;
        bert.encode_tokens(ids.data(), segments ? segments->data() : nullptr, ids.shape(0), output, out.data.get());
    }
    return out.array();
}

auto multiply(const CodesArray& rows, const WeightsArray& weights, int most) {
    require(rows.shape(1) == weights.shape(0), "rows and weights differ in width");
    const bpr::Floats none{nullptr, 0, 0};
    Owned<float> out(rows.shape(0), weights.shape(1));
    bpr::multiply(rows.data(), rows.shape(0), {weights.data(), weights.shape(0), weights.shape(1), none, none}, most, out.data.get());
    return out.array();
}

// ── hash tables ──

using KeyBitsArray = nb::ndarray<const std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using TableArray = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_key_bits(const KeyBitsArray& bits, const bpr::Codes& codes) {
    require(bits.shape(1) >= 1 && bits.shape(1) <= bpr::kMaxKeyBits, "a table must be over 1 to 24 bits");
    require(codes.rows < (std::size_t{1} << 32), "tables hold fewer than 2^32 rows");
    for (std::size_t i = 0; i < bits.size(); ++i) require(bits.data()[i] < codes.bytes * 8, "a table is over a bit that codes do not have");
}

auto build_tables(const CodesArray& codes, const KeyBitsArray& bits, unsigned threads, double seconds, std::optional<Flag> cancel) {
    const bpr::Codes all = view(codes);
    check_key_bits(bits, all);
    Owned<std::uint32_t> starts(bits.shape(0), (std::size_t{1} << bits.shape(1)) + 1), rows(bits.shape(0), all.rows);
    Call call(seconds, cancel, threads);
    call.run([&] { bpr::build_tables(all, bits.data(), bits.shape(0), bits.shape(1), call.threads, call.stop, starts.data.get(), rows.data.get()); });
    return nb::make_tuple(starts.array(), rows.array());
}

// costs: of a probe, of a row in a list, of a row compared, of a scan for one question. Results: rows, distances, then for each question
// probes, visited rows and whether it was scanned, and whether the tables are corrupt.
auto lookup(const CodesArray& codes, const KeyBitsArray& bits, const TableArray& starts, const TableArray& table_rows, const CodesArray& questions,
            std::size_t l, const std::vector<double>& costs, unsigned workers, unsigned threads, std::optional<BitsArray> mask, double seconds,
            std::optional<Flag> cancel) {
    const bpr::Codes all = view(codes), asked = view(questions);
    require(asked.bytes == all.bytes, "questions and codes differ in width");
    check_key_bits(bits, all);
    require(bits.shape(0) >= 1, "at least one table is needed");
    require(starts.shape(0) == bits.shape(0) && starts.shape(1) == (std::size_t{1} << bits.shape(1)) + 1, "starts must have 2^bits + 1 entries a table");
    require(table_rows.shape(0) == bits.shape(0) && table_rows.shape(1) == all.rows, "every table must hold every row");
    require(costs.size() == 4 && costs[0] > 0 && costs[1] > 0 && costs[2] > 0 && costs[3] >= 0, "costs must be four positive numbers");
    const bpr::Tables tables{bits.data(), starts.data(), table_rows.data(), bits.shape(0), bits.shape(1)};
    const bpr::Mask live = live_rows(mask, all.rows);
    l = std::min(l, live.live);
    Owned<std::int64_t> rows(asked.rows, l), efforts(3, asked.rows);
    Owned<std::int32_t> distances(asked.rows, l);
    std::vector<bpr::Effort> made(asked.rows, {0, 0, bpr::Outcome::found});
    Call call(seconds, cancel, threads);
    require(workers >= 1 && workers <= threads, "workers must be 1 to threads");
    call.run([&] {
        if (l > 0)
            bpr::lookup(all, tables, asked, l, live, {costs[0], costs[1], costs[2], costs[3]}, workers, call.threads, call.stop, rows.data.get(),
                        distances.data.get(), made.data());
    });
    bool corrupt = false;
    for (std::size_t j = 0; j < asked.rows; ++j) {
        efforts.data[j] = made[j].probes;
        efforts.data[asked.rows + j] = made[j].visited;
        efforts.data[2 * asked.rows + j] = made[j].outcome == bpr::Outcome::fell_back;
        corrupt = corrupt || made[j].outcome == bpr::Outcome::corrupt;
    }
    return nb::make_tuple(rows.array(), distances.array(), efforts.array(), corrupt);
}

auto duplicates(const CodesArray& codes, std::size_t radius, unsigned threads, std::optional<BitsArray> mask, double seconds, std::optional<Flag> cancel) {
    const bpr::Codes all = view(codes);
    require(all.rows < (std::size_t{1} << 32), "duplicates are sought among fewer than 2^32 rows");
    const bpr::Mask live = live_rows(mask, all.rows);
    Owned<std::int64_t> groups(1, all.rows);
    Call call(seconds, cancel, threads);
    call.run([&] { bpr::duplicates(all, radius, live, call.threads, call.stop, groups.data.get()); });
    return groups.array();
}

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const bpr::Kernels* k : bpr::supported_levels()) names.emplace_back(k->name);
    return names;
}

}  // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);    // an encoder may live in a global until the very end
    m.doc() = "Kernels of bpr; call them through bpr.kernels, which checks and explains.";
    m.def("scan", &scan, "codes"_a.noconvert(), "questions"_a.noconvert(), "l"_a, "threads"_a, "mask"_a.noconvert().none(),
          "seconds"_a, "cancel"_a.noconvert().none());
    m.def("rerank", &rerank, "codes"_a.noconvert(), "magnitudes"_a.noconvert().none(), "levels"_a, "questions"_a.noconvert(),
          "rows"_a.noconvert(), "k"_a, "threads"_a, "seconds"_a, "cancel"_a.noconvert().none(), "positions"_a.noconvert() = nb::none());
    m.def("scan_scores", &scan_scores, "codes"_a.noconvert(), "magnitudes"_a.noconvert().none(), "levels"_a,
          "questions"_a.noconvert(), "k"_a, "threads"_a, "mask"_a.noconvert().none(), "seconds"_a, "cancel"_a.noconvert().none(),
          "positions"_a.noconvert() = nb::none());
    m.def("probe", &probe, "codes"_a.noconvert(), "rows"_a.noconvert(), "starts"_a.noconvert(), "centroids"_a.noconvert(), "questions"_a.noconvert(),
          "vectors"_a.noconvert(), "l"_a, "share"_a, "threads"_a, "mask"_a.noconvert().none(), "seconds"_a, "cancel"_a.noconvert().none());
    m.def("assign", &assign, "codes"_a.noconvert(), "centroids"_a.noconvert(), "shortlist"_a, "threads"_a);
    m.def("count_ones", &count_ones, "codes"_a.noconvert(), "order"_a.noconvert(), "starts"_a.noconvert(), "threads"_a);
    m.def("mark_rows", &mark_rows<std::uint32_t>, "bits"_a.noconvert(), "rows"_a.noconvert(), "limit"_a, "toggle"_a);
    m.def("mark_rows", &mark_rows<std::uint64_t>, "bits"_a.noconvert(), "rows"_a.noconvert(), "limit"_a, "toggle"_a);
    m.def("build_tables", &build_tables, "codes"_a.noconvert(), "bits"_a.noconvert(), "threads"_a, "seconds"_a, "cancel"_a.noconvert().none());
    m.def("lookup", &lookup, "codes"_a.noconvert(), "bits"_a.noconvert(), "starts"_a.noconvert(), "rows"_a.noconvert(), "questions"_a.noconvert(),
          "l"_a, "costs"_a, "workers"_a, "threads"_a, "mask"_a.noconvert().none(), "seconds"_a, "cancel"_a.noconvert().none());
    m.def("duplicates", &duplicates, "codes"_a.noconvert(), "radius"_a, "threads"_a, "mask"_a.noconvert().none(), "seconds"_a,
          "cancel"_a.noconvert().none());
    m.def("rotate", &rotate, "vectors"_a.noconvert(), "panels"_a.noconvert(), "threads"_a);
    m.def("read_all", &read_all, "codes"_a.noconvert(), "threads"_a);
    m.def("has_fast_bert", [] { return bpr::supported_levels().back()->bert != &bpr::kBertPortable; });
    m.def("multiply", &multiply, "rows"_a.noconvert(), "weights"_a.noconvert(), "most"_a);
    nb::class_<bpr::Bert>(m, "Bert")
        .def("__init__", &make_bert, "heads"_a, "epsilon"_a, "mean"_a, "normalize"_a, "words"_a.noconvert(), "word_scales"_a.noconvert(),
             "places"_a.noconvert(), "segments"_a.noconvert().none(), "gamma"_a.noconvert(), "beta"_a.noconvert())
        .def("add_layer", &add_layer, "norms"_a, "weights"_a, "scales"_a, "biases"_a)
        .def("add_output", [](bpr::Bert& bert, const FloatsArray& weight, const FloatsArray& bias) { bert.add_output(floats_of(weight), floats_of(bias)); },
             "weight"_a.noconvert(), "bias"_a.noconvert())
        .def("encode", &encode, "ids"_a.noconvert(), "segments"_a.noconvert().none(), "output"_a)
        .def("encode_tokens", &encode_tokens, "ids"_a.noconvert(), "segments"_a.noconvert().none(), "output"_a);
    m.def("levels", &levels);
    m.def("level", [] { return std::string(bpr::level().name); });
    m.def("use_level", [](std::optional<std::string> name) { bpr::use_level(name ? name->c_str() : nullptr); }, "name"_a.none());
}
