// One pool of threads for the whole process, made when it is first needed, and made anew after a fork. Who calls works along; every
// loop of the kernel over rows, questions or tasks runs here.
#include "pool.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <system_error>
#include <thread>

namespace bpr {

namespace {
std::uint64_t this_thread() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }
constexpr std::chrono::milliseconds kBetweenQuestions{50};
}  // namespace

Stop::Stop(double seconds, const std::uint8_t* cancel, std::function<bool()> interrupted)
    : has_deadline_(seconds >= 0), next_question_(Clock::now() + kBetweenQuestions), cancel_(cancel),
      interrupted_(std::move(interrupted)), caller_(this_thread()) {
    // A year is "no deadline" for a search, and keeps the sum inside the clock's range.
    const double bounded = std::min(seconds, 365.0 * 86400.0);
    if (has_deadline_) deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

void Stop::set(Reason reason) {
    Reason none = Reason::none;
    reason_.compare_exchange_strong(none, reason);    // the first reason stands
}

bool Stop::now() {
    if (reason() != Reason::none) return true;
    if (cancel_ != nullptr && __atomic_load_n(cancel_, __ATOMIC_RELAXED) != 0) set(Reason::cancelled);
    const bool asks = interrupted_ && this_thread() == caller_;
    if (!has_deadline_ && !asks) return reason() != Reason::none;
    const Clock::time_point time = Clock::now();
    if (asks && time >= next_question_) {
        next_question_ = time + kBetweenQuestions;
        if (interrupted_()) set(Reason::interrupted);
    }
    if (has_deadline_ && time >= deadline_) set(Reason::deadline);
    return reason() != Reason::none;
}

namespace {

struct Job {
    const std::function<void(unsigned)>* body;
    unsigned threads, begun, working;
    std::exception_ptr error;
};

class Pool {
public:
    void run(unsigned threads, const std::function<void(unsigned)>& body) {
        Job job{&body, threads, 1, 0, nullptr};
        {
            std::lock_guard lock(mutex_);
            start(threads - 1);
            jobs_.push_back(&job);
        }
        wake_.notify_all();
        work(job, 0);
        std::unique_lock lock(mutex_);
        std::erase(jobs_, &job);    // nobody may begin now; wait for those who have
        done_.wait(lock, [&] { return job.working == 0; });
        if (job.error) std::rethrow_exception(job.error);
    }

private:
    // A system that gives no more threads is not an error: the caller's own thread does the work.
    void start(unsigned wanted) {
        try {
            for (; started_ < wanted; ++started_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
        }
    }

    void work(Job& job, unsigned index) {
        try {
            (*job.body)(index);
        } catch (...) {
            std::lock_guard lock(mutex_);
            if (!job.error) job.error = std::current_exception();
        }
    }

    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return !jobs_.empty(); });
            Job& job = *jobs_.front();
            const unsigned index = job.begun++;
            if (job.begun >= job.threads) jobs_.pop_front();
            ++job.working;
            lock.unlock();
            work(job, index);
            lock.lock();
            if (--job.working == 0) done_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::deque<Job*> jobs_;      // those that can use one more thread
    unsigned started_ = 0;
};

// Never destroyed: threads may still wait in it when the process ends. After fork the child has none of the parent's
// threads and perhaps a locked mutex, so it leaves the old pool alone and begins a new one.
std::atomic<Pool*> pool{nullptr};

void forget_pool() { pool.store(nullptr); }

Pool& the_pool() {
    static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)registered;
    Pool* current = pool.load();
    if (current == nullptr) {
        auto fresh = std::make_unique<Pool>();
        if (pool.compare_exchange_strong(current, fresh.get())) current = fresh.release();
    }
    return *current;
}

}  // namespace

void run_parallel(unsigned threads, const std::function<void(unsigned)>& body) {
    if (threads <= 1) return body(0);
    the_pool().run(threads, body);
}

}  // namespace bpr
