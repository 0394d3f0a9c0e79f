// Locked adds across two lines of cache, which lock the bus as those to uncached memory do.
//
// Prints "what,median_ns,least_ns,windows": an add of one CPU alone; an add of either of two CPUs
// at once; a load of another CPU by the bytes that it walks through in random order, alone and
// beside adds. Windows in which the other CPU did not run are left out. A few thousand adds in
// all: they hold up the whole machine. Build: g++ -O2 -pthread; it takes CPUs 0 and 1.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <sched.h>
#include <thread>
#include <vector>

constexpr int WINDOWS = 60, ADDS = 60, LINE = 64;
std::atomic<bool> asked{false}, ended{false};
std::atomic<long> others{0};  // adds of the other CPU

void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

void add(char *place) { asm volatile("lock addq $1, %0" : "+m"(*reinterpret_cast<uint64_t *>(place))); }

double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

char *split() {  // eight bytes, four of them in the next line
    char *memory = static_cast<char *>(std::aligned_alloc(LINE, 4096));
    std::fill(memory, memory + 4096, 0);
    return memory + LINE - 4;
}

void other() {
    pin(1);
    char *place = split();
    while (!ended) {
        if (!asked) continue;
        add(place);
        others++;
    }
}

void print(const char *what, std::vector<double> times) {
    if (times.empty()) return;
    std::sort(times.begin(), times.end());
    std::printf("%s,%.1f,%.1f,%zu\n", what, times[times.size() / 2], times[0], times.size());
}

template <typename Work>
void measure(const char *alone, const char *beside, int count, bool shared, Work work) {
    std::vector<double> by_itself, with_other;
    for (int window = 0; window < 2 * WINDOWS; window++) {
        asked = window % 2;
        for (int i = 0; i < count / 10; i++) work();
        long before = others;
        double begin = now_ns();
        for (int i = 0; i < count; i++) work();
        double took = now_ns() - begin;
        long added = others - before;
        asked = false;
        if (window % 2 == 0) by_itself.push_back(took / count);
        else if (shared && added > count / 2 && added < 2 * count) with_other.push_back(took / (count + added));
        else if (!shared && added * 3000 > took) with_other.push_back(took / count);
        std::this_thread::sleep_for(std::chrono::microseconds(400));
    }
    print(alone, by_itself);
    print(beside, with_other);
}

int main() {
    pin(0);
    std::thread second(other);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    char *place = split();
    measure("an add of one CPU", "an add of either of two", ADDS, true, [&] { add(place); });
    for (auto [kib, loads] : {std::pair{16, 150000}, {512, 40000}, {131072, 1500}}) {
        std::vector<uint32_t> order(kib * 1024 / LINE);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(1));
        char *memory = static_cast<char *>(std::aligned_alloc(4096, order.size() * LINE));
        for (size_t i = 0; i < order.size(); i++)
            *reinterpret_cast<char **>(memory + size_t(order[i]) * LINE) =
                memory + size_t(order[(i + 1) % order.size()]) * LINE;
        char *at = memory;
        char alone[64], beside[64];
        std::snprintf(alone, sizeof alone, "a load out of %d KiB", kib);
        std::snprintf(beside, sizeof beside, "a load out of %d KiB beside adds", kib);
        measure(alone, beside, loads, false, [&] { at = *reinterpret_cast<char *volatile *>(at); });
        std::free(memory);
    }
    ended = true;
    second.join();
}
