// The two inner loops of the Hamming scan, for any vector type. Each hamming_<isa>.cpp includes this file once, inside
// its own anonymous namespace and with its own compiler flags, so that no instruction of one level can leak into another.
//
// How a tile is counted. A popcount instruction counts the bits of one code; a *bit-sliced* counter counts for as many
// codes at once as a vector has bits. The tile's codes are transposed in cache, so that vector i holds bit i of every code
// (plane i). A distance is then the sum over all planes of (plane_i xor question bit i), and sums of single bits are made of
// full adders: three bits of weight w give a sum bit of weight w and a carry of weight 2w.
//
// Most of the work does not depend on the question. A full adder of planes a, b, c gives for the question bits x, y, z
//   sum   = a^b^c ^ (x^y^z)                       the same vector or its complement
//   carry = majority(a^x, b^y, c^z)               one of eight vectors
// so all adders of the lowest weight are done once per tile: their sums form a queue (three out, one in, until one
// is left: the parity), and their carries are tabulated for the eight patterns. A question only picks its bits/2 carries from the
// tables and adds them up: half of the adders, and no xor. The tables are made and used in chunks that fit the first-level cache.
//
// The tables, planes and counters are the same at every level but for the length of a vector. A level gives the type V with
// its operators, load (any alignment), load_partial (the last bytes of a row, then zeros: nothing behind the row may be read),
// majority, full_add and transpose_words.

// Words of 64 bits in a vector.
constexpr std::size_t kWords = sizeof(V) / 8;
constexpr std::size_t kTileRows = sizeof(V) * 8;
// At most 24 KiB of tables: they stay in a first-level cache of 32 KiB beside the question's counters.
constexpr std::size_t kChunkInputs = 24576 / (kBlock * kVariants * sizeof(V)) * kBlock;
static_assert(kChunkInputs > 0 && kChunkInputs * kVariants * sizeof(V) <= 65536, "offsets are 16 bits");

inline V zero() { return V{}; }

// Asks for bytes that a scan in the order of rows will need soon: the hardware prefetcher stops at the end of every page. A
// hint at an address behind the last row does nothing.
inline void fetch_ahead(const std::uint8_t* codes, std::size_t bytes) {
    constexpr std::uintptr_t kAhead = 1536;
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(codes) + kAhead + i));
}

// All ones where the bit is set, else all zeros.
inline V everywhere(std::uint64_t bit) { return zero() - bit; }

// Exchange the bits of `low` above `Step` with those of `high` below it, in every 2 * Step bits.
template <unsigned Step>
inline void exchange(V& low, V& high) {
    constexpr std::uint64_t kMask = ~std::uint64_t{0} / ((std::uint64_t{1} << Step) + 1);    // Step ones, Step zeros, …
    const V swap = ((low >> Step) ^ high) & kMask;
    low ^= swap << Step;
    high ^= swap;
}

// Three steps of the transposition on eight vectors, `Stride` rows apart, so that they stay in registers.
template <unsigned Stride>
inline void exchange_eight(V* rows) {
    V v[8];
    for (unsigned i = 0; i < 8; ++i) v[i] = rows[i * Stride];
    for (unsigned i = 0; i < 4; ++i) exchange<4 * Stride>(v[i], v[i + 4]);
    for (unsigned i = 0; i < 8; i += 4) exchange<2 * Stride>(v[i], v[i + 2]), exchange<2 * Stride>(v[i + 1], v[i + 3]);
    for (unsigned i = 0; i < 8; i += 2) exchange<Stride>(v[i], v[i + 1]);
    for (unsigned i = 0; i < 8; ++i) rows[i * Stride] = v[i];
}

// 64 x 64 bits in each of the vector's words: bit j of row i changes places with bit i of row j. Hacker's Delight 7-3:
// swap the off-diagonal quarters, then the same within each quarter.
inline void transpose_bits(V* rows) {
    for (unsigned i = 0; i < 8; ++i) exchange_eight<8>(rows + i);
    for (unsigned i = 0; i < 64; i += 8) exchange_eight<1>(rows + i);
}

// planes[i] = bit i (of the code read as little-endian words) of every row of the tile.
inline void slice(const Shape& shape, const SlicedTile& tile, V* planes) {
    V block[kWords][64];
    for (std::size_t column = 0; column < shape.bytes; column += sizeof(V)) {
        const std::size_t width = std::min(sizeof(V), shape.bytes - column);
        for (std::size_t group = 0; group < kWords; ++group) {
            const std::size_t first = group * 64;
            const std::size_t count = tile.rows > first ? std::min<std::size_t>(64, tile.rows - first) : 0;
            const std::uint8_t* from = tile.codes + first * shape.bytes + column;
            for (std::size_t i = 0; i < count; ++i, from += shape.bytes)
                block[group][i] = width == sizeof(V) ? load(from) : load_partial(from, width);
            for (std::size_t i = count; i < 64; ++i) block[group][i] = zero();
            transpose_bits(block[group]);
        }
        for (std::size_t i = 0; i < 64; ++i) {
            V words[kWords];
            for (std::size_t group = 0; group < kWords; ++group) words[group] = block[group][i];
            transpose_words(words);
            for (std::size_t word = 0; word < kWords; ++word)
                if (word * 64 + i < width * 8) planes[column * 8 + word * 64 + i] = words[word];
        }
    }
}

