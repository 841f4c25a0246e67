// Threads that wait for work, and the reasons to stop working early. Knows nothing of codes or of Python.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace bpr {

// When a call has to end before its work is done. Every thread asks `now()` at least every 5 ms of work.
class Stop {
public:
    enum class Reason { none, deadline, cancelled, interrupted };
    using Clock = std::chrono::steady_clock;

    // seconds < 0: no deadline. cancel: a byte that another thread may set, or nullptr. interrupted: asked now and then
    // by the calling thread alone (a Ctrl-C), or empty.
    Stop(double seconds, const std::uint8_t* cancel, std::function<bool()> interrupted);

    bool now();    // true: give up
    Reason reason() const { return reason_.load(std::memory_order_acquire); }

private:
    void set(Reason reason);

    bool has_deadline_;
    Clock::time_point deadline_, next_question_;
    const std::uint8_t* cancel_;
    std::function<bool()> interrupted_;
    std::uint64_t caller_;
    std::atomic<Reason> reason_{Reason::none};
};

// Calls body(0) here and, as far as threads are free, body(1) … body(threads - 1) on the pool, and waits for all that began.
// The body must do all of the work even if it is only called once: bodies share the work by an atomic counter of their own.
// Safe from several threads at a time, and after fork: a child starts with a fresh pool.
void run_parallel(unsigned threads, const std::function<void(unsigned)>& body);

}  // namespace bpr
