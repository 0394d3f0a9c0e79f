// Rates inside an SM and between it and the L2 cache, by path.
//
// With any argument: sweeps over buffers through the L2 cache, "pattern,bytes,passes,time_us".
// Else rows of "what,setting,sms,bytes_or_ops_per_clock_per_sm,GB_or_GFLOP_per_s". A clock is an
// SM's own (clock64); the rate per second is of all SMs by CUDA's events. Build:
// nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a.

#include <cuda_runtime.h>

#include "cuda_check.cuh"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

constexpr int kShared = 200 * 1024;  // so that a block has its SM for itself
extern __shared__ __align__(1024) char ring[];

__device__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The chunks of a buffer that a block reads: blocks begin apart and go on in turn, round the end.
struct Chunks {
    const char *buffer;
    int count, bytes, next;

    __device__ Chunks(const char *buffer, int count, int bytes)
        : buffer(buffer), count(count), bytes(bytes), next(blockIdx.x * 7919 % count) {}

    __device__ const char *take() {
        const char *from = buffer + size_t(next) * bytes;
        if (++next == count) next = 0;
        return from;
    }
};

template <int Loads>
__global__ void plain_loads(const char *buffer, int chunks, int steps, long long *clocks,
                            int *sink) {
    Chunks from_chunks(buffer, chunks, blockDim.x * 16 * Loads);
    int total = 0;
    __syncthreads();
    long long begin = clock64();
    for (int step = 0; step < steps; ++step) {
        const char *from = from_chunks.take() + threadIdx.x * 16;
        int4 values[Loads];
#pragma unroll
        for (int i = 0; i < Loads; ++i)
            asm volatile("ld.global.cg.v4.s32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(values[i].x), "=r"(values[i].y), "=r"(values[i].z),
                           "=r"(values[i].w)
                         : "l"(from + size_t(i) * blockDim.x * 16));
#pragma unroll
        for (int i = 0; i < Loads; ++i) total += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
    if (total == 0x7fffffff) *sink = total;
}

template <int Stages>
__global__ void asynchronous_copies(const char *buffer, int chunks, int steps,
                                    long long *clocks, int *) {
    const int chunk = blockDim.x * 16 * 2;
    Chunks from_chunks(buffer, chunks, chunk);
    int stage = 0;
    auto issue = [&] {
        const char *from = from_chunks.take() + threadIdx.x * 16;
        uint32_t to = shared_address(ring) + stage * chunk + threadIdx.x * 16;
        if (++stage == Stages) stage = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * blockDim.x * 16),
                         "l"(from + size_t(i) * blockDim.x * 16));
        asm volatile("cp.async.commit_group;");
    };
    __syncthreads();
    long long begin = clock64();
    for (int step = 0; step < Stages - 1; ++step) issue();
    for (int step = Stages - 1; step < steps; ++step) {
        issue();
        asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 1) : "memory");
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
}

// One thread keeps a ring of bulk copies of `chunk` bytes full.
__global__ void bulk_copies(const char *buffer, int chunks, int steps, long long *clocks,
                            int chunk, int stages) {
    __shared__ __align__(8) uint64_t full[64];
    if (threadIdx.x != 0) return;
    for (int i = 0; i < stages; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    Chunks from_chunks(buffer, chunks, chunk);
    auto issue = [&](int stage) {
        uint32_t barrier = shared_address(&full[stage]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(chunk)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(shared_address(ring) + stage * chunk),
            "l"(from_chunks.take()), "r"(chunk), "r"(barrier)
            : "memory");
    };
    auto wait = [&](int stage, uint32_t parity) {
        uint32_t barrier = shared_address(&full[stage]), done = 0;
        while (!done)
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                "selp.u32 %0, 1, 0, p; }"
                : "=r"(done)
                : "r"(barrier), "r"(parity)
                : "memory");
    };
    long long begin = clock64();
    for (int stage = 0; stage < stages; ++stage) issue(stage);
    uint32_t parity = 0;
    int stage = 0;
    for (int step = 0; step < steps; ++step) {  // steps are at least stages
        wait(stage, parity);
        if (step + stages < steps) issue(stage);
        if (++stage == stages) stage = 0, parity ^= 1;
    }
    clocks[blockIdx.x] = clock64() - begin;
}

__device__ void clear_ring() {
    for (int i = threadIdx.x; i < kShared / 4; i += blockDim.x) reinterpret_cast<int *>(ring)[i] = 0;
    __syncthreads();
}

__global__ void shared_loads(int steps, long long *clocks, int *sink) {
    int total = 0;
    clear_ring();
    uint32_t from = shared_address(ring) + threadIdx.x * 16;
    __syncthreads();
    long long begin = clock64();
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int4 v;
            asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(from + i * 16384));
            total |= v.x | v.y | v.z | v.w;
        }
        from += total & 16;  // zero, which only the loads say
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
    if (total) *sink = total;
}