// Tables of the carries [first, last), and their sums to the end of the queue.
inline void tabulate(const Shape& shape, V* queue, std::size_t first, std::size_t last, V* table) {
    for (std::size_t t = first; t < last; ++t, table += kVariants) {
        if (t >= shape.triples) {    // padding to a whole block: nothing to count
            for (std::size_t v = 0; v < kVariants; ++v) table[v] = zero();
            continue;
        }
        const V a = queue[3 * t], b = queue[3 * t + 1], c = queue[3 * t + 2];
        const V none = majority(a, b, c), x = majority(~a, b, c), y = majority(a, ~b, c), z = majority(a, b, ~c);
        table[0] = none, table[1] = x, table[2] = y, table[3] = ~z;    // index = x + 2y + 4z
        table[4] = z, table[5] = ~y, table[6] = ~x, table[7] = ~none;
        queue[shape.bits + 1 + t] = a ^ b ^ c;
    }
}

// Sum of 16 carries and the counters c1..c8: 15 full adders; returns the carry of weight 16 (in units of a carry).
inline V count_sixteen(const std::uint8_t* table, const std::uint16_t* offsets, V& c1, V& c2, V& c4, V& c8) {
    const auto pick = [&](std::size_t i) { return load(table + offsets[i]); };
    V a, b, c, d, e, f;
    full_add(a, c1, pick(0), pick(1));
    full_add(b, c1, pick(2), pick(3));
    full_add(c, c2, a, b);
    full_add(a, c1, pick(4), pick(5));
    full_add(b, c1, pick(6), pick(7));
    full_add(d, c2, a, b);
    full_add(e, c4, c, d);
    full_add(a, c1, pick(8), pick(9));
    full_add(b, c1, pick(10), pick(11));
    full_add(c, c2, a, b);
    full_add(a, c1, pick(12), pick(13));
    full_add(b, c1, pick(14), pick(15));
    full_add(d, c2, a, b);
    full_add(f, c4, c, d);
    full_add(a, c8, e, f);
    return a;
}

// Add `count` carries to one question's counters; the first of a tile finds them undefined and begins at zero.
// counter[0] is the parity's, set at the end.
inline void count_carries(const std::uint8_t* table, const std::uint16_t* offsets, std::size_t count, bool begin, V* counter,
                          std::size_t counters) {
    V c1 = zero(), c2 = zero(), c4 = zero(), c8 = zero(), c16 = zero();
    if (begin)
        for (std::size_t b = 6; b < counters; ++b) counter[b] = zero();
    else
        c1 = counter[1], c2 = counter[2], c4 = counter[3], c8 = counter[4], c16 = counter[5];
    for (std::size_t i = 0; i < count; i += kBlock) {
        const V first = count_sixteen(table, offsets + i, c1, c2, c4, c8);
        const V second = count_sixteen(table, offsets + i + 16, c1, c2, c4, c8);
        V carry;
        full_add(carry, c16, first, second);
        for (std::size_t b = 6; b < counters; ++b) {    // half adders: few and rare
            const V next = counter[b] & carry;
            counter[b] ^= carry;
            carry = next;
        }
    }
    counter[1] = c1, counter[2] = c2, counter[3] = c4, counter[4] = c8, counter[5] = c16;
}

// Rows whose bit-sliced distance is < bound: those where subtracting the bound borrows. No branch on the bound's bits,
// which differ from question to question and would be mispredicted.
inline V below(const V* counter, std::size_t bits, std::size_t bound) {
    if (bound >> bits) return ~zero();
    V borrow = zero();
    for (std::size_t b = 0; b < bits; ++b) borrow = majority(~counter[b], everywhere(bound >> b & 1), borrow);
    return borrow;
}

inline void tile_distances(const Shape& shape, const SlicedTile& tile, const SlicedQuestion* questions, std::size_t count,
                           const std::uint16_t* bounds, std::uint8_t* scratch, std::uint8_t* counters,
                           std::uint64_t* passing) {
    V* queue = reinterpret_cast<V*>(scratch);
    V* table = queue + shape.bits + 1 + shape.triples;
    slice(shape, tile, queue);
    queue[shape.bits] = zero();    // an odd number of planes: then three out, one in ends with exactly one
    const V live = load(tile.live);
    const std::uint8_t* next = tile.codes + tile.rows * shape.bytes;
    const std::uint8_t* const end = next + tile.ahead;
    const std::size_t turns = (shape.inputs + kChunkInputs - 1) / kChunkInputs * count, share = (tile.ahead / turns + 63) / 64 * 64;
    for (std::size_t first = 0; first < shape.inputs; first += kChunkInputs) {
        const std::size_t last = std::min(shape.inputs, first + kChunkInputs);
        tabulate(shape, queue, first, last, table);
        const V parity = queue[shape.bits + shape.triples];    // known with the last chunk
        for (std::size_t j = 0; j < count; ++j) {
            V* counter = reinterpret_cast<V*>(counters) + j * shape.counters;
            for (const std::uint8_t* until = std::min(end, next + share); next < until; next += 64) __builtin_prefetch(next, 0, 2);
            count_carries(reinterpret_cast<const std::uint8_t*>(table), questions[j].offsets + first, last - first, first == 0, counter, shape.counters);
            if (last < shape.inputs) continue;
            counter[0] = questions[j].parity ? ~parity : parity;
            const V pass = below(counter, shape.counters, bounds[j]) & live;
            std::memcpy(passing + j * kWords, &pass, sizeof(V));
        }
    }
}
