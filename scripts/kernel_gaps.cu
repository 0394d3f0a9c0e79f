// Gaps between kernels of known length, in a stream and in a graph, and launches that a stream takes
// ahead of its GPU.
//
// Prints rows of "what,setting,median_us,low_us,high_us,repeats". Build: nvcc -O3 -arch=sm_90.
// A kernel spins for so many cycles of its SM's clock, whose rate a long one tells. What a chain of
// them takes longer than their spinning is a kernel's start, end and the gap to the next.

#include <cuda_runtime.h>

#include "cuda_check.cuh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void spin(long long cycles, float *out, int writes) {
    long long begun = clock64();
    while (clock64() - begun < cycles) {
    }
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    for (int i = 0; i < writes; i++) out[at + i * size_t(gridDim.x) * blockDim.x] = float(cycles);
}

static float elapsed_us(cudaEvent_t begin, cudaEvent_t end) {
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms * 1e3f;
}

static void print(const char *what, const char *setting, std::vector<double> times) {
    std::sort(times.begin(), times.end());
    std::printf("%s,%s,%.3f,%.3f,%.3f,%zu\n", what, setting, times[times.size() / 2], times.front(),
                times.back(), times.size());
    std::fflush(stdout);
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    float *out;
    CHECK(cudaMalloc(&out, size_t(1) << 30));
    // The clock's rate: the mean of several long kernels, behind one that wakes it up.
    std::vector<double> rates;
    for (int turn = 0; turn < 7; turn++) {
        CHECK(cudaEventRecord(begin, stream));
        spin<<<132, 128, 0, stream>>>(20000000, out, 0);
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        if (turn > 1) rates.push_back(20000000 / elapsed_us(begin, end));
    }
    print("cycles_per_us", "", rates);
    double rate = rates[rates.size() / 2];
    const int count = 200;
    for (int blocks : {1, 132, 1056}) {
        for (int writes : {0, 16}) {
            for (int us : {2, 5, 20}) {
                long long cycles = (long long)(us * rate);
                char setting[96];
                // 1056 blocks of 256 threads are resident together: one wave.
                std::snprintf(setting, sizeof setting, "blocks=%d;writes=%d;spin_us=%d", blocks, writes, us);
                std::vector<double> gaps, graph_gaps;
                for (int turn = 0; turn < 9; turn++) {
                    spin<<<1, 32, 0, stream>>>((long long)(3000 * rate), out, 0);  // the host gets ahead
                    CHECK(cudaEventRecord(begin, stream));
                    for (int i = 0; i < count; i++) spin<<<blocks, 256, 0, stream>>>(cycles, out, writes);
                    CHECK(cudaEventRecord(end, stream));
                    CHECK(cudaStreamSynchronize(stream));
                    if (turn > 1) gaps.push_back(elapsed_us(begin, end) / count - us);
                }
                print("gap_in_a_stream", setting, gaps);
                cudaGraph_t graph;
                cudaGraphExec_t exec;
                CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                for (int i = 0; i < count; i++) spin<<<blocks, 256, 0, stream>>>(cycles, out, writes);
                CHECK(cudaStreamEndCapture(stream, &graph));
                CHECK(cudaGraphInstantiate(&exec, graph, 0));
                for (int turn = 0; turn < 9; turn++) {
                    spin<<<1, 32, 0, stream>>>((long long)(300 * rate), out, 0);
                    CHECK(cudaEventRecord(begin, stream));
                    CHECK(cudaGraphLaunch(exec, stream));
                    CHECK(cudaEventRecord(end, stream));
                    CHECK(cudaStreamSynchronize(stream));
                    if (turn > 1) graph_gaps.push_back(elapsed_us(begin, end) / count - us);
                }
                print("gap_in_a_graph", setting, graph_gaps);
                CHECK(cudaGraphExecDestroy(exec));
                CHECK(cudaGraphDestroy(graph));
            }
        }
    }
    // Launches ahead: behind a long kernel, the first launch that takes a hundred times the median.
    for (int streams : {1, 2}) {
        cudaStream_t other;
        CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        std::vector<double> ahead;
        for (int turn = 0; turn < 5; turn++) {
            spin<<<1, 32, 0, stream>>>((long long)(60000 * rate), out, 0);
            spin<<<1, 32, 0, other>>>((long long)(60000 * rate), out, 0);
            int launched = 0;
            for (; launched < 8000; launched++) {
                auto before = std::chrono::steady_clock::now();
                spin<<<1, 32, 0, streams == 2 && launched % 2 ? other : stream>>>(1, out, 0);
                double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
                if (us > 3000) break;
            }
            ahead.push_back(launched);
            CHECK(cudaDeviceSynchronize());
        }
        print("launches_ahead_of_a_busy_gpu", streams == 1 ? "streams=1" : "streams=2", ahead);
    }
    return 0;
}