__global__ void matrix_loads(int steps, long long *clocks, int *sink) {
    int total = 0;
    clear_ring();
    uint32_t from = shared_address(ring) + (threadIdx.x / 32) * 512 + (threadIdx.x % 32) * 16;
    __syncthreads();
    long long begin = clock64();
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int4 v;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(from + i * 16384));
            total |= v.x | v.y | v.z | v.w;
        }
        from += total & 16;  // zero, which only the loads say
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
    if (total == 0x7fffffff) *sink = total;
}

// All SMs read a buffer several times: each its own part, or each all of it, from one place on
// (so that they ask for the same at about the same time) or from places apart.
enum Pattern { kOwnPart, kAllTogether, kAllApart };

__global__ void sweep(const char *buffer, int chunks, int passes, Pattern pattern, int *sink) {
    int total = 0;
    const int count = pattern == kOwnPart ? chunks / gridDim.x : chunks;
    const int first = pattern == kAllApart ? chunks / int(gridDim.x) * int(blockIdx.x) : 0;
    const char *begin = buffer + threadIdx.x * 16;
    if (pattern == kOwnPart) begin += size_t(count) * blockIdx.x * blockDim.x * 16;
    for (int pass = 0; pass < passes; ++pass)
        for (int chunk = 0; chunk < count; chunk += 4) {
            int4 values[4] = {};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int place = chunk + i + first;
                if (place >= count) place -= count;
                if (chunk + i < count)
                    asm volatile("ld.global.cg.v4.s32 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(values[i].x), "=r"(values[i].y), "=r"(values[i].z),
                                   "=r"(values[i].w)
                                 : "l"(begin + size_t(place) * blockDim.x * 16)
                                 : "memory");
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                total += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
        }
    if (total == 0x7fffffff) *sink = total;
}

// mma.sync on registers alone: the rate that no path of operands can exceed.
template <bool Tf32>
__global__ void products(int steps, long long *clocks, float *sink) {
    constexpr int kChains = 8;
    float c[kChains][4] = {};
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = 0x3f803f80u + threadIdx.x + i;
    for (int i = 0; i < 2; ++i) b[i] = 0x3f803f80u + threadIdx.x * 3 + i;
    __syncthreads();
    long long begin = clock64();
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < kChains; ++i) {
            if constexpr (Tf32)
                asm volatile(
                    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                    "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
            else
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                    "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
    float total = 0;
    for (int i = 0; i < kChains; ++i) total += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (total == 1.2345f) *sink = total;
}

static long long *clocks_on_gpu;
static int *sink_on_gpu;

// Median of three launches; `amount` is what one block moves or computes.
static void measure(const std::string &what, const std::string &setting, int blocks, double amount,
                    const std::function<void()> &launch) {
    std::vector<double> per_clock, per_second;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int turn = 0; turn < 4; ++turn) {
        CHECK(cudaEventRecord(begin));
        launch();
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(end));
        CHECK(cudaDeviceSynchronize());
        if (turn == 0) continue;
        std::vector<long long> clocks(blocks);
        CHECK(cudaMemcpy(clocks.data(), clocks_on_gpu, blocks * sizeof(long long),
                         cudaMemcpyDeviceToHost));
        double sum = 0;
        for (long long of_block : clocks) sum += amount / of_block;
        per_clock.push_back(sum / blocks);
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        per_second.push_back(amount * blocks / (ms * 1e6));
    }
    std::sort(per_clock.begin(), per_clock.end());
    std::sort(per_second.begin(), per_second.end());
    std::printf("%s,%s,%d,%.2f,%.1f\n", what.c_str(), setting.c_str(), blocks, per_clock[1],
                per_second[1]);
    std::fflush(stdout);
}

template <typename Kernel>
static void own_sm(Kernel kernel) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
}

// Each sweep once, so that a profiler can count what memory served; rows in the order of launches.
static void sweeps(const char *buffer, int sms) {
    std::printf("pattern,bytes,passes,time_us\n");
    const char *names[] = {"each its own part", "each all of it together", "each all of it apart"};
    for (Pattern pattern : {kOwnPart, kAllTogether, kAllApart})
        for (int parts = 2; parts <= 40; parts += parts < 34 ? 1 : 3) {
            const int passes = pattern == kOwnPart ? 16 : 4, threads = 1024;
            const int chunks = sms * parts;  // of 16 KiB
            cudaEvent_t begin, end;
            CHECK(cudaEventCreate(&begin));
            CHECK(cudaEventCreate(&end));
            CHECK(cudaEventRecord(begin));
            sweep<<<sms, threads>>>(buffer, chunks, passes, pattern, sink_on_gpu);
            CHECK(cudaGetLastError());
            CHECK(cudaEventRecord(end));
            CHECK(cudaDeviceSynchronize());
            float ms;
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            std::printf("%s,%zu,%d,%.1f\n", names[pattern], size_t(chunks) * threads * 16, passes,
                        1e3 * ms);
        }
}

