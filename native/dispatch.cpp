// Which level runs: asked of the processor once; BPR_SIMD overrides. Compiled without any level's flags, so that asking runs
// everywhere; what a level computes is not known here.
#include "hamming.h"

#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace bpr {

Shape::Shape(std::size_t code_bytes)
    : bytes(code_bytes), bits(code_bytes * 8), triples(bits / 2), inputs((triples + kBlock - 1) / kBlock * kBlock),
      counters(6 + static_cast<std::size_t>(std::bit_width(inputs / kBlock))) {}

std::size_t Kernels::tile_scratch_bytes(const Shape& shape) const {
    const std::size_t queue = shape.bits + 1 + shape.triples, table = chunk_inputs * kVariants;
    return (queue + table) * vector_bytes;
}

namespace {

#if defined(BPR_X86)
// __builtin_cpu_supports asks cpuid and, for AVX and AVX-512, xgetbv: an operating system that does not save the wide
// registers counts as a processor that does not have them.
std::vector<const Kernels*> find_levels() {
    __builtin_cpu_init();
    std::vector<const Kernels*> found = {&kPortable};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt")) found.push_back(&kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma"))
        found.push_back(&kAvx512);
    return found;
}
#elif defined(BPR_NEON)
std::vector<const Kernels*> find_levels() { return {&kPortable, &kNeon}; }
#else
std::vector<const Kernels*> find_levels() { return {&kPortable}; }
#endif

const Kernels& named(const char* name) {
    std::string known;
    for (const Kernels* k : supported_levels()) {
        if (std::strcmp(k->name, name) == 0) return *k;
        known += (known.empty() ? "" : ", ") + std::string(k->name);
    }
    throw std::invalid_argument("SIMD level '" + std::string(name) + "' is not supported on this machine; it has: " + known);
}

std::atomic<const Kernels*> current{nullptr};

}  // namespace

const std::vector<const Kernels*>& supported_levels() {
    static const std::vector<const Kernels*> levels = find_levels();
    return levels;
}

const Kernels& level() {
    const Kernels* k = current.load(std::memory_order_acquire);
    if (k == nullptr) {
        const char* wish = std::getenv("BPR_SIMD");
        k = wish != nullptr && *wish != '\0' ? &named(wish) : supported_levels().back();
        current.store(k, std::memory_order_release);
    }
    return *k;
}

void use_level(const char* name) { current.store(name != nullptr ? &named(name) : nullptr, std::memory_order_release); }

}  // namespace bpr
