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
// The tables, planes and counters are the same at every level but for the length of a vector.

// Words of 64 bits in a vector.
constexpr std::size_t kWords = sizeof(V) / 8;
constexpr std::size_t kTileRows = sizeof(V) * 8;
// 24 KiB of tables: they stay in a first-level cache of 32 KiB beside the question's counters.
constexpr std::size_t kChunkInputs = (24576 / (kBlock * kVariants * sizeof(V)) > 0 ? 24576 / (kBlock * kVariants * sizeof(V)) : 1) * kBlock;

inline V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
}

inline V zero() { return V{} ^ V{}; }

// Up to sizeof(V) bytes of a row, the rest zero: the last vector of a row must not read past it.
inline V load_partial(const std::uint8_t* from, std::size_t bytes) {
    V v = zero();
    if (bytes == sizeof(V) / 2)
        std::memcpy(&v, from, sizeof(V) / 2);
    else
        std::memcpy(&v, from, bytes);
    return v;
}

// 64 x 64 bits in each of the vector's words: bit j of row i changes places with bit i of row j. Hacker's Delight 7-3:
// swap the off-diagonal quarters, then the same within each quarter.
inline void transpose_64(V* rows) {
    std::uint64_t mask = 0x00000000FFFFFFFFull;
    for (unsigned step = 32; step != 0; step >>= 1, mask ^= mask << step) {
        for (unsigned i = 0; i < 64; i = ((i | step) + 1) & ~step) {
            const V swap = ((rows[i] >> step) ^ rows[i | step]) & mask;
            rows[i] ^= swap << step;
            rows[i | step] ^= swap;
        }
    }
}

// planes[i] = bit i (of the code read as little-endian words) of every row of the tile.
inline void slice(const Shape& shape, const SlicedTile& tile, V* planes) {
    V block[64];
    for (std::size_t column = 0; column < shape.bytes; column += sizeof(V)) {
        const std::size_t width = std::min(sizeof(V), shape.bytes - column);
        const std::size_t planes_here = width * 8;
        for (std::size_t group = 0; group < kWords; ++group) {
            const std::size_t first = group * 64;
            const std::size_t count = tile.rows > first ? std::min<std::size_t>(64, tile.rows - first) : 0;
            const std::uint8_t* from = tile.codes + first * shape.bytes + column;
            for (std::size_t i = 0; i < count; ++i, from += shape.bytes)
                block[i] = width == sizeof(V) ? load(from) : load_partial(from, width);
            for (std::size_t i = count; i < 64; ++i) block[i] = zero();
            transpose_64(block);
            auto* out = reinterpret_cast<std::uint64_t*>(planes + column * 8) + group;
            for (std::size_t word = 0; word * 64 < planes_here; ++word) {
                const std::size_t bits = std::min<std::size_t>(64, planes_here - word * 64);
                for (std::size_t i = 0; i < bits; ++i) out[(word * 64 + i) * kWords] = block[i][word];
            }
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

// Add a block of carries to one question's counters: 15 full adders, then the carry of weight 16 ripples up.
inline void count_block(const std::uint8_t* table, const std::uint16_t* offsets, V& c1, V& c2, V& c4, V& c8, V* upper,
                        std::size_t uppers) {
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
    for (std::size_t i = 0; i < uppers; ++i) {
        const V carry = upper[i] & a;
        upper[i] ^= a;
        a = carry;
    }
}

// Rows whose bit-sliced distance is < bound, from the highest bit down.
inline V below(const V* counter, std::size_t bits, std::size_t bound) {
    if (bound >> bits) return ~zero();
    V less = zero(), equal = ~zero();
    for (std::size_t b = bits; b-- > 0;) {
        if (bound >> b & 1) {
            less |= equal & ~counter[b];
            equal &= counter[b];
        } else {
            equal &= ~counter[b];
        }
    }
    return less;
}

inline void tile_distances(const Shape& shape, const SlicedTile& tile, const SlicedQuestion* questions, std::size_t count,
                           const std::uint16_t* bounds, std::uint8_t* scratch, std::uint8_t* counters,
                           std::uint64_t* passing) {
    V* queue = reinterpret_cast<V*>(scratch);
    V* table = queue + shape.bits + 1 + shape.triples;
    slice(shape, tile, queue);
    queue[shape.bits] = zero();    // an odd number of planes: then three out, one in ends with exactly one
    std::memset(counters, 0, count * shape.counters * sizeof(V));
    const std::size_t uppers = shape.counters - 5;
    for (std::size_t first = 0; first < shape.inputs; first += kChunkInputs) {
        const std::size_t last = std::min(shape.inputs, first + kChunkInputs);
        tabulate(shape, queue, first, last, table);
        for (std::size_t j = 0; j < count; ++j) {
            V* counter = reinterpret_cast<V*>(counters) + j * shape.counters;
            V c1 = counter[1], c2 = counter[2], c4 = counter[3], c8 = counter[4];
            for (std::size_t i = first; i < last; i += kBlock)
                count_block(reinterpret_cast<const std::uint8_t*>(table), questions[j].offsets + i, c1, c2, c4, c8, counter + 5, uppers);
            counter[1] = c1, counter[2] = c2, counter[3] = c4, counter[4] = c8;
        }
    }
    const V parity = queue[shape.bits + shape.triples], live = load(tile.live);
    for (std::size_t j = 0; j < count; ++j) {
        V* counter = reinterpret_cast<V*>(counters) + j * shape.counters;
        counter[0] = questions[j].parity ? ~parity : parity;
        const V pass = below(counter, shape.counters, bounds[j]) & live;
        std::memcpy(passing + j * kWords, &pass, sizeof(V));
    }
}