int main(int count, char **) {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    const int sms = properties.multiProcessorCount;
    const size_t most = size_t(1) << 31;
    char *buffer;
    CHECK(cudaMalloc(&buffer, most));
    CHECK(cudaMemset(buffer, 1, most));
    CHECK(cudaMalloc(&clocks_on_gpu, sizeof(long long) * 1024));
    CHECK(cudaMalloc(&sink_on_gpu, 64));
    if (count > 1) {  // any argument
        sweeps(buffer, sms);
        return 0;
    }
    std::printf("what,setting,sms,per_clock_per_sm,giga_per_s\n");
    own_sm(plain_loads<4>);
    own_sm(asynchronous_copies<4>);
    own_sm(asynchronous_copies<12>);
    own_sm(bulk_copies);
    own_sm(shared_loads);
    own_sm(matrix_loads);
    own_sm(products<false>);
    own_sm(products<true>);

    for (size_t megabytes : {8, 16, 24, 2048}) {
        const size_t bytes = megabytes << 20;
        const std::string of = "buffer_MB=" + std::to_string(megabytes);
        for (int blocks : {1, 16, 66, sms}) {
            const int steps = megabytes > 100 ? 1000 : 4000;
            for (int threads : {256, 512, 1024}) {
                const size_t chunk = size_t(threads) * 64;
                measure("plain loads", of + ";threads=" + std::to_string(threads) + ";loads=4",
                        blocks, double(chunk) * steps, [&] {
                            plain_loads<4><<<blocks, threads, kShared>>>(
                                buffer, bytes / chunk, steps, clocks_on_gpu, sink_on_gpu);
                        });
            }
            const size_t chunk = 512 * 32;
            measure("cp.async 16 B", of + ";threads=512;stages=4", blocks, double(chunk) * steps,
                    [&] {
                        asynchronous_copies<4><<<blocks, 512, kShared>>>(
                            buffer, bytes / chunk, steps, clocks_on_gpu, sink_on_gpu);
                    });
            measure("cp.async 16 B", of + ";threads=512;stages=12", blocks, double(chunk) * steps,
                    [&] {
                        asynchronous_copies<12><<<blocks, 512, kShared>>>(
                            buffer, bytes / chunk, steps, clocks_on_gpu, sink_on_gpu);
                    });
            measure("cp.async 16 B", of + ";threads=128;stages=12", blocks,
                    double(128 * 32) * steps, [&] {
                        asynchronous_copies<12><<<blocks, 128, kShared>>>(
                            buffer, bytes / (128 * 32), steps, clocks_on_gpu, sink_on_gpu);
                    });
            for (int size : {2048, 8192, 16384}) {
                const int stages = std::min(64, kShared / size);
                measure("bulk copy", of + ";bytes=" + std::to_string(size) + ";stages=" +
                        std::to_string(stages), blocks, double(size) * steps, [&] {
                            bulk_copies<<<blocks, 32, kShared>>>(buffer, bytes / size, steps,
                                                                 clocks_on_gpu, size, stages);
                        });
            }
        }
    }
    for (int threads : {128, 256, 512, 1024}) {
        const std::string of = "threads=" + std::to_string(threads);
        measure("shared loads 16 B", of, sms, 2000.0 * 8 * 16 * threads, [&] {
            shared_loads<<<sms, threads, kShared>>>(2000, clocks_on_gpu, sink_on_gpu);
        });
        measure("ldmatrix x4", of, sms, 2000.0 * 8 * 16 * threads, [&] {
            matrix_loads<<<sms, threads, kShared>>>(2000, clocks_on_gpu, sink_on_gpu);
        });
        const double warps = threads / 32;
        measure("mma.sync bf16 m16n8k16", of, sms, 20000.0 * 8 * 2 * 16 * 8 * 16 * warps, [&] {
            products<false><<<sms, threads, kShared>>>(
                20000, clocks_on_gpu, reinterpret_cast<float *>(sink_on_gpu));
        });
        measure("mma.sync tf32 m16n8k8", of, sms, 20000.0 * 8 * 2 * 16 * 8 * 8 * warps, [&] {
            products<true><<<sms, threads, kShared>>>(
                20000, clocks_on_gpu, reinterpret_cast<float *>(sink_on_gpu));
        });
    }
    return 0;
}
